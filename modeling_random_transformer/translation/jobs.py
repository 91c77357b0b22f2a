"""Jobs: the resumable processing of a file in chunks by one or more processes, for translation and scoring.

Each finished chunk is a part, a file in the folder `<output>.parts`, together with a manifest that describes the job.
The output is written when all parts exist. All files are written atomically, so an interruption at any time leaves
only complete files.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..ensemble import vocabulary
from ..utils.distributed import call_on_main_process
from .parts import Job, Parts
from .streams import progress_bar

POLLING_INTERVAL = 0.1  # seconds
# Fields of a configuration that do not affect the model.
PROVENANCE = ("_from_model_config", "_name_or_path", "architectures", "auto_map", "dtype", "transformers_version")

T = TypeVar("T")


def run_job(
    output: Path,
    model: PreTrainedModel,
    describe: Callable[[], Job],
    process: Callable[[Job, list[int], Callable[[int], Any]], Iterable[tuple[int, list[str]]]],
    *,
    restart: bool,
    progress: bool | None,
    unit: str = "text",
) -> None:
    """Write a file in chunks, which are distributed over the processes; or resume an earlier call.

    Args:
        output: the file to write or to replace.
        model: the model, whose device determines how the processes communicate.
        describe: checks the complete input and describes the job; called in the first process only.
        process: computes the chunks with the given numbers, in ascending order: the number and the lines of each. It
            calls its last argument with the number of texts that are done.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay.
        unit: what the progress bar counts.

    Raises:
        ValueError: the output cannot be a file, or the parts of an earlier call belong to a different job.
        OSError: a file cannot be written.
    """
    parts, state = Parts(output), process_state(model)

    def begin() -> tuple[Job, list[int]]:
        job = describe()
        parts.begin(job, restart)
        return job, parts.missing(job)

    job, missing = call_on_main_process(begin)
    assigned = missing[state.process_index :: state.num_processes]
    done = (job.lines - sum(map(job.lines_of, missing))) // state.num_processes
    texts = range(done + sum(map(job.lines_of, assigned)))
    with progress_bar(texts, progress if state.is_main_process else False, done, unit) as bar:
        for number, lines in process(job, assigned, bar.update):
            parts.write(number, lines)
    if state.is_main_process:
        # Not a barrier, because the backends' barriers time out after some minutes.
        wait_until(lambda: not parts.missing(job))
        parts.join(job)
    wait_until(lambda: not parts.manifest.exists())


def select_chunks(items: Iterable[T], job: Job, numbers: Collection[int], name: str) -> Iterator[list[T]]:
    """Read an input in a single pass, and yield the chunks of a job with these numbers, in ascending order.

    Raises:
        ValueError: the input has fewer items than the job; the message contains `name`.
    """
    iterator, selected = iter(items), set(numbers)
    for number in range(max(selected, default=-1) + 1):
        chunk = list(islice(iterator, job.chunk_size))
        if len(chunk) != job.lines_of(number):
            raise ValueError(f"{name} must not change while it is read, but has become shorter.")
        if number in selected:
            yield chunk


def process_state(model: PreTrainedModel) -> Any:
    """Accelerate's state of the processes that share a job."""
    from accelerate import PartialState  # not required for translating texts

    # A later Trainer reuses this singleton, so the CPU is selected only for distributed processes on CPUs.
    return PartialState(cpu=model.device.type == "cpu" and "LOCAL_RANK" in os.environ)


def fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of weights, configurations, vocabulary and special tokens."""
    ids, empty = vocabulary(tokenizer)
    described: list[Any] = [sorted(ids.items()), empty]
    members = [member.config for member in getattr(model, "members", ())]  # of an ensemble
    for config in (model.config, model.generation_config, *members):
        described.append({name: value for name, value in config.to_dict().items() if name not in PROVENANCE})
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition; if another process fails, the launcher ends this one."""
    while not condition():
        time.sleep(POLLING_INTERVAL)

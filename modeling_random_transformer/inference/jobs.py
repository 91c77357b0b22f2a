"""Jobs: the resumable processing of a file in chunks by one or more processes, for translation and scoring.

Each finished chunk is a part, a file in the folder `<output>.parts`, together with a manifest that describes the job.
The output is written when all parts exist. All files are written atomically, so an interruption at any time leaves
only complete files. Processes claim the chunks one by one: those of a killed process are computed by the others.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..utils.distributed import call_on_main_process
from .claims import Claims
from .ensemble import vocabulary
from .parts import Job, Parts
from .translation import progress_bar

POLLING_INTERVAL = 0.1  # seconds
# Fields of a configuration that do not affect the model.
PROVENANCE = ("_from_model_config", "_name_or_path", "architectures", "auto_map", "dtype", "transformers_version")

T = TypeVar("T")


def run_job(
    output: Path,
    model: PreTrainedModel,
    describe: Callable[[], Job],
    process: Callable[[Job, Iterator[int], Callable[[int], Any]], Iterable[tuple[int, list[str]]]],
    *,
    restart: bool,
    progress: bool | None,
    unit: str = "text",
) -> None:
    """Write a file in chunks, which the processes share; or resume an earlier call.

    The processes are those of `accelerate launch` or `torchrun`, and those of concurrent calls with the same arguments.

    Args:
        output: the file to write or to replace.
        model: the model, whose device determines how the processes communicate.
        describe: checks the complete input and describes the job; called in the first process only.
        process: computes the chunks with the given numbers, in ascending order: the number and the lines of each. It
            must request a number only when the lines of the one before have been consumed. It calls its last argument
            with the number of texts that are done.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay. The first process shows it, and counts
            the chunks that others have claimed as done.
        unit: what the progress bar counts.

    Raises:
        ValueError: the output cannot be a file, or the parts of an earlier call belong to a different job.
        OSError: a file cannot be written.
    """
    state = process_state(model)
    parts = Parts(output, is_shared=state.num_processes > 1)

    def begin() -> tuple[Job, list[int]]:
        job = describe()
        parts.begin(job, restart)
        return job, parts.missing(job)

    job, missing = call_on_main_process(begin)
    done = job.lines - sum(map(job.lines_of, missing))
    try:
        claims = parts.open_claims()
    except FileNotFoundError:  # another process has completed the output
        return
    with claims, progress_bar(range(job.lines), progress if state.is_main_process else False, done, unit) as bar:
        compute = partial(compute_chunks, parts, claims, job, process)
        compute(missing, bar.update, lambda number: bar.update(job.lines_of(number)))
        # Not a barrier, because the backends' barriers time out after some minutes, and a killed process does not join.
        while parts.is_incomplete(claims):
            if missing := parts.missing(job):
                compute(missing, lambda _: None, lambda _: None)
                time.sleep(POLLING_INTERVAL)
            else:
                parts.join(job, claims)


def check_output(output: Path, **inputs: Path | None) -> None:
    """Raise a `ValueError` if the output is one of these inputs, which it would replace."""
    for name, path in inputs.items():
        if path is not None and output.exists() and path.exists() and output.samefile(path):
            raise ValueError(f"output_file must differ from {name}, got {str(path)!r} for both.")


def compute_chunks(
    parts: Parts,
    claims: Claims,
    job: Job,
    process: Callable[[Job, Iterator[int], Callable[[int], Any]], Iterable[tuple[int, list[str]]]],
    numbers: list[int],
    update: Callable[[int], Any],
    skip: Callable[[int], Any],
) -> None:
    """Claim and write chunks in a single pass. `skip` is called with the number of each that cannot be claimed."""
    with closing(parts.claim(claims, numbers, skip)) as claimed:
        for first in claimed:  # the input is opened only if there is a chunk
            for number, lines in process(job, chain([first], claimed), update):
                parts.write(number, lines)


def select_chunks(items: Iterable[T], job: Job, numbers: Iterable[int], name: str) -> Iterator[tuple[int, list[T]]]:
    """Read an input in a single pass, and yield the chunks of a job with these numbers, in ascending order.

    A number is requested only when the chunk of the one before has been consumed.

    Raises:
        ValueError: the input has fewer items than the job; the message contains `name`.
    """
    iterator, position = iter(items), 0
    for number in numbers:
        while position <= number:
            chunk = list(islice(iterator, job.chunk_size))
            if len(chunk) != job.lines_of(position):
                raise ValueError(f"{name} must not change while it is read, but has become shorter.")
            position += 1
        yield number, chunk


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

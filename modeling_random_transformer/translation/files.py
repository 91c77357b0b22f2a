"""Resumable translation of a file by one or more processes.

The input is divided into chunks of lines. Each finished chunk is a part, a file in the folder `<output>.parts`,
together with a manifest that describes the job. The output is written when all parts exist. All files are written
atomically, so an interruption at any time leaves only complete files.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..pipeline_random_transformer import (
    CHUNK_SIZE,
    Seq2SeqPipeline,
    check_positive,
    source_language,
    source_limit,
    tokenizer_languages,
)
from ..utils.distributed import call_on_main_process
from ..utils.text import decode_line, read_lines
from .parts import Job, Parts
from .streams import TranslationOptions, progress_bar, translate_chunk

POLLING_INTERVAL = 0.1  # seconds
# Fields of a configuration that do not affect the model.
PROVENANCE = ("_from_model_config", "_name_or_path", "architectures", "auto_map", "dtype", "transformers_version")


def translate_file(
    input_file: str | PathLike,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Translate a UTF-8 file with one text per line; line n of the output translates line n of the input.

    Under `accelerate launch` (or `torchrun`), every process calls this function. Chunks are distributed over the
    processes, which need a shared file system. When any of them returns, the output is complete.

    After an interruption, the same call resumes with the unfinished chunks, with any number of processes, and produces
    the same output. Input, model, tokenizer and options must be the same; `max_batch_tokens` and the device may
    differ. Two calls must not write the same output concurrently.

    Args:
        input_file: the file to translate; only a line feed ends a line.
        output_file: the file to write or to replace; line breaks within a translation become spaces.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        chunk_size: lines that are sorted by length together, and lost if the process is killed before the chunk is
            complete.
        restart: discard the parts of an earlier call. In `<output>.parts`, only files listed in its manifest are
            deleted.
        progress: show a progress bar on stderr, which counts the lines of the first process; `None` shows it after a
            delay.
        **options: those of `translate`. Sampling is reproducible after an interruption only with a `seed`.

    Raises:
        ValueError: an argument is invalid, a line is not UTF-8 or too long for the model, the parts of an earlier call
            belong to a different job, or their manifest is damaged.
        OSError: a file cannot be read or written.
    """
    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    pipe = settings.pipeline(model, tokenizer)
    source, parts = Path(input_file), Parts(Path(output_file))
    state = process_state(model)
    job, missing = call_on_main_process(lambda: begin(source, parts, pipe, settings, chunk_size, restart))

    assigned = missing[state.process_index :: state.num_processes]
    done = (job.lines - sum(map(job.lines_of, missing))) // state.num_processes
    lines = range(done + sum(map(job.lines_of, assigned)))
    with progress_bar(lines, progress if state.is_main_process else False, done) as bar:
        for number in assigned:
            texts = read_chunk(source, job, number)
            first = number * chunk_size
            parts.write(number, translate_chunk(pipe, texts, settings.seed, first, "line", bar.update))
    join_parts(parts, job, state.is_main_process)


def join_parts(parts: Parts, job: Job, is_main_process: bool) -> None:
    """Wait for the parts of all processes; the first process concatenates them."""
    if is_main_process:
        # Not a barrier, because the backends' barriers time out after some minutes.
        wait_until(lambda: not parts.missing(job))
        parts.join(job)
    wait_until(lambda: not parts.manifest.exists())


def process_state(model: PreTrainedModel) -> Any:
    """Accelerate's state of the processes that share a job."""
    from accelerate import PartialState  # not required for translating texts

    # A later Trainer reuses this singleton, so the CPU is selected only for distributed processes on CPUs.
    return PartialState(cpu=model.device.type == "cpu" and "LOCAL_RANK" in os.environ)


def begin(
    source: Path, parts: Parts, pipe: Seq2SeqPipeline, options: TranslationOptions, chunk_size: int, restart: bool
) -> tuple[Job, list[int]]:
    """Check the complete input, then return the job and the numbers of its unfinished chunks."""
    if parts.output.exists() and parts.output.samefile(source):
        raise ValueError(f"output_file must differ from input_file, got {str(source)!r} for both.")
    job = describe_job(source, pipe, options, chunk_size)
    parts.begin(job, restart)
    return job, parts.missing(job)


def describe_job(source: Path, pipe: Seq2SeqPipeline, options: TranslationOptions, chunk_size: int) -> Job:
    """Read the input once to describe the job; raises a `ValueError` for the first line that is not UTF-8."""
    lines, position, starts, digest = 0, 0, [], hashlib.sha256()
    with open(source, "rb") as file:
        for line in file:
            if lines % chunk_size == 0:
                starts.append(position)
            lines += 1
            position += len(line)
            digest.update(line)
            decode_line(line, str(source), lines)
    model = fingerprint(pipe.model, pipe.tokenizer)
    return Job(lines, digest.hexdigest(), starts, chunk_size, model, plain_options(pipe, options))


def read_chunk(source: Path, job: Job, number: int) -> list[str]:
    """Read the lines of one chunk."""
    count = job.lines_of(number)
    with open(source, "rb") as file:
        file.seek(job.starts[number])
        texts = list(islice(read_lines(file, str(source), number * job.chunk_size + 1), count))
    if len(texts) != count:
        raise ValueError(f"{source} must not change during the translation, but has become shorter.")
    return texts


def fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of weights, configurations, vocabulary and special tokens."""
    with source_language(tokenizer, next(iter(tokenizer_languages(tokenizer)), None)):
        described: list[Any] = [sorted(tokenizer.get_vocab().items()), tokenizer("")["input_ids"]]
    for config in (model.config, model.generation_config):
        described.append({name: value for name, value in config.to_dict().items() if name not in PROVENANCE})
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def plain_options(pipe: Seq2SeqPipeline, options: TranslationOptions) -> dict[str, Any]:
    """The options that affect a translation, for the manifest.

    Raises:
        ValueError: an option is an object that cannot be compared after an interruption.
    """
    # The effective limit: truncating longer sources does not change the translation of sources within the limit.
    limit, _ = source_limit(pipe.tokenizer, pipe.positions, options.max_source_tokens)
    values = {
        **options.search_options,
        "max_new_tokens": options.max_new_tokens,
        "max_source_tokens": limit,
        "seed": options.seed,
    }
    for name, value in values.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{name} must be a plain value for translate_file, got {value!r}.") from error
    return values


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition; if another process fails, the launcher ends this one."""
    while not condition():
        time.sleep(POLLING_INTERVAL)

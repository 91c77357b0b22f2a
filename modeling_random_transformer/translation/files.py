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
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..ensemble import vocabulary
from ..pipeline_random_transformer import (
    CHUNK_SIZE,
    Seq2SeqPipeline,
    check_positive,
    source_limit,
)
from ..utils.compressed_files import open_binary
from ..utils.distributed import call_on_main_process
from ..utils.text import decode_line, read_lines
from .formats import candidate_format, format_all
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
    prefix_file: str | PathLike | None = None,
    output_format: str = "text",
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
        input_file: the file to translate, which may be compressed (`.gz`, `.zst`); only a line feed ends a line.
        output_file: the file to write or to replace; line breaks within a translation become spaces.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        prefix_file: a file with what each translation must begin with, line by line; empty lines allow anything.
        output_format: `"text"` or `"jsonl"`; see `candidate_format`. With `n_best`, each text has that many lines.
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
    write = candidate_format(output_format, settings.n_best)
    pipe = settings.pipeline(model, tokenizer)
    source, parts = Path(input_file), Parts(Path(output_file))
    state = process_state(model)
    prefix = None if prefix_file is None else Path(prefix_file)

    def begin() -> tuple[Job, list[int], list[int]]:
        """Check the complete input; the job, its unfinished chunks, and where the chunks of prefixes start."""
        if parts.output.exists() and parts.output.samefile(source):
            raise ValueError(f"output_file must differ from input_file, got {str(source)!r} for both.")
        described = plain_options(pipe, settings) | ({} if output_format == "text" else {"format": output_format})
        lines, digest, starts = index_lines(source, chunk_size)
        prefix_starts: list[int] = []
        if prefix is not None:
            prefixes, described["prefix_file"], prefix_starts = index_lines(prefix, chunk_size)
            if prefixes != lines:
                raise ValueError(f"prefix_file must have one line per line of the input, {lines}, got {prefixes}.")
        job = Job(lines, digest, starts, chunk_size, fingerprint(model, tokenizer), described)
        parts.begin(job, restart)
        return job, parts.missing(job), prefix_starts

    job, missing, prefix_starts = call_on_main_process(begin)

    assigned = missing[state.process_index :: state.num_processes]
    done = (job.lines - sum(map(job.lines_of, missing))) // state.num_processes
    lines = range(done + sum(map(job.lines_of, assigned)))
    version = version_of(source)
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar(lines, progress if state.is_main_process else False, done))
        file = stack.enter_context(open_binary(source))
        prefixes_file = stack.enter_context(open_binary(prefix)) if prefix else None
        for number in assigned:
            first = number * chunk_size
            texts = read_chunk(file, job, number)
            if version_of(source) != version:
                raise ValueError(f"{source} must not change during the translation, but has been written.")
            prefixes = read_chunk(prefixes_file, replace(job, starts=prefix_starts), number) if prefixes_file else None
            candidates = translate_chunk(pipe, texts, settings, first, "line", bar.update, prefixes)
            parts.write(number, list(format_all(candidates, write, first)))
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


def index_lines(path: Path, chunk_size: int) -> tuple[int, str, list[int]]:
    """Read a file once: the number of lines, a digest, and the byte offset of each chunk.

    Raises:
        ValueError: a line is not UTF-8.
    """
    lines, position, starts, digest = 0, 0, [], hashlib.sha256()
    with open_binary(path) as file:
        for line in file:
            if lines % chunk_size == 0:
                starts.append(position)
            lines += 1
            position += len(line)
            digest.update(line)
            decode_line(line, str(path), lines)
    return lines, digest.hexdigest(), starts


def read_chunk(file: BinaryIO, job: Job, number: int) -> list[str]:
    """Read the lines of one chunk, which must not be before the position of the file: see `open_binary`."""
    count = job.lines_of(number)
    file.seek(job.starts[number])
    texts = list(islice(read_lines(file, file.name, number * job.chunk_size + 1), count))
    if len(texts) != count:
        raise ValueError(f"{file.name} must not change during the translation, but has become shorter.")
    return texts


def version_of(source: Path) -> tuple[int, int]:
    """Size and modification time of a file, which is read ahead, so that a change may not affect what is read."""
    status = source.stat()
    return status.st_size, status.st_mtime_ns


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

"""Resumable translation of a file by one or more processes, in chunks of lines: see `jobs`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..pipeline_random_transformer import CHUNK_SIZE, Seq2SeqPipeline, check_positive, source_limit
from ..utils.compressed_files import check_plain_text, open_binary
from ..utils.text import decode_line, read_lines
from .formats import candidate_format, format_all
from .jobs import check_output, fingerprint, run_job, select_chunks
from .parts import Job
from .translation import Candidate, TranslationOptions, translate_chunk


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

    Under `accelerate launch` (or `torchrun`), every process calls this function. The processes need a shared file
    system with file locks. Each claims the next chunk until all are done, those of killed processes included. When any
    of them returns, the output is complete. Processes that are started separately, even later, share the work too if
    their arguments are the same and none of them restarts.

    After an interruption, the same call resumes with the unfinished chunks, with any number of processes, and produces
    the same output. Input, model, tokenizer and options must be the same; the device and, unless sampling,
    `max_batch_tokens` may differ.

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
        progress: show a progress bar on stderr in the first process, which counts chunks that others have claimed as
            done; `None` shows it after a delay.
        **options: those of `translate`. Sampling is reproducible after an interruption only with a `seed`.

    Raises:
        ValueError: an argument is invalid, a line is not UTF-8 or too long for the model, the parts of an earlier call
            belong to a different job, or their manifest is damaged.
        OSError: a file cannot be read or written.
    """
    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    write = candidate_format(output_format, settings.n_best)
    source, output = Path(input_file), Path(output_file)
    prefix = None if prefix_file is None else Path(prefix_file)
    translation = FileTranslation(source, prefix, settings.pipeline(model, tokenizer), settings, chunk_size, write)

    def describe() -> Job:
        check_plain_text("input_file", source)
        check_output(output, input_file=source, prefix_file=prefix)
        return translation.describe(output_format)

    run_job(output, model, describe, translation.chunks, restart=restart, progress=progress)


@dataclass(frozen=True)
class FileTranslation:
    """The translation of a file, in chunks of lines.

    Attributes:
        source: the file to translate.
        prefix: a file with what each translation must begin with, or `None`.
        pipe: the pipeline with `settings`.
        settings: the options of the translation.
        chunk_size: lines of a chunk.
        write: converts the candidates of a text, with its index from 0, to lines.
    """

    source: Path
    prefix: Path | None
    pipe: Seq2SeqPipeline
    settings: TranslationOptions
    chunk_size: int
    write: Callable[[int, Sequence[Candidate]], list[str]]

    def describe(self, output_format: str) -> Job:
        """Read the complete input, and describe the job.

        Raises:
            ValueError: a line is not UTF-8, there are more or fewer prefixes than lines, or an option is an object that
                cannot be compared after an interruption.
        """
        options = plain_options(self.pipe, self.settings)
        if output_format != "text":
            options["format"] = output_format
        lines, digest, starts = index_lines(self.source, self.chunk_size)
        if self.prefix is not None:
            prefixes, options["prefix_file"], _ = index_lines(self.prefix, self.chunk_size)
            if prefixes != lines:
                raise ValueError(f"prefix_file must have one line per line of the input, {lines}, got {prefixes}.")
        model = fingerprint(self.pipe.model, self.pipe.tokenizer)
        return Job(lines, digest, starts, self.chunk_size, model, options)

    def chunks(self, job: Job, numbers: Iterator[int], update: Callable[[int], Any]) -> Iterator[tuple[int, list[str]]]:
        """Translate the chunks with these numbers; yields the number and the lines of each.

        Raises:
            ValueError: a text is too long, or a file has changed since the job was described.
        """
        version = version_of(self.source)
        with ExitStack() as stack:
            file = stack.enter_context(open_binary(self.source))
            for number, prefixes in self.prefix_chunks(job, numbers, stack):
                texts = read_chunk(file, job, number)
                if version_of(self.source) != version:
                    raise ValueError(f"{self.source} must not change during the translation, but has been written.")
                first = number * self.chunk_size
                candidates = translate_chunk(self.pipe, texts, self.settings, first, "line", update, prefixes)
                yield number, list(format_all(candidates, self.write, first))

    def prefix_chunks(
        self, job: Job, numbers: Iterator[int], stack: ExitStack
    ) -> Iterator[tuple[int, list[str] | None]]:
        """The numbers and the prefixes of chunks, from a file that `stack` closes; `None` without prefixes."""
        if self.prefix is None:
            return ((number, None) for number in numbers)
        name = str(self.prefix)
        return select_chunks(read_lines(stack.enter_context(open_binary(self.prefix)), name), job, numbers, name)


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
    if pipe.option(options.generate_options, "do_sample"):
        values["max_batch_tokens"] = options.max_batch_tokens  # the texts of a batch share random numbers
    for name, value in values.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{name} must be a plain value for translate_file, got {value!r}.") from error
    return values

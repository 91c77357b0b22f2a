"""Translates or scores files in chunks. Calls are resumable, and the processes of a launcher share the chunks.

Each finished chunk is a part, a file in the folder `<output>.parts`, beside the record of the job (see `base/jobs.py`).
The output is written when all parts exist. All files are written atomically, so an interruption at any time leaves only
complete files.
"""

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.compressed_files import write_binary
from ..base.digests import bytes_digest, json_digest, model_digest
from ..base.distributed import call_on_main_process, exclusive
from ..base.errors import reraise_as_value_error
from ..base.files import (
    PARTS_SUFFIX,
    StrPath,
    encode_lines,
    remove_if_empty,
    remove_written,
    work_folder,
    write_atomically,
)
from ..base.formats import check_plain_text
from ..base.jobs import Job
from ..base.progress import Update, progress_bar
from ..base.saved_files import JOB_LOCK, JOB_RECORD
from ..base.streams import check_output, is_stream, stream_name
from ..data.readers import read_texts
from ..inputs_random_transformer import (
    CHUNK_SIZE,
    check_choice,
    check_positive,
    chunks,
    name_lines_in_errors,
)
from .candidates import Candidate, PrefixedText
from .translation import Translator, with_prefixes

OUTPUT_FORMATS = ("text", "jsonl")
TAB = "\t"
# The first line of a document in HTML, XML (such as TMX and XLIFF), SGML or WebVTT.
DOCUMENT = re.compile(r"\s*<(\?xml|!doctype|html|tmx|xliff|srcset|refset)\b|WEBVTT\b", re.IGNORECASE)
PART = r"\d{8,}\.[0-9a-f]{8}\.txt"  # the name of a finished chunk
POLLING_INTERVAL = 0.1  # seconds


def translate_file(
    input_file: StrPath,
    output_file: StrPath,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    prefix_file: StrPath | None = None,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Translate a UTF-8 file with one text per line; line n of the output translates line n of the input.

    Under `accelerate launch` (or `torchrun`), every process calls this function, and translates every n-th of the
    unfinished chunks. The processes need a shared file system. When any of them returns, the output is complete. Calls
    that are started separately cannot share a file: the second one is an error.

    After an interruption, the same call resumes with the unfinished chunks, with any number of processes, and produces
    the same output. Input, model, tokenizer and options must be the same; the device and, unless sampling,
    `max_batch_tokens` may differ.

    Args:
        input_file: the file to translate, which may be compressed; only a line feed ends a line.
        output_file: the file to write or to replace; line breaks within a translation become spaces.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        prefix_file: a file with the prefix of each translation, line by line; an empty line for no prefix.
        output_format: see `candidate_lines`. With the option `n_best`, a text has several lines.
        chunk_size: number of lines that are sorted by length together. If the process is killed, the translations of
            an unfinished chunk are lost.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay. The first process shows its own share.
        **options: the options of `translate`.

    Raises:
        ValueError: an argument is invalid; the input is not UTF-8 or changes; a text is too long, or has no prefix; the
            output is being written; or the parts of an earlier call belong to a different job.
        OSError: a file cannot be read or written.
    """
    check_choice(OUTPUT_FORMATS, output_format=output_format)
    translator = Translator(model, tokenizer, **options)
    prefix = None if prefix_file is None else Path(prefix_file)
    work = LineTranslation(Path(input_file), Path(output_file), model, translator, prefix, output_format)
    write_in_parts(work, chunk_size=chunk_size, restart=restart, progress=progress)


def read_plain_texts(path: Path) -> Iterator[str]:
    """The lines of a text file; raises a `ValueError` if the first line is the beginning of a document."""
    for number, text in enumerate(read_texts(path)):
        if not number and DOCUMENT.match(text):
            raise ValueError(
                f"{stream_name(path)} must be one text per line, or HTML with --format html, got a document that "
                f"begins with {text[:30]!r}."
            )
        yield text


def candidate_lines(
    candidates: Iterable[Sequence[Candidate]],
    output_format: str,
    n_best: int | None,
    first: int = 0,
    *,
    confidence: bool = False,
) -> Iterator[str]:
    """One line for each candidate of consecutive texts.

    Args:
        candidates: the candidates of each text.
        output_format: `"text"` or `"jsonl"`. With `"text"`, a line contains the translation, with `confidence` also a
            tab and the confidence. With `n_best`, it is `index ||| translation ||| score`, as in Moses. With
            `"jsonl"`, a line is an object with `index`, `translation` and `tokens` (the generated tokens, including
            special tokens). `n_best` adds `score`, `confidence` adds `confidence` and `words` (each word and its
            probability), and `problems` is added if there are any.
        n_best: see `TranslationOptions`.
        first: index of the first text, from 0.
        confidence: whether candidates have a confidence; a text that the model has not translated has none.
    """
    for index, alternatives in enumerate(candidates, start=first):
        for candidate in alternatives:
            if output_format == "jsonl":
                fields = {"index": index, "translation": candidate.translation}
                if n_best is not None:
                    fields["score"] = candidate.score
                if confidence:
                    fields |= {"confidence": candidate.confidence, "words": candidate.words}
                if candidate.problems:
                    fields["problems"] = candidate.problems
                yield json.dumps({**fields, "tokens": candidate.tokens}, ensure_ascii=False)
                continue
            line = candidate.translation
            if n_best is not None:
                line = f"{index} ||| {line} ||| {candidate.score:.6f}"
            if confidence:
                column = "" if candidate.confidence is None else f"{candidate.confidence:.4f}"
                line = f"{line.replace(TAB, ' ')}{TAB}{column}"
            yield line


def plain_options(translator: Translator) -> dict[str, Any]:
    """The options that determine the translations, as JSON values.

    Raises:
        ValueError: an option is an object that cannot be compared after an interruption.
    """
    options = translator.effective_options()
    for name, value in options.items():
        with reraise_as_value_error(f"{name} must be a plain value for translate_file, got {value!r}"):
            json.dumps(value)
    if "glossary" in options:
        options["glossary"] = json_digest(options["glossary"])
    return options


# The parts of an output


@dataclass
class LineWork(ABC):
    """Base of jobs that convert the items of an input to lines of an output, in chunks; see `write_in_parts`.

    Attributes:
        source: the input; as a string, its name in errors.
        output: the file to write or to replace.
        model: the model, whose device determines how the processes communicate.
        unit: what the progress bar counts.
    """

    source: Any
    output: Path
    model: PreTrainedModel

    unit: ClassVar[str] = "text"

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Check the arguments, and return the settings that determine the output. Called in the first process only."""

    @abstractmethod
    def read(self) -> Iterator[Any]:
        """The items of the input as JSON values. They are read once to be checked, and again to be processed."""

    @abstractmethod
    def lines(self, chunk: list[Any], first: int, update: Update) -> Iterable[str]:
        """The lines for a chunk, given the index of its first item and a function that counts finished items."""


@dataclass
class LineTranslation(LineWork):
    """The translations of the lines of a file; see `translate_file` for the arguments."""

    translator: Translator
    prefix_file: Path | None
    output_format: str

    def describe(self) -> dict[str, Any]:
        """Check the files, and return the settings that determine the translations."""
        check_plain_text("input_file", self.source)
        check_plain_text("prefix_file", self.prefix_file)
        check_output("output_file", self.output, input_file=self.source, prefix_file=self.prefix_file)
        digest = model_digest(self.model, self.translator.pipe.tokenizer)
        return {"model": digest, **plain_options(self.translator), "format": self.output_format}

    def read(self) -> Iterator[PrefixedText]:
        """The lines with the prefixes of their translations."""
        prefixes = None if self.prefix_file is None else read_texts(self.prefix_file)
        return with_prefixes(read_plain_texts(self.source), prefixes, "prefix_file")

    def lines(self, chunk: list[PrefixedText], first: int, update: Update) -> Iterator[str]:
        """The lines of the candidates."""
        options = self.translator.options
        candidates = self.translator.translate_rows(chunk, first, update)
        return candidate_lines(candidates, self.output_format, options.n_best, first, confidence=options.confidence)


def write_in_parts(work: LineWork, *, chunk_size: int, restart: bool, progress: bool | None) -> None:
    """Write a file in chunks, or resume an earlier call.

    Args:
        work: computes the lines.
        chunk_size: items of a chunk.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay.

    Raises:
        ValueError: the output is being written, the input changes, or the parts belong to a different job.
        OSError: a file cannot be written.
    """
    check_positive(chunk_size=chunk_size)
    state = process_state(work.model.device)
    inputs, digests = call_on_main_process(lambda: inputs_and_digests(work, chunk_size))
    parts = Parts(work.output, inputs, digests)
    message = f"output_file must not be in use, got {str(work.output)!r} with another call in progress."
    with exclusive(parts.lock_file, message):
        missing = call_on_main_process(lambda: parts.begin(restart))
        mine = set(missing[state.process_index :: state.num_processes])
        share = sum(min(chunk_size, inputs["lines"] - number * chunk_size) for number in mine)
        with progress_bar(share, progress if state.is_main_process else False, work.unit) as bar:
            try:
                write_chunks(work, parts, mine, chunk_size, bar.update)
            except BaseException:
                if state.num_processes == 1 and not parts.has_work():  # no process may finish a chunk
                    parts.remove_folder()
                raise
        call_on_main_process(parts.finish)


def inputs_and_digests(work: LineWork, chunk_size: int) -> tuple[dict[str, Any], list[str]]:
    """Check the output, and return the settings that determine it and the digest of each chunk of the input.

    Raises:
        ValueError: the output cannot be written, or an argument or the input is invalid.
    """
    if is_stream(work.output):
        raise ValueError(f"output_file must be a file, new or not, in a folder that exists, got {str(work.output)!r}.")
    check_parts(work.output)
    described = work.describe()
    lines = 0
    digests = []
    for chunk in chunks(work.read(), chunk_size):
        lines += len(chunk)
        digests.append(json_digest(chunk))
    return {**described, "chunk_size": chunk_size, "lines": lines, "input": json_digest(digests)}, digests


def check_parts(output: Path) -> None:
    """Raise a `ValueError` if the folder for the parts of an output belongs to another program or output."""
    folder = work_folder(output, PARTS_SUFFIX)
    if (folder / JOB_RECORD).exists() or not folder.exists():
        return
    for path in folder.iterdir():
        if path.name != JOB_LOCK and path.suffix != ".tmp":
            raise ValueError(
                f"{folder} must contain only the parts of {output.name}, got other files, such as {path.name}."
            )


def write_chunks(work: LineWork, parts: "Parts", numbers: set[int], chunk_size: int, update: Update) -> None:
    """Write the chunks with these numbers; the input is read in a single pass.

    Raises:
        ValueError: a chunk has changed since the beginning.
    """
    items = work.read()
    for number in range(max(numbers, default=-1) + 1):
        chunk = list(islice(items, chunk_size))
        if number in numbers:
            if json_digest(chunk) != parts.digests[number]:
                raise ValueError(f"the input must not change while {parts.output} is written, but has changed.")
            with name_lines_in_errors(str(work.source), number * chunk_size):
                parts.write(number, work.lines(chunk, number * chunk_size, update))


class Parts:
    """The folder of finished chunks, `<output>.parts`, which exists until the output is complete.

    Args:
        output: the output.
        inputs: the settings that determine the output. The names of the chunks contain a digest of them.
        digests: a digest of the texts of each chunk.
    """

    def __init__(self, output: Path, inputs: dict[str, Any], digests: Sequence[str]):
        self.output = Path(os.path.realpath(output))
        self.inputs = inputs
        self.digests = digests
        self.folder = work_folder(output, PARTS_SUFFIX)
        self.record_file = self.folder / JOB_RECORD
        self.lock_file = self.folder / JOB_LOCK
        self.key = json_digest(inputs)[:8]

    def path(self, number: int) -> Path:
        """The file of a finished chunk. Its name contains a digest of the settings that determine the output."""
        return self.folder / f"{number:08}.{self.key}.txt"

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Write a finished chunk: a line with the digest of its lines, and the lines."""
        content = b"".join(encode_lines(lines))
        write_atomically(self.path(number), [f"{bytes_digest(content)}\n".encode(), content], self.folder)

    def read(self, number: int) -> bytes:
        """The lines of a finished chunk; raises a `ValueError` if they have changed."""
        digest, _, content = self.path(number).read_bytes().partition(b"\n")
        if digest.decode(errors="replace") != bytes_digest(content):
            raise ValueError(
                f"{self.path(number)} must be unchanged since it was written, got other content: delete it."
            )
        return content

    def begin(self, restart: bool) -> list[int]:
        """Begin the job, or continue the job of an earlier call, in the first process.

        Returns:
            The numbers of the missing chunks.

        Raises:
            ValueError: the parts belong to another job or have changed, or the record is damaged.
        """
        job = Job(self.record_file)  # a damaged record is an error before anything is removed
        restart = restart or not self.has_work()  # a killed process may have left a record without a chunk
        if restart:
            self.remove()
        job.begin("lines", self.inputs, restart=restart)
        missing = []
        for number in range(len(self.digests)):
            if self.path(number).exists():
                self.read(number)  # a changed part is an error now, not after the others are written
            else:
                missing.append(number)
        return missing

    def finish(self) -> None:
        """Wait for the parts of all processes, join them to the output, and delete what the job has written."""
        numbers = range(len(self.digests))
        while not all(self.path(number).exists() for number in numbers):  # a killed process also ends the others
            time.sleep(POLLING_INTERVAL)
        write_binary(self.output, map(self.read, numbers), self.folder)
        self.remove_folder()

    def has_work(self) -> bool:
        """Whether a chunk of any job is finished."""
        return any(re.fullmatch(PART, path.name) for path in self.folder.glob("*.txt"))

    def remove_folder(self) -> None:
        """Delete what the job has written, and the folder unless it contains other files."""
        self.remove()
        self.lock_file.unlink(missing_ok=True)
        remove_if_empty(self.folder)

    def remove(self) -> None:
        """Delete what the job has written, the record last, except for the lock."""
        remove_written(self.folder, PART, re.escape(self.output.name), re.escape(JOB_RECORD))


def process_state(device: Any) -> Any:
    """Accelerate's state of the processes of a launcher."""
    # A later Trainer reuses this singleton, so the CPU is selected only for distributed processes on CPUs.
    return PartialState(cpu=torch.device(device).type == "cpu" and "LOCAL_RANK" in os.environ)

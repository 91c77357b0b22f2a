"""Files that are translated, or scored, in chunks: resumable, by the processes of one launcher.

Each finished chunk is a part, a file in the folder `<output>.parts`, beside the record of the job (see `jobs`). The
output is written when all parts exist. All files are written atomically, so an interruption at any time leaves only
complete files.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inputs_random_transformer import CHUNK_SIZE, check_positive, chunks, name_lines_in_errors, source_limit
from ..jobs import DAMAGED, Job
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..utils.atomic_files import write_atomically
from ..utils.compressed_files import check_plain_text, open_binary, write_binary
from ..utils.distributed import call_on_main_process, exclusive
from ..utils.text import encode_lines, read_lines
from .ensemble import vocabulary
from .translation import Candidate, TranslationOptions, progress_bar, translate_chunk

FORMATS = ("text", "jsonl")
POLLING_INTERVAL = 0.1  # seconds
# Fields of a configuration that do not affect the model.
PROVENANCE = ("_from_model_config", "_name_or_path", "architectures", "auto_map", "dtype", "transformers_version")

T = TypeVar("T")


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

    Under `accelerate launch` (or `torchrun`), every process calls this function, and translates every n-th of the
    unfinished chunks. The processes need a shared file system. When any of them returns, the output is complete. Calls
    that are started separately cannot share a file: the second one is an error.

    After an interruption, the same call resumes with the unfinished chunks, with any number of processes, and produces
    the same output. Input, model, tokenizer and options must be the same; the device and, unless sampling,
    `max_batch_tokens` may differ.

    Args:
        input_file: the file to translate, which may be compressed (`.gz`, `.zst`); only a line feed ends a line.
        output_file: the file to write or to replace; line breaks within a translation become spaces.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        prefix_file: a file with what each translation must begin with, line by line; empty lines allow anything.
        output_format: see `candidate_format`. With the option `n_best`, a text has several lines.
        chunk_size: lines that are sorted by length together, and lost if the process is killed before the chunk is
            complete.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay. The first process shows its own share.
        **options: those of `translate`.

    Raises:
        ValueError: an argument is invalid; the input is not UTF-8 or changes; a text is too long, or has no prefix; the
            output is being written; or the parts of an earlier call belong to a different job.
        OSError: a file cannot be read or written.
    """
    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    write = candidate_format(output_format, settings.n_best)
    pipe = settings.pipeline(model, tokenizer)
    source, prefix = Path(input_file), None if prefix_file is None else Path(prefix_file)

    def describe() -> dict[str, Any]:
        check_plain_text("input_file", source)
        check_output(output_file, input_file=source, prefix_file=prefix)
        inputs = {"model": model_digest(model, tokenizer), **plain_options(pipe, settings), "format": output_format}
        inputs["lines"], inputs["input"] = digest_lines(source)
        if prefix is not None:
            prefixes, inputs["prefix_file"] = digest_lines(prefix)
            if prefixes != inputs["lines"]:
                raise ValueError(
                    f"prefix_file must have one line per line of the input, {inputs['lines']}, got {prefixes}."
                )
        return inputs

    with (
        open_parts(output_file, describe, model.device, chunk_size, restart) as parts,
        open_lines(source) as lines,
        open_lines(prefix) as prefixes,
        progress_bar(range(parts.share), progress if parts.shows_progress else False) as bar,
    ):
        version = version_of(source)
        pairs = zip(lines or (), prefixes or repeat(""), strict=False)
        for number, chunk in parts.own(pairs, source):
            texts, given = zip(*chunk, strict=True)
            if version_of(source) != version:
                raise ValueError(f"{source} must not change during the translation, but has been written.")
            first = number * chunk_size
            with name_lines_in_errors(str(source), first):
                candidates = translate_chunk(pipe, texts, settings, first, given if prefix else None, bar.update)
            parts.write(number, format_all(candidates, write, first))


@contextmanager
def open_lines(path: Path | None) -> Iterator[Iterator[str] | None]:
    """The lines of a UTF-8 file, which may be compressed; `None` without a file."""
    if path is None:
        yield None
        return
    with open_binary(path) as file:
        yield read_lines(file, str(path))


def candidate_format(output_format: str, n_best: int | None) -> Callable[[int, Sequence[Candidate]], list[str]]:
    """The function that writes the candidates of a text, with its index from 0, one per line.

    `"text"`: the translation; with `n_best` as in Moses, `index ||| translation ||| score`. `"jsonl"`: an object with
    `index`, `translation`, `tokens` (the generated tokens with special ones) and, with `n_best`, `score`.

    Raises:
        ValueError: there is no such format.
    """
    if output_format not in FORMATS:
        raise ValueError(f"output_format must be one of {', '.join(FORMATS)}, got {output_format!r}.")
    if output_format == "jsonl":
        return lambda index, candidates: [json_line(index, candidate, n_best is not None) for candidate in candidates]
    if n_best is None:
        return lambda _, candidates: [candidate.translation for candidate in candidates]
    return lambda index, candidates: [f"{index} ||| {each.translation} ||| {each.score:.6f}" for each in candidates]


def json_line(index: int, candidate: Candidate, scored: bool) -> str:
    """A candidate as a JSON object."""
    fields: dict[str, Any] = {"index": index, "translation": candidate.translation}
    fields |= {"score": candidate.score} if scored else {}
    return json.dumps({**fields, "tokens": candidate.tokens}, ensure_ascii=False)


def format_all(
    candidates: Iterable[Sequence[Candidate]], write: Callable[[int, Sequence[Candidate]], list[str]], first: int = 0
) -> Iterator[str]:
    """The lines of the candidates of consecutive texts."""
    for index, alternatives in enumerate(candidates, start=first):
        yield from write(index, alternatives)


# What determines the output


def digest_lines(path: Path) -> tuple[int, str]:
    """The number of lines of a file and a digest of them.

    Raises:
        ValueError: a line is not UTF-8.
    """
    count, digest = 0, hashlib.sha256()
    with open_lines(path) as lines:
        for line in lines or ():
            count += 1
            digest.update(line.encode() + b"\n")
    return count, digest.hexdigest()


def version_of(source: Path) -> tuple[int, int]:
    """Size and modification time of a file, which is read ahead, so that a change may not affect what is read."""
    status = source.stat()
    return status.st_size, status.st_mtime_ns


def plain_options(pipe: Seq2SeqPipeline, options: TranslationOptions) -> dict[str, Any]:
    """The options that affect a translation, as values of JSON.

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


def model_digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
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


def check_output(output: str | PathLike, **inputs: Path | None) -> None:
    """Raise a `ValueError` if the output is one of these inputs, which it would replace."""
    for name, path in inputs.items():
        if path is not None and Path(output).exists() and path.exists() and path.samefile(output):
            raise ValueError(f"output_file must differ from {name}, got {str(path)!r} for both.")


# The parts of an output


@contextmanager
def open_parts(
    output: str | PathLike, describe: Callable[[], dict[str, Any]], device: Any, chunk_size: int, restart: bool
) -> Iterator["Parts"]:
    """Begin to write a file in chunks, or resume an earlier call; write the file when the block has succeeded.

    Args:
        output: the file to write or to replace.
        describe: checks the complete input and returns what determines the output, with the number of `lines`; called
            in the first process only.
        device: the device of the model, which determines how the processes communicate.
        chunk_size: lines of a chunk.
        restart: discard the parts of an earlier call.

    Raises:
        ValueError: the output cannot be a file or is being written, or the parts of an earlier call belong to a
            different job.
        OSError: a file cannot be written.
    """
    state = process_state(device)
    parts = Parts(Path(output), chunk_size, state.process_index, state.num_processes)

    def check() -> dict[str, Any]:
        parts.check()
        return {**describe(), "chunk_size": chunk_size}

    inputs = call_on_main_process(check)
    with exclusive(parts.lock, f"output_file must not be in use, got {str(output)!r} with another call in progress."):
        parts.lines, parts.missing = call_on_main_process(lambda: parts.begin(inputs, restart))
        yield parts
        call_on_main_process(parts.finish)


class Parts:
    """The folder of finished chunks, `<output>.parts`, which exists until the output is complete; see `open_parts`.

    Args:
        output: the output.
        chunk_size: lines of a chunk.
        rank: the index of this process.
        world: the number of processes, each of which writes every n-th of the missing chunks.

    Raises:
        ValueError: the output cannot be a file.
    """

    def __init__(self, output: Path, chunk_size: int, rank: int = 0, world: int = 1):
        # Next to the target of a symbolic link: renaming requires the same file system.
        self.output = Path(os.path.realpath(output))
        if not self.output.parent.is_dir() or (self.output.exists() and not self.output.is_file()):
            raise ValueError(f"output_file must be a file, new or not, in a folder that exists, got {str(output)!r}.")
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self.record, self.lock = self.folder / "job.json", self.folder / "job.lock"
        self.chunk_size, self.rank, self.world = chunk_size, rank, world
        self.lines, self.missing = 0, list[int]()

    def path(self, number: int) -> Path:
        """The file of a finished chunk."""
        return self.folder / f"{number:08}.txt"

    def paths(self, lines: int, chunk_size: int) -> list[Path]:
        """The files of all chunks of an input."""
        return [self.path(number) for number in range(-(-lines // chunk_size))]

    @property
    def mine(self) -> list[int]:
        """The numbers of the chunks of this process."""
        return self.missing[self.rank :: self.world]

    @property
    def share(self) -> int:
        """The number of lines of this process."""
        return sum(map(self.size, self.mine))

    @property
    def shows_progress(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    def size(self, number: int) -> int:
        """The number of lines of a chunk; only the last chunk may be shorter."""
        return min(self.chunk_size, self.lines - number * self.chunk_size)

    def check(self) -> None:
        """Raise a `ValueError` if the folder belongs to something else."""
        if self.folder.exists() and not self.record.exists():
            others = [path for path in self.folder.iterdir() if path != self.lock and not self.is_temporary(path)]
            self.check_none(others)

    def check_none(self, others: Sequence[Path]) -> None:
        """Raise a `ValueError` if there are files of something else."""
        if others:
            raise ValueError(
                f"{self.folder} must contain only the parts of {self.output.name}, got other files, such as "
                f"{others[0].name}."
            )

    def begin(self, inputs: dict[str, Any], restart: bool) -> tuple[int, list[int]]:
        """Begin the job, or continue that of an earlier call, in the first process.

        Returns:
            The number of lines, and the numbers of the missing chunks.

        Raises:
            ValueError: the parts belong to another job, or the record is damaged.
        """
        try:
            job = Job(self.record)
        except ValueError as error:  # whose advice does not apply: nothing says which parts belong to the job
            message = str(error).removesuffix(DAMAGED)
            raise ValueError(f"{message}delete the folder to start from the first line.") from error
        earlier = job.stages["lines"].inputs if "lines" in job.stages else {}
        if restart and earlier:
            try:
                self.remove(self.paths(earlier["lines"], earlier["chunk_size"]))
            except (KeyError, TypeError, ZeroDivisionError) as error:
                raise ValueError(
                    f"{self.record} must have the lines of the job, got none: delete the folder."
                ) from error
        paths = self.paths(inputs["lines"], self.chunk_size)
        if restart or not earlier:
            self.check_none([path for path in paths if path.exists()])
        job.begin("lines", inputs, restart=restart)
        return inputs["lines"], [number for number, path in enumerate(paths) if not path.exists()]

    def own(self, items: Iterable[T], name: object) -> Iterator[tuple[int, list[T]]]:
        """Read the input in a single pass, and yield the numbers and the chunks of this process.

        Raises:
            ValueError: the input has become shorter; the message contains `name`.
        """
        mine = iter(self.mine)
        wanted = next(mine, None)
        for number, chunk in enumerate(chunks(items, self.chunk_size) if wanted is not None else ()):
            if number == wanted:
                if len(chunk) != self.size(number):
                    break
                yield number, chunk
                wanted = next(mine, None)
                if wanted is None:
                    return
        if wanted is not None:
            raise ValueError(f"{name} must not change while it is read, but has become shorter.")

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Write the part of a finished chunk."""
        write_atomically(self.path(number), encode_lines(lines), self.folder)

    def finish(self) -> None:
        """Wait for the parts of all processes, join them to the output, and delete what the job has written."""
        paths = self.paths(self.lines, self.chunk_size)
        while not all(path.exists() for path in paths):  # a killed process also ends the others: see its launcher
            time.sleep(POLLING_INTERVAL)
        write_binary(self.output, (block for path in paths for block in read_blocks(path)), self.folder)
        self.remove(paths)
        self.record.unlink()
        self.lock.unlink()
        with suppress(OSError):  # contains other files
            self.folder.rmdir()

    def remove(self, paths: Iterable[Path]) -> None:
        """Delete these parts and the temporary files of interrupted writes."""
        for path in paths:
            path.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if self.is_temporary(path):
                path.unlink()

    def is_temporary(self, path: Path) -> bool:
        """Whether a file is a temporary file of `write_atomically` in this folder."""
        name = re.fullmatch(r"(.+)\.[0-9a-f]{8}\.tmp", path.name)
        return name is not None and bool(
            name[1] in (self.output.name, self.record.name) or re.fullmatch(r"\d{8,}\.txt", name[1])
        )


def read_blocks(path: Path, size: int = 2**20) -> Iterator[bytes]:
    """Read a file in blocks."""
    with open(path, "rb") as file:
        while block := file.read(size):
            yield block


def process_state(device: Any) -> Any:
    """Accelerate's state of the processes of a launcher."""
    from accelerate import PartialState  # not required for translating texts

    # A later Trainer reuses this singleton, so the CPU is selected only for distributed processes on CPUs.
    return PartialState(cpu=torch.device(device).type == "cpu" and "LOCAL_RANK" in os.environ)

"""Resumable translation of a file by one or more processes.

The input is divided into chunks of lines. Each finished chunk is a part, a file in the folder `<output>.parts`,
together with a manifest that describes the job. The output is written when all parts exist. All files are written
atomically, so an interruption at any time leaves only complete files.
"""

import hashlib
import json
import os
import re
import reprlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..pipeline_random_transformer import CHUNK_SIZE, Seq2SeqPipeline, check_positive, source_limit
from ..utils.files import write_atomically
from ..utils.text import decode_line, read_lines
from .lines import encode_lines
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
    from accelerate import PartialState  # optional for translating texts

    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    pipe = settings.pipeline(model, tokenizer)
    source, parts = Path(input_file), Parts(Path(output_file))
    # A later Trainer reuses this singleton, so the CPU is selected only for distributed processes on CPUs.
    state = PartialState(cpu=model.device.type == "cpu" and "LOCAL_RANK" in os.environ)
    job, missing = call_on_main_process(lambda: begin(source, parts, pipe, settings, chunk_size, restart))

    mine = missing[state.process_index :: state.num_processes]
    done = (job.lines - sum(map(job.lines_of, missing))) // state.num_processes
    lines = range(done + sum(map(job.lines_of, mine)))
    with progress_bar(lines, progress if state.is_main_process else False, done) as bar:
        for number in mine:
            texts = read_chunk(source, job, number)
            first = number * chunk_size
            parts.write(number, translate_chunk(pipe, texts, settings.seed, first, "line", bar.update))
    if state.is_main_process:
        # Not a barrier, because the backends' barriers time out after some minutes.
        wait_until(lambda: not parts.missing(job))
        parts.join(job)
    wait_until(lambda: not parts.manifest.exists())


@dataclass(frozen=True)
class Job:
    """The content of the manifest: input, model and options of a translation."""

    lines: int
    sha256: str  # of the input
    starts: list[int]  # byte offset of each chunk
    chunk_size: int  # in lines
    model: str  # fingerprint of model and tokenizer
    options: dict[str, Any]

    def lines_of(self, number: int) -> int:
        """The number of lines of a chunk; only the last chunk may be shorter."""
        return min(self.chunk_size, self.lines - number * self.chunk_size)

    @classmethod
    def read(cls, manifest: Path) -> "Job":
        """Read a manifest; raises a one-line `ValueError` if it is damaged."""
        try:
            content = json.loads(manifest.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{manifest} must be JSON, got {type(error).__name__}. {DAMAGED}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{manifest} must contain a JSON object, got {type(content).__name__}. {DAMAGED}")
        for field, (is_valid, allowed) in MANIFEST.items():
            if not is_valid(content.get(field)):
                value = reprlib.repr(content.get(field))
                raise ValueError(f"{field} in {manifest} must be {allowed}, got {value}. {DAMAGED}")
        return cls(**{field: content[field] for field in MANIFEST})

    def check_resumes(self, earlier: "Job", folder: Path) -> None:
        """Raise a `ValueError` unless the parts of `earlier` are parts of this job."""
        current = Job(**json.loads(json.dumps(asdict(self))))  # normalized as by writing and reading
        if earlier == current:
            return
        differences = [name for name in ("chunk_size", "model") if getattr(earlier, name) != getattr(current, name)]
        if (earlier.sha256, earlier.lines) != (current.sha256, current.lines):
            differences.append("input")
        before, now = earlier.options, current.options
        differences += [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        raise ValueError(
            f"{folder} must contain the parts of the same translation, got parts of one that differs in "
            f"{', '.join(differences)}: use the same input, model and options to resume, or restart."
        )


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# The check of each field of a manifest, and a description of the valid values.
MANIFEST: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lines": (is_count, "an integer of at least 0"),
    "sha256": (lambda value: isinstance(value, str), "a string"),
    "starts": (lambda value: isinstance(value, list) and all(map(is_count, value)), "a list of integers of at least 0"),
    "chunk_size": (lambda value: is_count(value) and value > 0, "a positive integer"),
    "model": (lambda value: isinstance(value, str), "a string"),
    "options": (lambda value: isinstance(value, dict), "an object"),
}
DAMAGED = "The manifest is damaged: delete the folder to translate from the first line."


class Parts:
    """The folder of finished chunks, `<output>.parts`, which exists until the output is complete.

    Raises:
        ValueError: the output cannot be a file.
    """

    def __init__(self, output: Path):
        # Next to the target of a symbolic link: renaming requires the same file system.
        self.output = Path(os.path.realpath(output))
        if not self.output.parent.is_dir() or (self.output.exists() and not self.output.is_file()):
            raise ValueError(f"output_file must be a file, new or not, in a folder that exists, got {str(output)!r}.")
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self.manifest = self.folder / "manifest.json"

    def path(self, number: int) -> Path:
        """The file of a finished chunk."""
        return self.folder / f"{number:08}.txt"

    def missing(self, job: Job) -> list[int]:
        """The numbers of the unfinished chunks."""
        return [number for number in range(len(job.starts)) if not self.path(number).exists()]

    def begin(self, job: Job, restart: bool) -> None:
        """Create the folder, or reuse that of an earlier call for the same job; after `restart`, for any job."""
        if self.manifest.exists():
            earlier = Job.read(self.manifest)
            if not restart:
                return job.check_resumes(earlier, self.folder)
            self.remove_parts(earlier)
            others = [path for path in map(self.path, range(len(job.starts))) if path.exists()]
        else:
            self.folder.mkdir(exist_ok=True)
            others = [path for path in self.folder.iterdir() if not self.is_temporary(path)]
        if others:
            raise ValueError(
                f"{self.folder} must contain only the parts of {self.output.name}, got other files, such as "
                f"{others[0].name}."
            )
        return write_atomically(self.manifest, [json.dumps(asdict(job)).encode()], self.folder)

    def write(self, number: int, translations: list[str]) -> None:
        """Write the part of a finished chunk."""
        write_atomically(self.path(number), encode_lines(translations), self.folder)

    def join(self, job: Job) -> None:
        """Concatenate the parts into the output, then delete them, the manifest last. Other files are kept."""
        paths = map(self.path, range(len(job.starts)))
        write_atomically(self.output, (block for path in paths for block in read_blocks(path)), self.folder)
        self.remove_parts(job)
        self.manifest.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def remove_parts(self, job: Job) -> None:
        """Delete the parts of a job and the temporary files of interrupted writes."""
        for number in range(len(job.starts)):
            self.path(number).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if self.is_temporary(path):
                path.unlink()

    def is_temporary(self, path: Path) -> bool:
        """Whether a file is a temporary file of `write_atomically` in this folder."""
        name = re.fullmatch(r"(.+)\.[0-9a-f]{8}\.tmp", path.name)
        return name is not None and bool(
            name[1] in (self.output.name, self.manifest.name) or re.fullmatch(r"\d{8,}\.txt", name[1])
        )


def call_on_main_process(function: Callable[[], Any]) -> Any:
    """Call a function in the first process, and return its result, or raise its error, in every process."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [function()]
        except (ValueError, OSError) as error:
            outcome = [error]
    [result] = broadcast_object_list(outcome)
    if isinstance(result, Exception):
        raise result
    return result


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
    return Job(lines, digest.hexdigest(), starts, chunk_size, fingerprint(pipe), plain_options(pipe, options))


def read_chunk(source: Path, job: Job, number: int) -> list[str]:
    """Read the lines of one chunk."""
    count = job.lines_of(number)
    with open(source, "rb") as file:
        file.seek(job.starts[number])
        texts = list(islice(read_lines(file, str(source), number * job.chunk_size + 1), count))
    if len(texts) != count:
        raise ValueError(f"{source} must not change during the translation, but has become shorter.")
    return texts


def read_blocks(path: Path, size: int = 2**20) -> Iterator[bytes]:
    """Read a file in blocks."""
    with open(path, "rb") as file:
        while block := file.read(size):
            yield block


def fingerprint(pipe: Seq2SeqPipeline) -> str:
    """A digest of weights, configurations, vocabulary and special tokens."""
    model, tokenizer = pipe.model, pipe.tokenizer
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

"""Translation of a whole file by one process or many, that goes on where it stopped.

The input is cut into chunks of so many lines. Each finished chunk becomes a part, a file in the folder
`<output>.parts`, and a manifest beside the parts says what they are parts of. When all are there, they become the
output. Every file appears complete or not at all, so that a kill at any moment leaves nothing half done behind.
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

from ..pipeline_random_transformer import source_limit
from .lines import decode_line, encode_lines, read_lines, write_atomically
from .texts import CHUNK_SIZE, Translator, check_positive, progress_bar

SECONDS_BETWEEN_LOOKS = 0.1
# What a configuration tells about where it has been, which makes no other model.
HISTORY = ("_from_model_config", "_name_or_path", "architectures", "auto_map", "dtype", "transformers_version")


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
    """Translate a file of UTF-8, a text a line, into another: line n of the output translates line n of the input.

    Under `accelerate launch` (or `torchrun`) every process calls this. The chunks are dealt out to them in turn; the
    processes need a file system in common. When one of them returns, the output is complete.

    After a kill the same call goes on behind the chunks that are finished, with any number of processes, and gives
    the same output as without the kill. What decides about the output must be the same: the input, the model, the
    tokenizer and the options. How large batches are, and where the model runs, may change. Let no two calls write the
    same output at a time.

    Args:
        input_file: the file to translate; only a line feed ends a line.
        output_file: the file to write or to replace; line breaks within a translation become spaces.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        chunk_size: lines of a chunk: sorted by length together, and lost when a process is killed before the last.
        restart: translate from the first line again. Of the folder `<output>.parts`, only the files that its manifest
            lists are deleted.
        progress: draw a progress bar on stderr, which counts the lines that fall to the first process; `None` draws it
            if there is time to look at it.
        **options: those of `translate`. Sampling is the same after a kill if there is a `seed`.

    Raises:
        ValueError: an argument is not allowed, a line is not UTF-8 or too long for the model, the parts of an
            earlier call are of something else, or their manifest is damaged.
        OSError: a file cannot be read or written.
    """
    from accelerate import PartialState  # not at the top: texts are translated without it

    check_positive(chunk_size=chunk_size)
    translator = Translator(model, tokenizer, **options)
    source, parts = Path(input_file), Parts(Path(output_file))
    # The state stays, and a later trainer finds it: only processes that share the work on CPUs are told to be on them.
    state = PartialState(cpu=model.device.type == "cpu" and "LOCAL_RANK" in os.environ)
    job, missing = first_process_decides(lambda: begin(source, parts, translator, chunk_size, restart))

    mine = missing[state.process_index :: state.num_processes]
    done = (job.lines - sum(map(job.lines_of, missing))) // state.num_processes
    lines = range(done + sum(map(job.lines_of, mine)))
    with progress_bar(lines, progress if state.is_main_process else False, done) as bar:
        for number in mine:
            texts = read_chunk(source, job, number)
            parts.write(number, translator(texts, job.first_line(number), bar.update))
    if state.is_main_process:
        # No barrier: those of the backends give up waiting after some minutes.
        wait_until(lambda: not parts.missing(job))
        parts.join(job)
    wait_until(lambda: not parts.manifest.exists())


@dataclass(frozen=True)
class Job:
    """What is translated with what: the manifest of the parts."""

    lines: int
    sha256: str  # of the input
    starts: list[int]  # the byte at which each chunk begins
    chunk_size: int  # in lines
    model: str  # the fingerprint of model and tokenizer
    options: dict[str, Any]

    def first_line(self, number: int) -> int:
        """The number of a chunk's first line, counted from 1."""
        return number * self.chunk_size + 1

    def lines_of(self, number: int) -> int:
        """How many lines a chunk has: all the same number, but for the last."""
        return min(self.chunk_size, self.lines - number * self.chunk_size)

    @classmethod
    def read(cls, manifest: Path) -> "Job":
        """The job of a manifest; raises a one-line `ValueError` where the file is not one."""
        try:
            content = json.loads(manifest.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{manifest} must be JSON, got {type(error).__name__}. {DAMAGED}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{manifest} must hold a JSON object, got {type(content).__name__}. {DAMAGED}")
        for field, (is_valid, allowed) in MANIFEST.items():
            if not is_valid(content.get(field)):
                found = reprlib.repr(content.get(field))
                raise ValueError(f"{field} in {manifest} must be {allowed}, got {found}. {DAMAGED}")
        return cls(**{field: content[field] for field in MANIFEST})

    def refuse_if_different(self, earlier: "Job", folder: Path) -> None:
        """Raise a `ValueError` unless the parts of `earlier` are parts of this job."""
        mine = Job(**json.loads(json.dumps(asdict(self))))  # as it reads after having been written
        if earlier == mine:
            return
        differences = [name for name in ("chunk_size", "model") if getattr(earlier, name) != getattr(mine, name)]
        if (earlier.sha256, earlier.lines) != (mine.sha256, mine.lines):
            differences.append("input")
        before, now = earlier.options, mine.options
        differences += [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        raise ValueError(
            f"{folder} holds the beginnings of a translation that differs in {', '.join(differences)}: "
            "give the same again to go on, or restart to begin anew."
        )


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# What a manifest holds for each field of a job: the test of a value, and the values allowed in words.
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
    """The folder of finished chunks, `<output>.parts`, which exists as long as the output is not complete.

    Raises:
        ValueError: the output cannot be a file.
    """

    def __init__(self, output: Path):
        # Beside what a link leads to: only within a file system can a part become the output.
        self.output = Path(os.path.realpath(output))
        if not self.output.parent.is_dir() or (self.output.exists() and not self.output.is_file()):
            raise ValueError(f"output_file must be a file, new or not, in a folder that exists, got {str(output)!r}.")
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self.manifest = self.folder / "manifest.json"

    def path(self, number: int) -> Path:
        """Where the translation of a chunk is as soon as it is finished."""
        return self.folder / f"{number:08}.txt"

    def missing(self, job: Job) -> list[int]:
        """The numbers of the chunks that are not finished."""
        return [number for number in range(len(job.starts)) if not self.path(number).exists()]

    def begin(self, job: Job, restart: bool) -> None:
        """Create the folder, or use that of an earlier call: for the same job, or for any job after a restart."""
        if self.manifest.exists():
            earlier = Job.read(self.manifest)
            if not restart:
                return job.refuse_if_different(earlier, self.folder)
            self.remove_parts(earlier)
            others = [path for path in map(self.path, range(len(job.starts))) if path.exists()]
        else:
            self.folder.mkdir(exist_ok=True)
            others = [path for path in self.folder.iterdir() if not self.is_temporary(path)]
        if others:
            raise ValueError(
                f"{self.folder} must be free for the parts of {self.output.name}, but holds other files, "
                f"such as {others[0].name}."
            )
        return write_atomically(self.manifest, [json.dumps(asdict(job)).encode()], self.folder)

    def write(self, number: int, translations: list[str]) -> None:
        """Finish a chunk."""
        write_atomically(self.path(number), encode_lines(translations), self.folder)

    def join(self, job: Job) -> None:
        """Make the output of all parts, then remove the folder: the manifest last, and no file that is not listed."""
        paths = map(self.path, range(len(job.starts)))
        write_atomically(self.output, (block for path in paths for block in blocks(path)), self.folder)
        self.remove_parts(job)
        self.manifest.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def remove_parts(self, job: Job) -> None:
        """Delete the parts that a job's manifest lists, and what a kill has left of files being written."""
        for number in range(len(job.starts)):
            self.path(number).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if self.is_temporary(path):
                path.unlink()

    def is_temporary(self, path: Path) -> bool:
        """Whether `write_atomically` has given a file its name here, until it was to be complete."""
        name = re.fullmatch(r"(.+)\.[0-9a-f]{8}\.tmp", path.name)
        return name is not None and bool(
            name[1] in (self.output.name, self.manifest.name) or re.fullmatch(r"\d{8,}\.txt", name[1])
        )


def first_process_decides(decide: Callable[[], Any]) -> Any:
    """What the first process decides, in every process; also what it refuses."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [decide()]
        except (ValueError, OSError) as error:
            outcome = [error]
    [decision] = broadcast_object_list(outcome)
    if isinstance(decision, Exception):
        raise decision
    return decision


def begin(source: Path, parts: Parts, translator: Translator, chunk_size: int, restart: bool) -> tuple[Job, list[int]]:
    """Look through the whole input, then say what the job is and which of its chunks are not finished."""
    if parts.output.exists() and parts.output.samefile(source):
        raise ValueError(f"output_file must differ from input_file, got {str(source)!r} for both.")
    job = survey(source, translator, chunk_size)
    parts.begin(job, restart)
    return job, parts.missing(job)


def survey(source: Path, translator: Translator, chunk_size: int) -> Job:
    """Describe the job; raises a `ValueError` at the first line that is not UTF-8."""
    lines, position, starts, digest = 0, 0, [], hashlib.sha256()
    with open(source, "rb") as file:
        for line in file:
            if lines % chunk_size == 0:
                starts.append(position)
            lines += 1
            position += len(line)
            digest.update(line)
            decode_line(line, str(source), lines)
    return Job(lines, digest.hexdigest(), starts, chunk_size, fingerprint(translator), plain_options(translator))


def read_chunk(source: Path, job: Job, number: int) -> list[str]:
    """The lines of one chunk."""
    count = job.lines_of(number)
    with open(source, "rb") as file:
        file.seek(job.starts[number])
        texts = list(islice(read_lines(file, str(source), job.first_line(number)), count))
    if len(texts) != count:
        raise ValueError(f"{source} must stay as it is while it is translated, but has become shorter.")
    return texts


def blocks(path: Path, size: int = 2**20) -> Iterator[bytes]:
    """A file, piece by piece."""
    with open(path, "rb") as file:
        while block := file.read(size):
            yield block


def fingerprint(translator: Translator) -> str:
    """A digest of what decides about a translation: weights, configurations, vocabulary, tokens around each text."""
    model, tokenizer = translator.model, translator.tokenizer
    described: list[Any] = [sorted(tokenizer.get_vocab().items()), tokenizer("")["input_ids"]]
    for config in (model.config, model.generation_config):
        described.append({name: value for name, value in config.to_dict().items() if name not in HISTORY})
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def plain_options(translator: Translator) -> dict[str, Any]:
    """The options that decide about a translation, as the manifest holds them.

    Raises:
        ValueError: an option is an object, of which nobody can tell after a kill whether it is the same.
    """
    # The limit in force: to cut there changes nothing in what has been translated without cutting.
    limit, _ = source_limit(translator.tokenizer, translator.positions, translator.max_source_tokens)
    options = {
        **translator.generate_options,
        "max_new_tokens": translator.max_new_tokens,
        "max_source_tokens": limit,
        "seed": translator.seed,
    }
    for name, value in options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{name} must be a plain value for translate_file, got {value!r}.") from error
    return options


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again; if another process dies, its launcher ends this one too."""
    while not condition():
        time.sleep(SECONDS_BETWEEN_LOOKS)

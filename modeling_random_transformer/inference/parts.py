"""The finished chunks of a file's translation or scoring, and the manifest that describes the job."""

import json
import os
import re
import reprlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..utils.atomic_files import write_atomically
from ..utils.compressed_files import write_binary
from ..utils.text import encode_lines
from .claims import Claims

DAMAGED = "The manifest is damaged: delete the folder to start from the first line."


@dataclass(frozen=True)
class Job:
    """The content of the manifest: input, model and options of a translation or of scoring."""

    lines: int
    sha256: str  # of the input
    starts: list[int]  # of each chunk: its byte offset, or the index of its first pair
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
        check_manifest(content, manifest)
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def check_resumes(self, earlier: "Job", folder: Path) -> None:
        """Raise a `ValueError` unless the parts of `earlier` are parts of this job."""
        current = Job(**json.loads(json.dumps(asdict(self))))  # normalized as by writing and reading
        if earlier == current:
            return
        differences = [name for name in ("chunk_size", "model") if getattr(earlier, name) != getattr(current, name)]
        if (earlier.sha256, earlier.lines) != (current.sha256, current.lines):
            differences.append("input")
        old, new = earlier.options, current.options
        differences += [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        raise ValueError(
            f"{folder} must contain the parts of the same job, got parts of one that differs in "
            f"{', '.join(differences)}: use the same input, model and options to resume, or discard these parts with "
            "restart (--restart on the command line)."
        )


def check_manifest(content: dict[str, Any], manifest: Path) -> None:
    """Raise a one-line `ValueError` for the first field that is missing or invalid."""
    starts, chunk_size = content.get("starts"), content.get("chunk_size")
    for field, is_valid, allowed in (
        ("lines", is_count(content.get("lines")), "an integer of at least 0"),
        ("sha256", isinstance(content.get("sha256"), str), "a string"),
        ("starts", isinstance(starts, list) and all(map(is_count, starts)), "a list of integers of at least 0"),
        ("chunk_size", is_count(chunk_size) and chunk_size != 0, "a positive integer"),
        ("model", isinstance(content.get("model"), str), "a string"),
        ("options", isinstance(content.get("options"), dict), "an object"),
    ):
        if not is_valid:
            value = reprlib.repr(content.get(field))
            raise ValueError(f"{field} in {manifest} must be {allowed}, got {value}. {DAMAGED}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Parts:
    """The folder of finished chunks, `<output>.parts`, which exists until the output is complete.

    Several processes may use it at the same time: see `Claims`.

    Args:
        output: the output.
        is_shared: whether there is more than one process, which requires file locks.

    Raises:
        ValueError: the output cannot be a file.
    """

    def __init__(self, output: Path, is_shared: bool = False):
        # Next to the target of a symbolic link: renaming requires the same file system.
        self.output = Path(os.path.realpath(output))
        if not self.output.parent.is_dir() or (self.output.exists() and not self.output.is_file()):
            raise ValueError(f"output_file must be a file, new or not, in a folder that exists, got {str(output)!r}.")
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self.manifest = self.folder / "manifest.json"
        self.claims = self.folder / "claims.lock"
        self.is_shared = is_shared

    def path(self, number: int) -> Path:
        """The file of a finished chunk."""
        return self.folder / f"{number:08}.txt"

    def missing(self, job: Job) -> list[int]:
        """The numbers of the unfinished chunks."""
        return [number for number in range(len(job.starts)) if not self.path(number).exists()]

    def begin(self, job: Job, restart: bool) -> None:
        """Create the folder, or reuse that of an earlier or concurrent call for the same job; after `restart`, of any.

        Raises:
            ValueError: the folder belongs to another job or contains other files, or `restart` during another call.
        """
        is_begun = False
        while not is_begun:
            with suppress(FileNotFoundError):  # another process completes the job and deletes the folder
                self.folder.mkdir(exist_ok=True)
                with self.open_claims(create=True) as claims, claims.job():
                    if claims.is_current():
                        self._begin(job, restart, claims)
                        is_begun = True

    def open_claims(self, *, create: bool = False) -> Claims:
        """Open the claims; raises a `FileNotFoundError` if the job is complete."""
        return Claims(self.claims, create=create, required=self.is_shared)

    def _begin(self, job: Job, restart: bool, claims: Claims) -> None:
        if not self.manifest.exists():
            others = [path for path in self.folder.iterdir() if path != self.claims and not self.is_temporary(path)]
            if others:
                self.claims.unlink()
            return self._create(job, others)
        earlier = Job.read(self.manifest)
        if not restart:
            return job.check_resumes(earlier, self.folder)
        with claims.everything(wait=False) as is_alone:
            if not is_alone:
                raise ValueError(f"restart must be False while another process writes {self.output}, got True.")
            self.remove_parts(earlier)
            return self._create(job, [path for path in map(self.path, range(len(job.starts))) if path.exists()])

    def _create(self, job: Job, others: list[Path]) -> None:
        """Write the manifest, unless there are files of something else."""
        if others:
            raise ValueError(
                f"{self.folder} must contain only the parts of {self.output.name}, got other files, such as "
                f"{others[0].name}."
            )
        write_atomically(self.manifest, [json.dumps(asdict(job)).encode()], self.folder)

    def claim(
        self, claims: Claims, numbers: Iterable[int], skip: Callable[[int], object]
    ) -> Generator[int, None, None]:
        """Claim chunks one after the other, each until the next one is requested.

        Args:
            claims: the claims of this process.
            numbers: the numbers of the chunks.
            skip: called with the number of a chunk that is finished or that another process has claimed.
        """
        for number in numbers:
            with claims.chunk(number) as is_claimed:
                if is_claimed and self.is_incomplete(claims) and not self.path(number).exists():
                    yield number
                else:
                    skip(number)

    def is_incomplete(self, claims: Claims) -> bool:
        """Whether the output of the job of these claims is not complete yet."""
        return claims.is_current() and self.manifest.exists()

    def write(self, number: int, translations: list[str]) -> None:
        """Write the part of a finished chunk."""
        write_atomically(self.path(number), encode_lines(translations), self.folder)

    def join(self, job: Job, claims: Claims) -> None:
        """Concatenate the parts into the output, then delete them, the manifest and the claims. Other files are kept.

        Does nothing if another process has done it, or was killed while it deleted the parts.
        """
        with claims.everything(wait=True):
            if not self.is_incomplete(claims) or self.missing(job):
                return
            paths = map(self.path, range(len(job.starts)))
            write_binary(self.output, (block for path in paths for block in read_blocks(path)), self.folder)
            self.remove_parts(job)
            self.manifest.unlink()
            self.claims.unlink()
            with suppress(OSError):  # contains other files
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


def read_blocks(path: Path, size: int = 2**20) -> Iterator[bytes]:
    """Read a file in blocks."""
    with open(path, "rb") as file:
        while block := file.read(size):
            yield block

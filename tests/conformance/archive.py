"""Fetches the tests that transformers publishes in its source archive. None of its text is kept in this repository."""

import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import transformers
from filelock import FileLock

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "conformance"


class ArchiveError(RuntimeError):
    """The source archive of the installed transformers could not be had."""


def published_tests() -> Path:
    """The folder of the installed transformers' own tests; fetched once, by the first of any number of processes."""
    home = CACHE / transformers.__version__
    if not home.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{home}.lock"):
            if not home.is_dir():
                _fetch(transformers.__version__, home)
    return home / "tests"


@cache
def archive_error() -> ArchiveError | None:
    """What keeps `published_tests` from working, if anything does."""
    try:
        published_tests()
    except ArchiveError as error:
        return error
    return None


def _fetch(version: str, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        archive = _download(version, Path(folder))
        unpacked = Path(folder, "unpacked")
        _unpack_tests(archive, unpacked)
        _add_unpublished_files(unpacked / "tests")
        os.rename(unpacked, home)  # in one step, so that no process ever sees half of it


def _download(version: str, folder: Path) -> Path:
    # pip would build the package's metadata in an environment of its own, and fetch more packages for it.
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, f"transformers=={version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise ArchiveError(
            f"transformers' common tests are in the source archive of transformers {version}, and that could not be "
            "fetched. Check that the package index can be reached and run the tests again.\n"
            f"{' '.join(command)}\n{result.stderr.strip()[-2000:]}"
        )
    return next(folder.glob("*.tar.gz"))


def _unpack_tests(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, member.name = member.name.partition("/")  # without the archive's own top folder
            if member.name.startswith("tests/") and member.isfile():
                tar.extract(member, folder, filter="data")
    if not (folder / "tests" / "test_modeling_common.py").is_file():
        raise ArchiveError(f"{archive.name} holds no tests/test_modeling_common.py: its tests have moved.")


def _add_unpublished_files(tests: Path) -> None:
    """Files that the published tests open by path, and that the archive leaves out."""
    (tests / "__init__.py").touch()
    (tests / "fixtures").mkdir(exist_ok=True)
    (tests / "fixtures" / "sample_text.txt").write_text("One sentence.\n\nAnother one.\n", encoding="utf-8")

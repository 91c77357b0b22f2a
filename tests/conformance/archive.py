"""Downloads the tests from the source archive of transformers. This repository contains no copy of them."""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import transformers
from filelock import FileLock

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "conformance"


def published_tests() -> Path:
    """The folder with the tests of the installed transformers. The first of several processes downloads them."""
    home = CACHE / transformers.__version__
    if not home.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{home}.lock"):
            if not home.is_dir():
                _fetch(transformers.__version__, home)
    return home / "tests"


def _fetch(version: str, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        archive = _download(version, Path(folder))
        unpacked = Path(folder, "unpacked")
        _unpack_tests(archive, unpacked)
        _add_unpublished_files(unpacked / "tests")
        os.rename(unpacked, home)  # atomic, so that no process sees an incomplete folder


def _download(version: str, folder: Path) -> Path:
    # pip would build the package's metadata in an isolated environment and download more packages.
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, f"transformers=={version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(
            f"transformers' common tests are in the source archive of transformers {version}, and that could not be "
            "fetched. Check that the package index can be reached and run the tests again.\n"
            f"{' '.join(command)}\n{result.stderr.strip()[-2000:]}"
        )
    return next(folder.glob("*.tar.gz"))


def _unpack_tests(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, member.name = member.name.partition("/")  # without the top-level folder of the archive
            if member.name.startswith("tests/") and member.isfile():
                tar.extract(member, folder, filter="data")
    if not (folder / "tests" / "test_modeling_common.py").is_file():
        raise RuntimeError(f"{archive.name} does not contain tests/test_modeling_common.py: the tests have moved.")


def _add_unpublished_files(tests: Path) -> None:
    """Files that the published tests open by path and that are not in the archive."""
    (tests / "__init__.py").touch()
    (tests / "fixtures").mkdir(exist_ok=True)
    (tests / "fixtures" / "sample_text.txt").write_text("One sentence.\n\nAnother one.\n", encoding="utf-8")

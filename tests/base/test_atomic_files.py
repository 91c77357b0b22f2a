"""Write errors name the path."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from modeling_random_transformer.base.atomic_files import new_folder, write_atomically

FULL = os.strerror(errno.ENOSPC)


def lines_until_disk_is_full():
    yield b"first\n"
    raise OSError(errno.ENOSPC, FULL)


def test_full_disk_error_names_the_file(tmp_path):
    with pytest.raises(OSError, match=f"{FULL}: .*out.txt"):
        write_atomically(tmp_path / "out.txt", lines_until_disk_is_full())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, FULL), SafetensorError("Error while serializing: I/O error: x (os error 28)")]
)
def test_full_disk_error_names_the_folder(error, tmp_path):
    with pytest.raises(OSError, match=f"{FULL}: .*model") as caught, new_folder(tmp_path / "model"):
        raise error
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", [".", "", "absolute"])
def test_empty_current_folder(output, tmp_path, monkeypatch):
    """The current folder cannot be replaced: it would remain the deleted one for this process and its shell."""
    (tmp_path / "new").mkdir(0o700)
    monkeypatch.chdir(tmp_path / "new")
    with new_folder(tmp_path / "new" if output == "absolute" else output) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("a")
        (folder / "config.json").write_text("b")
    assert sorted(os.listdir(".")) == ["config.json", "sub"]
    assert Path("sub/file").read_text() == "a"
    assert os.listdir(tmp_path) == ["new"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_failure_leaves_an_existing_folder_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write():
        with new_folder("") as folder:
            (folder / "half").touch()
            raise ValueError("no such weights")

    with pytest.raises(ValueError, match="no such weights"):
        write()
    assert os.listdir(tmp_path) == []


def test_files_of_others_are_not_overwritten(tmp_path):
    def write():
        with new_folder(tmp_path) as folder:
            (folder / "config.json").write_text("new")
            (tmp_path / "config.json").write_text("of others")

    with pytest.raises(ValueError, match="output must remain empty until it is complete, got files in"):
        write()
    assert os.listdir(tmp_path) == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "of others"


def test_other_errors_are_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing") as caught, new_folder(tmp_path / "model"):
        (tmp_path / "missing").read_text()
    assert caught.value.filename == str(tmp_path / "missing")

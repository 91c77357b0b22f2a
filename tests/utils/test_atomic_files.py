"""Write errors name the path."""

import errno
import os

import pytest
from safetensors import SafetensorError

from modeling_random_transformer.utils.atomic_files import new_folder, write_atomically

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


def test_other_errors_are_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing") as caught, new_folder(tmp_path / "model"):
        (tmp_path / "missing").read_text()
    assert caught.value.filename == str(tmp_path / "missing")

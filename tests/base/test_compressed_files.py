"""Compressed files: reading by line, damaged files, and atomic writing."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from modeling_random_transformer.base.compressed_files import create_binaries, open_binary, write_binary

SUFFIXES = ["", ".gz", ".zst", ".bz2", ".xz", ".GZ"]
LINES = [f"line {number} \u2028 of the file\n".encode() for number in range(3000)]


def write(path, content):
    with create_binaries([path]) as [file]:
        file.write(content)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("lines", [LINES, []], ids=["lines", "no lines"])
def test_lines_are_those_that_were_written(tmp_path, suffix, lines):
    path = write(tmp_path / f"a.txt{suffix}", b"".join(lines))
    with open_binary(path) as file:
        assert list(file) == lines
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_concatenated_files_are_read_to_the_end(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", b"".join(LINES))
    path.write_bytes(path.read_bytes() * 2)
    with open_binary(path) as file:
        assert list(file) == LINES * 2


@pytest.mark.parametrize(("suffix", "name"), [(".gz", "gzip"), (".zst", "Zstandard"), (".bz2", "bzip2"), (".xz", "xz")])
@pytest.mark.parametrize("damage", ["truncated", "not compressed", "0 bytes"])
def test_damaged_file_raises_value_error(tmp_path, suffix, name, damage):
    path = write(tmp_path / f"a{suffix}", b"".join(LINES))
    damaged = {"truncated": path.read_bytes()[:-300], "not compressed": b"text, not compressed\n" * 20, "0 bytes": b""}
    path.write_bytes(damaged[damage])
    with (
        pytest.raises(ValueError, match=rf"a\{suffix} must be a complete {name} file, got an error: "),
        open_binary(path) as file,
    ):
        list(file)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_interrupted_write_keeps_the_old_file(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", b"old")

    def interrupted():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), create_binaries([path]) as [file]:
        file.writelines(interrupted())
    with open_binary(path) as file:
        assert file.read() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_equal_contents_give_equal_gzip_files(tmp_path):
    first, second = (write(tmp_path / name, b"text") for name in ("a.gz", "b.gz"))
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()) == b"text"


def test_a_dash_is_standard_input_or_output(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    with open_binary("-") as source, create_binaries(["-"]) as [target]:
        target.writelines(source)
    assert sys.stdout.buffer.getvalue() == b"one\ntwo"


def test_zstandard_requires_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = r"a\.zst requires pyarrow: pip install 'random-transformer\[train\]'"
    with pytest.raises(ValueError, match=message), open_binary(tmp_path / "a.zst"):
        pass


def test_an_error_names_a_stream_that_cannot_be_written():
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        write_binary(Path("/dev/full"), [b"text"])

"""A folder of results is complete or absent, and files of another origin remain."""

import errno
import os
import resource
from pathlib import Path

import pytest
from safetensors import SafetensorError

from modeling_random_transformer.extras.new_folder import WRITTEN_FILES, check_free, new_folder

FULL = os.strerror(errno.ENOSPC)


def test_errors_of_safetensors_without_a_number_name_the_folder(tmp_path):
    message = "failed to write whole buffer"
    with pytest.raises(OSError, match=f"{message}.*model"), new_folder(tmp_path / "model"):
        raise SafetensorError(message)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, FULL),
        SafetensorError("Error while serializing: I/O error: x (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
)
def test_full_disk_error_names_the_folder(error, tmp_path):
    with pytest.raises(OSError, match=f"{FULL}: .*model") as caught, new_folder(tmp_path / "model"):
        raise error
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # the user root may write all files
    with pytest.raises(ValueError, match=r"output must be a folder that can be written, got '.*model'"):
        check_free(tmp_path / "model")


@pytest.mark.parametrize("output", [".", "", "absolute"])
def test_the_current_folder_gets_the_files_without_being_replaced(output, tmp_path, monkeypatch):
    """The current folder cannot be replaced: it would remain the deleted one for this process and its shell."""
    (tmp_path / "new").mkdir(0o700)
    monkeypatch.chdir(tmp_path / "new")
    with new_folder(tmp_path / "new" if output == "absolute" else output) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("a")
        (folder / "config.json").write_text("b")
    assert sorted(os.listdir(".")) == [WRITTEN_FILES, "config.json", "sub"]
    assert Path("sub/file").read_text() == "a"
    assert os.listdir(tmp_path) == ["new"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("exists", [False, True])
def test_the_temporary_folder_is_hidden_and_has_the_name_of_the_output(exists, tmp_path):
    output = tmp_path / "model"
    if exists:
        output.mkdir()
    with new_folder(output):
        [scratch] = output.iterdir() if exists else tmp_path.iterdir()
        assert scratch.name.startswith(".model.")


def test_failure_leaves_an_existing_folder_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write():
        with new_folder("") as folder:
            (folder / "half").touch()
            raise ValueError("no such weights")

    with pytest.raises(ValueError, match="no such weights"):
        write()
    assert os.listdir(tmp_path) == []


def test_files_of_other_programs_are_not_overwritten(tmp_path):
    def write():
        with new_folder(tmp_path) as folder:
            (folder / "config.json").write_text("new")
            (tmp_path / "config.json").write_text("of others")

    with pytest.raises(ValueError, match="output must remain empty until it is complete, got files in"):
        write()
    assert os.listdir(tmp_path) == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "of others"


def write_folder(path, names, overwrite=False):
    with new_folder(path, overwrite) as folder:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"{len(names)} files")


def contents(path):
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def test_only_written_files_are_replaced(tmp_path):
    """Those that are not written again are removed, and files of others remain."""
    path = tmp_path / "out"
    write_folder(path, ["config.json", "tokenizer.json", "sub/old"])
    (path / "notes.txt").write_text("of others")
    (path / "sub" / "notes.txt").write_text("of others")
    with pytest.raises(ValueError, match=r"output must be a new or an empty folder without overwrite, got .*out"):
        write_folder(path, ["config.json"])
    write_folder(path, ["config.json", "sub/new"], overwrite=True)
    texts = contents(path)
    assert set(texts.pop(WRITTEN_FILES).splitlines()) == {"config.json", "sub/new"}
    of_others = {"notes.txt": "of others", "sub/notes.txt": "of others"}
    assert texts == {"config.json": "2 files", "sub/new": "2 files", **of_others}


def test_files_of_other_programs_are_not_replaced(tmp_path):
    (tmp_path / "config.json").write_text("of others")
    (tmp_path.parent / "outside").write_text("of others")
    (tmp_path / WRITTEN_FILES).write_text("../outside\n")
    with pytest.raises(ValueError, match=r"output must not contain a file config\.json of another origin, got "):
        write_folder(tmp_path, ["config.json"], overwrite=True)
    write_folder(tmp_path, ["model"], overwrite=True)
    assert contents(tmp_path) == {WRITTEN_FILES: "model", "config.json": "of others", "model": "1 files"}
    assert (tmp_path.parent / "outside").read_text() == "of others"


def test_interrupted_replacement_is_repeated(tmp_path, monkeypatch):
    path = tmp_path / "out"
    write_folder(path, ["a", "b"])
    replace = os.replace

    def replace_once(source, target):
        monkeypatch.setattr(os, "replace", stop)
        replace(source, target)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_once)
    with pytest.raises(KeyboardInterrupt):
        write_folder(path, ["b", "c"], overwrite=True)
    monkeypatch.setattr(os, "replace", replace)
    write_folder(path, ["b", "c"], overwrite=True)
    assert contents(path).keys() == {WRITTEN_FILES, "b", "c"}


def test_a_full_disk_does_not_change_the_record(tmp_path):
    path = tmp_path / "out"
    names = [f"file {i}" for i in range(20)]
    write_folder(path, names)
    before = contents(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # bytes, between the new record and both together
    try:
        with pytest.raises(OSError, match="File too large"):
            write_folder(path, ["file 1", "new"], overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(path) == before
    write_folder(path, ["file 1", "new"], overwrite=True)
    assert contents(path).keys() == {WRITTEN_FILES, "file 1", "new"}


def test_other_errors_are_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing") as caught, new_folder(tmp_path / "model"):
        (tmp_path / "missing").read_text()
    assert caught.value.filename == str(tmp_path / "missing")

"""Write errors name the path; sizes of folders."""

import errno
import os

import pytest

from modeling_random_transformer.base.files import (
    PARTS_SUFFIX,
    folder_size,
    read_json,
    work_folder,
    write_atomically,
    write_json,
)

FULL = os.strerror(errno.ENOSPC)


def lines_until_disk_is_full():
    yield b"first\n"
    raise OSError(errno.ENOSPC, FULL)


def test_full_disk_error_names_the_file(tmp_path):
    with pytest.raises(OSError, match=f"{FULL}: .*out.txt"):
        write_atomically(tmp_path / "out.txt", lines_until_disk_is_full())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["straße", "字", os.fsdecode(b"caf\xe9.en")])
def test_json_with_any_name_of_a_file_is_restored(name, tmp_path):
    (tmp_path / "record.json").write_text("an earlier one")
    write_json(tmp_path / "record.json", {name: [name, 1]})
    assert read_json(tmp_path / "record.json") == {name: [name, 1]}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_size_of_a_folder(tmp_path):
    (tmp_path / "nested").mkdir()
    (tmp_path / "first.bin").write_bytes(bytes(1000))
    (tmp_path / "nested" / "second.bin").write_bytes(bytes(500))
    (tmp_path / "text").write_bytes(bytes(20))
    assert folder_size(tmp_path) == pytest.approx(0.00152)
    assert folder_size(tmp_path, "*.bin") == pytest.approx(0.001)
    assert folder_size(tmp_path, "**/*.bin") == pytest.approx(0.0015)


def test_unfinished_work_is_beside_the_target_of_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "output.txt")
    expected = (tmp_path / "folder" / "output.txt.parts").resolve()
    assert (
        work_folder(tmp_path / "link", PARTS_SUFFIX)
        == work_folder(tmp_path / "folder" / "output.txt", PARTS_SUFFIX)
        == expected
    )


def test_a_file_has_no_files(tmp_path):
    (tmp_path / "model.pt").touch()
    with pytest.raises(ValueError, match=r"model\.pt/config\.json must be a JSON file, but it is missing"):
        read_json(tmp_path / "model.pt" / "config.json")

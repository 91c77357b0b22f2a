"""Files of a checkpoint: by their names, in its folder only."""

import re
from pathlib import Path

import pytest

from modeling_random_transformer.extras.conversion.files import choose_pair, find_file, list_files

SOURCE, TARGET = re.compile("src"), re.compile("tgt")


def test_hidden_files_and_folders_are_not_listed(tmp_path):
    for name in ("b.txt", "a.txt", "._a.txt", "a.spm"):
        (tmp_path / name).touch()
    (tmp_path / "folder.txt").mkdir()
    paths = list_files(tmp_path, re.compile(r".*\.txt"))
    assert [path.name for path in paths] == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        (["vocab"], ("vocab", "vocab")),
        (["tgt.txt", "src.txt"], ("src.txt", "tgt.txt")),
        (["src.a", "src.b"], None),
        (["src-tgt.a", "other"], None),
        ([], None),
    ],
)
def test_pairs(names, pair):
    expected = pair and tuple(map(Path, pair))
    assert choose_pair([*map(Path, names)], SOURCE, TARGET) == expected


@pytest.mark.parametrize("stored", ["/home/other/model.spm", r"C:\models\model.spm", "../../model.spm", "model.spm"])
def test_only_the_last_name_of_a_stored_path_counts(stored, tmp_path):
    (tmp_path / "model.spm").touch()
    assert find_file(tmp_path, stored) == tmp_path / "model.spm"


@pytest.mark.parametrize("stored", ["other.spm", None, "x" * 10_000, ".."])
def test_missing_files(stored, tmp_path):
    with pytest.raises(ValueError, match=r"must contain the file of .*, which is missing"):
        find_file(tmp_path, stored)

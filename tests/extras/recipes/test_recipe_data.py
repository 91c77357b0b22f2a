"""The sets of a recipe: those that are given, or a corpus that is cleaned and split."""

from pathlib import Path

import pytest

from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.extras.recipes.recipe_data import files_of, sets_of, split_corpus, write_sets
from modeling_random_transformer.training.arguments import DataArguments

SUBJECTS = ["dog", "cat", "bird", "boy", "girl", "man", "woman", "horse"]
VERBS = ["sees", "likes", "finds", "takes", "paints"]
PAIRS = [(f"the {subject} {verb} it", f"il {verb} {subject}") for subject in SUBJECTS for verb in VERBS]


def write_set(folder, name, pairs):
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


def pairs_in(folder, split):
    sources, targets = (path.read_text().splitlines() for path in files_of(folder, split))
    return list(zip(sources, targets, strict=True))


def test_given_sets_are_written_without_invalid_lines(tmp_path):
    train = write_set(tmp_path, "train", [*PAIRS[:5], ("", "blank")])
    validation = write_set(tmp_path, "validation", PAIRS[5:7])
    data = DataArguments(train_file=train, validation_file=validation, on_invalid="skip")
    assert list(sets_of(data)) == ["train", "validation"]
    facts = write_sets(data, tmp_path / "out")
    assert (facts["train"], facts["validation"]) == (5, 2)
    assert len(facts["skipped"]) == 1
    assert "1 with an empty source or target (line 6)" in facts["skipped"][0]
    assert pairs_in(tmp_path / "out", "train") == PAIRS[:5]
    assert pairs_in(tmp_path / "out", "validation") == PAIRS[5:7]


def test_sets_of_an_attempt_before_are_deleted(tmp_path):
    train, validation = write_set(tmp_path, "train", PAIRS[:5]), write_set(tmp_path, "validation", PAIRS[5:7])
    output = tmp_path / "out"
    write_sets(DataArguments(train_file=train, validation_file=validation, test_file=validation), output)
    assert all(path.exists() for path in files_of(output, "test"))
    write_sets(DataArguments(train_file=train, validation_file=validation), output)
    assert not any(path.exists() for path in files_of(output, "test"))


def test_a_corpus_without_a_validation_set_is_divided(tmp_path):
    data = DataArguments(train_file=write_set(tmp_path, "train", PAIRS))
    facts = write_sets(data, tmp_path / "out")
    sets = {split: set(pairs_in(tmp_path / "out", split)) for split in ("train", "validation", "test")}
    assert {split: len(pairs) for split, pairs in sets.items()} == {"train": 36, "validation": 2, "test": 2}
    assert {split: facts[split] for split in sets} == {"train": 36, "validation": 2, "test": 2}
    assert set.union(*sets.values()) == set(PAIRS)


@pytest.mark.parametrize("is_split", [False, True])
def test_entries_of_a_dictionary_are_training_pairs(is_split, tmp_path):
    entries = [("dog", "perro"), ("cat", "gato")]
    dictionary = ParallelText(Path(write_set(tmp_path, "words", [*entries, ("bird", "")])))
    files = {"train_file": write_set(tmp_path, "train", PAIRS)}
    if not is_split:
        files["validation_file"] = write_set(tmp_path, "validation", PAIRS[:3])
    facts = write_sets(DataArguments(**files, on_invalid="skip"), tmp_path / "out", dictionary)
    train = pairs_in(tmp_path / "out", "train")
    assert train[-2:] == entries
    assert {*train[:-2]} <= {*PAIRS}
    assert {*pairs_in(tmp_path / "out", "validation")} <= {*PAIRS}
    assert (facts["train"], facts["dictionary"]) == (len(train), 2)
    assert len(facts["skipped"]) == 1


def test_an_invalid_entry_of_a_dictionary_is_an_error(tmp_path):
    dictionary = ParallelText(Path(write_set(tmp_path, "words", [("bird", "")])))
    data = DataArguments(train_file=write_set(tmp_path, "train", PAIRS))
    with pytest.raises(ValueError, match=r"words\.tsv.* with an empty source or target"):
        write_sets(data, tmp_path / "out", dictionary)


@pytest.mark.parametrize("extra", ["train", "test"])
def test_one_corpus_alone_can_be_divided(extra, tmp_path):
    train = write_set(tmp_path, "train", PAIRS)
    files = {"train_file": [train, train]} if extra == "train" else {"train_file": train, "test_file": train}
    with pytest.raises(ValueError, match="validation_source_file must be given with several corpora or a test set"):
        split_corpus(DataArguments(**files), tmp_path / "out")


def test_a_corpus_that_is_too_small(tmp_path):
    data = DataArguments(train_file=write_set(tmp_path, "train", PAIRS[:2]))
    with pytest.raises(ValueError, match=r"validation_source_file must be given if .* cannot be divided"):
        split_corpus(data, tmp_path / "out")

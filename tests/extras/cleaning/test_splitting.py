"""Validation and test sets without common texts."""

from pathlib import Path

import pytest

from modeling_random_transformer.data import ParallelLine
from modeling_random_transformer.extras.cleaning.splitting import Split, name_of_set

FREE = [(f"s{i}", f"t{i}") for i in range(250)]
STARS = [(f"x{i}", f"y{i} {j}") for i in range(40) for j in range(60)]  # one pair of each group can be chosen
CHAIN = [(f"{i // 2}", f"{(i + 1) // 2}") for i in range(600)]  # each text occurs in two pairs


@pytest.mark.parametrize(("pairs", "sizes"), [(FREE + STARS, (145, 145)), (FREE + STARS, (40, 1)), (CHAIN, (100, 100))])
def test_held_out_pairs_share_no_text(pairs, sizes):
    """Their choice does not depend on the order of the corpus."""
    lines = [ParallelLine(number, *pair) for number, pair in enumerate(pairs, start=1)]
    made = Split(lambda: iter(lines), sizes)
    assert [[*made.sets.values()].count(name) for name in ("validation", "test")] == [*sizes]
    chosen = [line for line in lines if line.number in made.sets]
    assert len({line.source for line in chosen}) == len({line.target for line in chosen}) == sum(sizes)
    assert Split(lambda: reversed(lines), sizes).sets == made.sets


def test_a_pair_that_shares_a_text_with_a_held_out_one_is_in_no_set():
    lines = [ParallelLine(1, "a", "one"), ParallelLine(2, "A!", "two"), ParallelLine(3, "b", "One")]
    made = Split(lambda: iter(lines[:1]), (1,))
    assert [made.set_of(line) for line in lines] == ["validation", None, None]
    assert made.set_of(ParallelLine(4, "c", "three")) == "train"
    assert Split(lambda: iter(()), ()).set_of(lines[1]) == "train"


@pytest.mark.parametrize(("pairs", "largest"), [(FREE + STARS, 290), ([("a", "one"), ("a", "two")], 1)])
def test_too_few_pairs_without_common_texts(pairs, largest):
    lines = [ParallelLine(number, *pair) for number, pair in enumerate(pairs, start=1)]
    with pytest.raises(ValueError, match=f"split must have at most {largest} pairs, which share no text"):
        Split(lambda: iter(lines), (largest + 1,))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/clean.tsv", "a/clean.test.tsv"),
        ("clean.TSV.GZ", "clean.test.TSV.GZ"),
        ("clean.gz", "clean.test.gz"),
        ("clean", "clean.test"),
    ],
)
def test_names_of_the_files_of_sets(path, expected):
    assert name_of_set(Path(path), "test") == Path(expected)

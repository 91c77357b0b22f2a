"""Validation and test sets without common texts."""

import pytest

from modeling_random_transformer.data import ParallelLine
from modeling_random_transformer.data.splitting import Split

FREE = [(f"s{i}", f"t{i}") for i in range(250)]
STARS = [(f"x{i}", f"y{i} {j}") for i in range(40) for j in range(60)]  # one pair of each group can be chosen
PATH = [("a", "one"), ("a", "two"), ("b", "one"), ("b", "three"), ("c", "three")]


@pytest.mark.parametrize(
    ("pairs", "largest"),
    [(FREE + STARS, 290), (PATH, 3), ([(f"{i // 2}", f"{(i + 1) // 2}") for i in range(600)], 300)],
)
def test_a_split_has_every_feasible_size(pairs, largest):
    lines = [ParallelLine(number, *pair) for number, pair in enumerate(pairs, start=1)]
    for rows in (lines, lines[::-1]):
        for size in (largest, largest // 2):
            sizes = [part for part in (size - size // 2, size // 2) if part]
            made = Split(lambda rows=rows: iter(rows), sizes)
            assert [*made.sets.values()].count("test") == size // 2
            chosen = [line for line in lines if line.number in made.sets]
            assert len({line.source for line in chosen}) == len({line.target for line in chosen}) == size
    with pytest.raises(ValueError, match=f"split must have at most {largest} pairs, which share no text"):
        Split(lambda: iter(lines), (largest + 1,))

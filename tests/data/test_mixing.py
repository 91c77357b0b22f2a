"""Several corpora: weights, the pairs of each epoch, and one stream of all."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data import CorpusMixture, ParallelText, TokenBudgetSampler
from modeling_random_transformer.data.batches import WeightedPairs
from modeling_random_transformer.training.arguments import set_names
from modeling_random_transformer.training.preparation import temperature_weights

weights = st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.6, 0.75, 1.0, 1.5, 1.9, 2.0])
weighted_pairs = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), weights), min_size=4, max_size=60)


@given(rows=weighted_pairs, epoch=st.integers(0, 1000))
def test_a_pair_occurs_as_often_as_its_weight(rows, epoch):
    """In any n consecutive epochs for n pairs of a weight, except for the rounding of the number of pairs per epoch."""
    source, target, weight = (np.array(column) for column in zip(*rows, strict=True))
    sampler = TokenBudgetSampler(np.stack([source, target], axis=1), 120, weights=weight)
    occurrences = []
    for number in range(epoch, epoch + len(rows)):
        sampler.set_epoch(number)
        batches = list(sampler)
        assert list(sampler) == batches  # the epoch determines the order
        assert len(batches) == len(sampler)
        assert all((source[batch].max() + target[batch].max()) * len(batch) <= 120 for batch in batches)
        occurrences.append(np.bincount([pair for batch in batches for pair in batch], minlength=len(rows)))
        assert (np.floor(weight) <= occurrences[-1]).all()
        assert (occurrences[-1] <= np.ceil(weight)).all()
    for value in np.unique(weight):
        count = (weight == value).sum()
        of_value = np.array(occurrences)[:count, weight == value]
        assert (of_value.sum(axis=1) == int(value) * count + (value % 1 and max(1, round(value % 1 * count)))).all()
        assert len({*of_value.sum(axis=0)}) == 1


def test_the_selection_of_an_epoch_does_not_change():
    """A run resumes with the same pairs."""
    lengths = np.arange(24).reshape(12, 2)
    selection = WeightedPairs(lengths, np.repeat([1 / 3, 0.5, 1.0, 2.0], 3), seed=0)
    assert [selection.epoch(number).tolist() for number in range(3)] == [
        [1, 4, 5, 6, 7, 8, 9, 10, 11, 9, 10, 11],
        [2, 3, 5, 6, 7, 8, 9, 10, 11, 9, 10, 11],
        [0, 3, 4, 6, 7, 8, 9, 10, 11, 9, 10, 11],
    ]
    assert selection.lengths[:3].tolist() == [[4, 5], [8, 9], [10, 11]]
    others = [WeightedPairs(lengths, np.full(12, 1 / 3), seed).epoch(0).tolist() for seed in range(20)]
    assert any(other != others[0] for other in others)


@pytest.mark.parametrize(("temperature", "expected"), [(1, [1, 1, 1]), (2, [10**0.5, 1, 2])])
def test_temperature_weights(temperature, expected):
    assert temperature_weights([10, 100, 25], temperature) == pytest.approx(expected)


def write_corpora(folder, sizes):
    corpora = []
    for name, size in sizes.items():
        (folder / f"{name}.tsv").write_text("".join(f"{name}{i}\tx\n" for i in range(size)))
        corpora.append(ParallelText(folder / f"{name}.tsv"))
    return corpora


def test_a_mixture_spreads_the_lines_of_each_corpus_evenly(tmp_path):
    large, small = write_corpora(tmp_path, {"large": 40, "small": 10})
    mixture = CorpusMixture([large, replace(small, weight=2.0)], [40, 10])
    lines = list(mixture.lines())
    expected = [f"large{i}" for i in range(40)] + [f"small{i}" for i in range(10)] * 2
    assert sorted(line.source for line in lines) == sorted(expected)
    quarters = [Counter(line.source[:5] for line in lines[start : start + 15]) for start in range(0, 60, 15)]
    assert all(abs(quarter["small"] - 5) <= 1 for quarter in quarters)
    assert {line.number for line in lines if line.source == "small3"} == {44}  # after the 40 lines of the other corpus


@pytest.mark.parametrize("weight", [0.1, 1.75])
def test_all_lines_of_a_mixture_occur_equally_often(tmp_path, weight):
    (corpus,) = write_corpora(tmp_path, {"a": 20})
    mixture = CorpusMixture([replace(corpus, weight=weight)], [20])
    occurrences = Counter(line.source for epoch in range(100) for line in replace(mixture, epoch=epoch).lines())
    assert len(occurrences) == 20
    assert all(abs(count - 100 * weight) <= 1 for count in occurrences.values())


def test_set_names(tmp_path):
    specs = write_corpora(tmp_path, {"news": 1, "talks": 1})
    assert set_names("test", specs[:1]) == ["test"]
    assert set_names("test", specs) == ["test news", "test talks"]
    assert set_names("test", [*specs, specs[0]]) == ["test news 1", "test talks", "test news 2"]

"""Several corpora: weights, the pairs of each epoch, and one stream of all."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data.batches import TokenBudgetSampler
from modeling_random_transformer.data.mixing import (
    CorpusMixture,
    CorpusSpec,
    WeightedPairs,
    set_names,
    temperature_weights,
)
from modeling_random_transformer.data.sources import ParallelText

weights = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])
weighted_pairs = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), weights), min_size=4, max_size=60)


def counts(batches, pairs):
    return np.bincount([index for batch in batches for index in batch], minlength=pairs)


@given(rows=weighted_pairs, processes=st.integers(1, 3))
def test_weights_are_the_mean_number_of_occurrences_per_epoch(rows, processes):
    source, target, weight = (np.array(column) for column in zip(*rows, strict=True))
    sampler = TokenBudgetSampler(source, target, 120, processes, seed=1, weights=weight)
    lengths = []
    for epoch in range(12):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        lengths.append(len(batches))
        assert list(sampler) == batches  # the epoch determines the order
        for batch in batches:
            assert (source[batch].max() + target[batch].max()) * len(batch) <= 120
    assert set(lengths) == {len(sampler)}
    assert len(sampler) % processes == 0


@given(rows=weighted_pairs)
def test_a_pair_occurs_as_often_as_its_weight(rows):
    source, target, weight = (np.array(column) for column in zip(*rows, strict=True))
    selection = WeightedPairs(np.stack([source, target], axis=1), weight, seed=0)
    epochs = [selection.epoch(number) for number in range(12)]
    for pairs in epochs:
        occurrences = np.bincount(pairs, minlength=len(rows))
        assert (np.floor(weight) <= occurrences).all()
        assert (occurrences <= np.ceil(weight)).all()
        assert (source[pairs] <= selection.lengths[:, 0]).all()
        assert (target[pairs] <= selection.lengths[:, 1]).all()
    total = np.bincount(np.concatenate(epochs), minlength=len(rows))
    assert total.min() > 0
    for value in np.unique(weight):
        group = total[weight == value]
        assert group.sum() == pytest.approx(12 * value * len(group), abs=12)  # rounded to one pair per epoch


def test_half_of_a_corpus_is_seen_every_other_epoch():
    sampler = TokenBudgetSampler([3] * 20, [3] * 20, 24, weights=np.array([0.5] * 10 + [2.0] * 10))
    halves = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        occurrences = counts(sampler, 20)
        assert occurrences[:10].sum() == 5
        assert occurrences[10:].tolist() == [2] * 10
        halves.append(frozenset(np.flatnonzero(occurrences[:10]).tolist()))
    for first, second in (halves[:2], halves[2:]):
        assert first | second == set(range(10))


@pytest.mark.parametrize(
    ("temperature", "expected"), [(1, [1, 1, 1]), (2, [10**0.5, 1, 2]), (1e9, [10, 1, 4]), (0.5, [0.1, 1, 0.25])]
)
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
    mixture = CorpusMixture([CorpusSpec(large), CorpusSpec(small, 2.0)], [40, 10])
    lines = list(mixture.lines())
    assert Counter(line.source for line in lines) == {f"large{i}": 1 for i in range(40)} | {
        f"small{i}": 2 for i in range(10)
    }
    quarters = [Counter(line.source[:5] for line in lines[start : start + 15]) for start in range(0, 60, 15)]
    assert all(abs(quarter["small"] - 5) <= 1 for quarter in quarters)
    assert {line.number for line in lines if line.source == "small3"} == {44}  # after the 40 lines of the other corpus


def test_a_mixture_of_one_corpus_keeps_its_lines(tmp_path):
    (corpus,) = write_corpora(tmp_path, {"a": 30})
    for epoch in (0, 7):
        assert list(CorpusMixture([CorpusSpec(corpus)], [30], epoch).lines()) == list(corpus.lines())


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.75])
def test_a_fractional_weight_selects_other_lines_in_each_epoch(tmp_path, weight):
    (corpus,) = write_corpora(tmp_path, {"a": 40})
    mixture = CorpusMixture([CorpusSpec(corpus, weight)], [40])
    epochs = [Counter(line.source for line in mixture.at_epoch(epoch).lines()) for epoch in range(4)]
    for occurrences in epochs:
        assert occurrences.total() == pytest.approx(40 * weight, abs=2)
    assert sum(epochs, Counter()) == {f"a{i}": 4 * weight for i in range(40)}


def test_set_names(tmp_path):
    specs = [CorpusSpec(text) for text in write_corpora(tmp_path, {"news": 1, "talks": 1})]
    assert set_names("test", specs[:1]) == ["test"]
    assert set_names("test", specs) == ["test news", "test talks"]
    assert set_names("test", [*specs, specs[0]]) == ["test news 1", "test talks", "test news 2"]

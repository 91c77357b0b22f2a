"""Several corpora: weights, and one stream of all."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data import CorpusMixture, ParallelText, TokenBudgetSampler
from modeling_random_transformer.training.arguments import set_names

weighted_pairs = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 3)), min_size=4, max_size=60)


@given(rows=weighted_pairs, epoch=st.integers(0, 1000))
def test_a_pair_occurs_as_often_as_its_weight(rows, epoch):
    source, target, weight = (np.array(column) for column in zip(*rows, strict=True))
    sampler = TokenBudgetSampler(np.stack([source, target], axis=1), 120, weights=weight)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert list(sampler) == batches  # the epoch determines the order
    assert len(batches) == len(sampler)
    assert all((source[batch].max() + target[batch].max()) * len(batch) <= 120 for batch in batches)
    occurrences = np.bincount([pair for batch in batches for pair in batch], minlength=len(rows))
    assert occurrences.tolist() == weight.tolist()


def write_corpora(folder, sizes):
    corpora = []
    for name, size in sizes.items():
        (folder / f"{name}.tsv").write_text("".join(f"{name}{i}\tx\n" for i in range(size)))
        corpora.append(ParallelText(folder / f"{name}.tsv"))
    return corpora


def test_a_mixture_spreads_the_lines_of_each_corpus_evenly(tmp_path):
    large, small = write_corpora(tmp_path, {"large": 40, "small": 10})
    mixture = CorpusMixture([large, replace(small, weight=2)], [40, 10])
    lines = list(mixture.lines())
    expected = [f"large{i}" for i in range(40)] + [f"small{i}" for i in range(10)] * 2
    assert sorted(line.source for line in lines) == sorted(expected)
    quarters = [Counter(line.source[:5] for line in lines[start : start + 15]) for start in range(0, 60, 15)]
    assert all(abs(quarter["small"] - 5) <= 1 for quarter in quarters)
    assert {line.number for line in lines if line.source == "small3"} == {44}  # after the 40 lines of the other corpus


def test_set_names(tmp_path):
    specs = write_corpora(tmp_path, {"news": 1, "talks": 1})
    assert set_names("test", specs[:1]) == ["test"]
    assert set_names("test", specs) == ["test news", "test talks"]
    assert set_names("test", [*specs, specs[0]]) == ["test news 1", "test talks", "test news 2"]

"""Batch samplers with a token budget."""

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data.batches import EvaluationSampler, TokenBudgetSampler, padding_multiple

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=4, max_size=60)


def make_sampler(pairs, max_tokens=120, **options):
    return TokenBudgetSampler(np.array(pairs), max_tokens, **options)


def test_lengths_are_multiples_of_8_on_an_accelerator_only():
    assert [padding_multiple(torch.device(kind)) for kind in ("cpu", "cuda", "xpu")] == [1, 8, 8]


@given(pairs=lengths, processes=st.integers(1, 4), epoch=st.integers(0, 3), multiple=st.sampled_from([1, 8]))
def test_every_pair_occurs_once_per_epoch_within_the_budget(pairs, processes, epoch, multiple):
    sampler = make_sampler(pairs, num_processes=processes, pad_to_multiple_of=multiple, max_tokens=128)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    counts = np.bincount([index for batch in batches for index in batch], minlength=len(pairs))
    assert counts.min() == 1
    # Pairs occur twice only if no batch can be split further.
    assert counts.sum() - len(pairs) < processes
    assert counts.max() == 1 or max(map(len, batches)) == 1
    assert len(batches) == len(sampler)
    assert min(map(len, batches)) > 0
    assert len(batches) % processes == 0
    for batch in batches:
        padded = -(-np.max([pairs[index] for index in batch], axis=0) // multiple) * multiple
        assert padded.sum() * len(batch) <= 128


@given(pairs=lengths, per_step=st.sampled_from([2, 4, 6]), epoch=st.integers(0, 2))
def test_the_batches_of_a_step_depend_on_the_product_of_processes_and_accumulation(pairs, per_step, epoch):
    """So a run that is resumed on more processes with less accumulation repeats and loses no pair."""
    orders = []
    for processes in (n for n in range(1, per_step + 1) if per_step % n == 0 and n <= len(pairs)):
        accumulation = per_step // processes
        sampler = make_sampler(pairs, num_processes=processes, gradient_accumulation_steps=accumulation)
        sampler.set_epoch(epoch)
        shards = [list(BatchSamplerShard(sampler, processes, rank, even_batches=False)) for rank in range(processes)]
        assert {len(shard) % accumulation for shard in shards} == {0}
        steps = [shard[i : i + accumulation] for i in range(0, len(shards[0]), accumulation) for shard in shards]
        orders.append([sorted(batch for part in steps[i : i + processes] for batch in part)
                       for i in range(0, len(steps), processes)])  # fmt: skip
    assert all(order == orders[0] for order in orders)


def test_seed_and_epoch_determine_the_order():
    pairs = [(1 + i % 9, 1 + i % 7) for i in range(200)]
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        sampler = make_sampler(pairs, seed=seed)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert list(make_sampler(pairs)) == orders[0]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    # The contents of the batches change, not only their order.
    assert {frozenset(batch) for batch in orders[0]} != {frozenset(batch) for batch in orders[1]}


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


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([(5, 6)], {"num_processes": 2}, "at least one pair for each of 2 processes, got 1"),
        ([(5, 6), (60, 70)], {}, r"max_tokens \(in training: max_tokens_per_batch\) must be at least 130, .* got 120"),
    ],
)
def test_invalid_arguments_raise_value_error(pairs, options, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(pairs, **options)


@given(pairs=lengths)
def test_batches_are_as_large_as_the_budget_allows(pairs):
    """Adding one pair at a time to a batch yields the same boundaries."""
    sampler = make_sampler(pairs)
    by_length = sampler._sort(np.arange(len(pairs)))
    expected = [[]]
    for index in by_length.tolist():
        grown = [*expected[-1], index]
        if np.max([pairs[i] for i in grown], axis=0).sum() * len(grown) > 120:
            expected.append([])
        expected[-1].append(index)
    assert sorted(map(len, sampler)) == sorted(map(len, expected))
    assert sampler.batch_starts == np.cumsum([0, *map(len, expected[:-1])]).tolist()


@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=40),
    processes=st.integers(1, 4),
    max_pairs=st.integers(1, 8),
)
def test_evaluation_sampler_contains_every_pair_at_its_position(pairs, processes, max_pairs):
    sources = [source for source, _ in pairs]
    limits = [-(-source // 16) for source in sources]
    sampler = EvaluationSampler(np.array(pairs), 40, max_pairs, processes, limits=limits)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert len(batches) % processes == 0
    once = [index for batch in batches[: sampler.num_batches] for index in batch]
    assert sorted(once) == list(range(len(pairs)))
    rows = [index for batch in batches for index in batch]
    assert [rows[position] for position in sampler.row_indices()] == list(range(len(pairs)))
    for batch in batches:
        assert 1 <= len(batch) <= max_pairs
        assert len(batch) == 1 or np.max([pairs[i] for i in batch], axis=0).sum() * len(batch) <= 40
        assert len({limits[i] for i in batch}) == 1
    assert [sources[i] for i in once] == sorted(sources, reverse=True)

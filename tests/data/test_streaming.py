"""Token-budget batches from a streamed corpus, or from one stream of several."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import (
    CorpusMixture,
    DatasetText,
    LengthLimits,
    ParallelText,
    TokenBudgetStream,
    streaming,
)
from modeling_random_transformer.data.lengths import TOO_LONG
from modeling_random_transformer.data.sources import EMPTY_SIDE
from modeling_random_transformer.training import BPEDropout
from tests.helpers.corpora import PAIRS

TOKENIZER = RandomTransformerTokenizer.train([text for pair in PAIRS for text in pair], vocab_size=270)


def make_corpus(pairs):
    """A corpus of different pairs, with texts of different lengths."""
    rows = [{"source": "a" * (1 + i % 9) + str(i), "target": "b" * (1 + i % 7)} for i in range(pairs)]
    return DatasetText(Dataset.from_list(rows))


def streams(corpus, processes=1, accumulation=1, **options):
    options = {"max_tokens": 90, "buffer_pairs": 16, **options}
    streams = [TokenBudgetStream(corpus, TOKENIZER, **options) for _ in range(processes)]
    for index, stream in enumerate(streams):
        stream.set_share(index, processes, accumulation)
    return streams


@settings(max_examples=12, deadline=None)
@given(pairs=st.integers(4, 70), epoch=st.integers(0, 2), dropout=st.sampled_from([0, 0.3]))
def test_every_pair_occurs_once_and_steps_depend_on_the_product_of_processes_and_accumulation(pairs, epoch, dropout):
    corpus, orders = make_corpus(pairs), []
    for processes in (1, 2, 4):
        accumulation = 4 // processes
        options = {"accumulation": accumulation, "retokenizer": BPEDropout(TOKENIZER, dropout)}
        shares = [list(stream.epoch(epoch)) for stream in streams(corpus, processes, **options)]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) % accumulation == 0
        orders.append([
            sorted(str(batch) for share in shares for batch in share[i : i + accumulation])
            for i in range(0, len(shares[0]), accumulation)
        ])  # fmt: skip
        batches = [batch for share in shares for batch in share]
        sources = [TOKENIZER.decode(row["input_ids"], skip_special_tokens=True) for batch in batches for row in batch]
        assert sorted(sources) == sorted(row["source"] for row in corpus.dataset)
        for batch in batches if dropout == 0 else ():
            longest = sum(max(len(row[name]) for row in batch) for name in ("input_ids", "labels"))
            assert longest * len(batch) <= 90
    assert orders[0] == orders[1] == orders[2]


def test_invalid_arguments_raise_value_error(monkeypatch):
    for options, message in (
        ({"on_invalid": "ignore"}, "on_invalid must be one of error, skip, got 'ignore'"),
        ({"limits": LengthLimits(source=1)}, "at least one valid pair"),
    ):
        with pytest.raises(ValueError, match=message):
            next(iter(streams(make_corpus(5), **options)[0]))
    (stream,) = streams(make_corpus(20))
    monkeypatch.setattr(streaming, "get_worker_info", object)  # in a worker of another DataLoader
    with pytest.raises(ValueError, match="num_workers must be given to TokenBudgetStream"):
        next(iter(stream))


def test_a_buffer_has_a_pair_for_each_batch_of_a_step():
    shares = [list(stream.epoch(0)) for stream in streams(make_corpus(40), 2, 4, buffer_pairs=1)]
    assert [len(share) % 4 for share in shares] == [0, 0]


def test_pairs_above_the_positions_of_the_model_are_skipped_and_counted():
    corpus = DatasetText(Dataset.from_list([{"source": "a" * length, "target": "b"} for length in (2, 30, 4)]))
    (stream,) = streams(corpus, retokenizer=BPEDropout(TOKENIZER, 0.3))
    stream.limit_length(10)
    (batch,) = stream.epoch(0)
    assert max(len(row["input_ids"]) for row in batch) <= 10
    assert stream.report.first == {TOO_LONG: [2]}
    assert stream.report.valid == len(batch) == 2


def test_batches_do_not_depend_on_num_workers(monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 10)
    rows = [{"source": " " if i % 9 == 0 else "a" * (1 + i % 9), "target": str(i)} for i in range(95)]
    corpus = DatasetText(Dataset.from_list(rows))
    options = {"on_invalid": "skip", "limits": LengthLimits(source=9)}
    (alone,), shares = streams(corpus, **options), streams(corpus, 2, **options)
    expected = [batch for epoch in range(2) for batch in alone.epoch(epoch)]
    assert list(streams(corpus, seed=2, **options)[0].epoch(0)) != list(alone.epoch(0)) != list(alone.epoch(1))
    assert [*islice(alone, len(expected))] == expected
    random_state = torch.get_rng_state()
    (stream,) = streams(corpus, num_workers=2, **options)
    assert [batch for epoch in range(2) for batch in stream.epoch(epoch)] == expected
    assert torch.equal(torch.get_rng_state(), random_state)  # the random state of dropout
    assert stream.report == alone.report == alone.previous_report
    next(alone.epoch(2))
    assert alone.previous_report == stream.report  # complete, as the current one may not be
    assert alone.previous_report.counts == {EMPTY_SIDE: 11, TOO_LONG: 10}
    assert [len(list(share.epoch(0))) for share in shares] == [len(list(shares[0].epoch(0)))] * 2


def test_streaming_dataset_has_one_worker(monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 5)
    corpus = DatasetText(make_corpus(40).dataset.to_iterable_dataset(num_shards=4))
    (stream,), (alone,) = streams(corpus, num_workers=3), streams(corpus)
    assert stream.num_workers == 1
    assert list(stream.epoch(0)) == list(alone.epoch(0))


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

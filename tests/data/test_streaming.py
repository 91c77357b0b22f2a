"""Token-budget batches from a streamed corpus."""

from itertools import islice

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import streaming
from modeling_random_transformer.training import DataArguments, DatasetText, TokenBudgetStream
from tests.helpers.corpora import PAIRS, write_invalid_lines
from tests.helpers.training import run, write_corpus

TOKENIZER = RandomTransformerTokenizer.train([text for pair in PAIRS for text in pair], vocab_size=270)


def numbered_corpus(pairs):
    """A corpus of different pairs, with texts of different lengths."""
    rows = [{"source": "a" * (1 + i % 9) + str(i), "target": "b" * (1 + i % 7)} for i in range(pairs)]
    return DatasetText(Dataset.from_list(rows))


def streams(corpus, processes=1, **options):
    options = {"max_tokens": 90, "buffer_pairs": 16, **options}
    return [
        TokenBudgetStream(corpus, TOKENIZER, process_index=index, num_processes=processes, **options)
        for index in range(processes)
    ]


@settings(max_examples=25, deadline=None)
@given(pairs=st.integers(4, 70), processes=st.integers(1, 4), epoch=st.integers(0, 2))
def test_every_pair_occurs_once_per_epoch_and_processes_get_equally_many_batches(pairs, processes, epoch):
    shares = [list(stream.epoch(epoch)) for stream in streams(numbered_corpus(pairs), processes)]
    assert len({len(share) for share in shares}) == 1
    rows = [row for share in shares for batch in share for row in batch]
    assert sorted(TOKENIZER.decode(row["input_ids"], skip_special_tokens=True) for row in rows) == sorted(
        row["source"] for row in numbered_corpus(pairs).dataset
    )
    for batch in (batch for share in shares for batch in share):
        longest = sum(max(len(row[name]) for row in batch) for name in ("input_ids", "labels"))
        assert longest * len(batch) <= 90


def test_seed_and_epoch_determine_the_order():
    first, second, other = (streams(numbered_corpus(50), seed=seed)[0] for seed in (1, 1, 2))
    assert list(first.epoch(0)) == list(second.epoch(0)) != list(other.epoch(0))
    assert list(first.epoch(0)) != list(first.epoch(1))
    whole = [*first.epoch(0), *first.epoch(1)]
    assert list(islice(first, len(whole))) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_pairs": 0}, "buffer_pairs must be at least num_processes=1, got 0"),
        ({"on_invalid": "ignore"}, "on_invalid must be 'error' or 'skip', got 'ignore'"),
        ({"max_source_length": 1}, "at least one valid pair"),
    ],
)
def test_invalid_arguments_raise_value_error(options, message):
    with pytest.raises(ValueError, match=message):
        next(iter(streams(numbered_corpus(5), **options)[0]))


def test_invalid_lines_are_skipped_and_reported_or_raise_error(tmp_path):
    corpus = write_invalid_lines(tmp_path)
    (stream,) = streams(corpus, on_invalid="skip")
    assert [len(batch) for batch in stream.epoch(0)] == [1]
    assert "5 of 6 lines are invalid" in str(stream.report)
    with pytest.raises(ValueError, match=r"with an empty source or target \(line 2\)"):
        next(iter(streams(corpus, on_invalid="error")[0]))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_do_not_depend_on_num_workers(num_workers, monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 10)
    rows = [{"source": " " if i % 9 == 0 else "a" * (1 + i % 9), "target": str(i)} for i in range(95)]
    corpus = DatasetText(Dataset.from_list(rows))
    options = {"on_invalid": "skip", "max_source_length": 9}
    (alone,), shares = streams(corpus, **options), streams(corpus, 2, num_workers=num_workers, **options)
    expected = [batch for epoch in range(2) for batch in alone.epoch(epoch)]
    random_state = torch.get_rng_state()
    (stream,) = streams(corpus, num_workers=num_workers, **options)
    assert [batch for epoch in range(2) for batch in stream.epoch(epoch)] == expected
    assert torch.equal(torch.get_rng_state(), random_state)  # the random state of dropout
    assert stream.report == alone.report
    assert alone.report.counts == {"with an empty source or target": 11, "longer than the maximum length": 10}
    assert [len(list(share.epoch(0))) for share in shares] == [len(list(shares[0].epoch(0)))] * 2


def test_streaming_dataset_has_one_worker(monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 5)
    corpus = DatasetText(numbered_corpus(40).dataset.to_iterable_dataset(num_shards=4))
    (stream,), (alone,) = streams(corpus, num_workers=3), streams(corpus)
    assert stream.num_workers == 1
    assert list(stream.epoch(0)) == list(alone.epoch(0))


def test_workers_of_a_dataloader_raise_value_error():
    (stream,) = streams(numbered_corpus(20))
    with pytest.raises(ValueError, match="num_workers must be given to TokenBudgetStream"):
        list(islice(DataLoader(stream, batch_size=None, collate_fn=list, num_workers=1), 2))


@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_different_lengths_raise_error_before_training(streaming, tmp_path):
    write_corpus(tmp_path)
    with (tmp_path / "train.a").open("a") as lines:
        lines.write("abc\n")
    with pytest.raises(ValueError, match=r"must have the same number of lines, got 121 and 120\."):
        run(tmp_path, "out", on_invalid="skip", streaming=streaming)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.slow
def test_streaming_run_resumes(tmp_path):
    """An interrupted run with workers ends with the weights of an uninterrupted run without workers."""
    write_corpus(tmp_path)
    options = {"streaming": True, "buffer_pairs": 50, "average_last": 1, "save_total_limit": 9}
    run(tmp_path, "whole", **options)
    options["dataloader_num_workers"] = 2
    run(tmp_path, "parts", **options)
    for step in (8, 10, 12):
        (tmp_path / "parts" / f"checkpoint-{step}" / "complete.json").unlink()
    (tmp_path / "parts" / "model.safetensors").unlink()
    result = run(tmp_path, "parts", **options)
    assert (result.steps, result.pairs) == (12, 120)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")]
    for name, weight in weights[0].items():
        assert torch.equal(weights[1][name], weight), name


@pytest.mark.parametrize("streaming", [False, True])
def test_training_on_a_dataset_of_datasets(streaming, tmp_path):
    write_corpus(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "test"):
        sides = [(tmp_path / f"{split}.{side}").read_text().splitlines() for side in "ab"]
        rows = [{"translation": {"en": source, "es": target}} for source, target in zip(*sides, strict=True)]
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    given = {"dataset_name": str(folder), "test_split": "test", "source_key": "en", "target_key": "es"}
    files = dict.fromkeys(("source_file", "target_file", "test_source_file", "test_target_file"))
    result = run(tmp_path, "out", **files, **given, streaming=streaming)
    assert (result.pairs, set(result.scores)) == (120, {"test"})


def test_unknown_dataset_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"dataset_name='.*nothing'.* must name a dataset"):
        DataArguments(dataset_name=str(tmp_path / "nothing")).text("train")

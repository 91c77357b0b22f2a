"""Batches from a corpus that is read as it comes."""

from itertools import islice

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_corpus import PAIRS, broken_files, write
from torch.utils.data import DataLoader

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import streaming
from modeling_random_transformer.training import DataArguments, DatasetText, TokenBudgetStream
from tests.helpers.training import run, write_corpus

TOKENIZER = RandomTransformerTokenizer.train([side for pair in PAIRS for side in pair], vocab_size=270)


def numbered(pairs):
    """A corpus whose pairs differ, in sides of 1 to 9 letters."""
    rows = [{"source": "a" * (1 + i % 9) + str(i), "target": "b" * (1 + i % 7)} for i in range(pairs)]
    return DatasetText(Dataset.from_list(rows))


def streams(text, processes=1, **options):
    options = {"max_tokens": 90, "buffer_pairs": 16, **options}
    return [
        TokenBudgetStream(text, TOKENIZER, process_index=index, num_processes=processes, **options)
        for index in range(processes)
    ]


@settings(max_examples=25, deadline=None)
@given(pairs=st.integers(4, 70), processes=st.integers(1, 4), epoch=st.integers(0, 2))
def test_every_pair_once_an_epoch_and_processes_in_step(pairs, processes, epoch):
    shares = [list(stream.epoch(epoch)) for stream in streams(numbered(pairs), processes)]
    assert len({len(share) for share in shares}) == 1
    rows = [row for share in shares for batch in share for row in batch]
    assert sorted(TOKENIZER.decode(row["input_ids"], skip_special_tokens=True) for row in rows) == sorted(
        row["source"] for row in numbered(pairs).dataset
    )
    for batch in (batch for share in shares for batch in share):
        longest = sum(max(len(row[name]) for row in batch) for name in ("input_ids", "labels"))
        assert longest * len(batch) <= 90


def test_the_seed_fixes_the_order_and_epochs_differ():
    first, second, other = (streams(numbered(50), seed=seed)[0] for seed in (1, 1, 2))
    assert list(first.epoch(0)) == list(second.epoch(0)) != list(other.epoch(0))
    assert list(first.epoch(0)) != list(first.epoch(1))
    whole = [*first.epoch(0), *first.epoch(1)]
    assert list(islice(first, len(whole))) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_pairs": 0}, "buffer_pairs must be at least num_processes=1, got 0"),
        ({"on_invalid": "mend"}, "on_invalid must be 'error' or 'skip', got 'mend'"),
        ({"max_source_length": 1}, "there is nothing to train on"),
    ],
)
def test_what_cannot_be_streamed_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        next(iter(streams(numbered(5), **options)[0]))


def test_broken_lines_are_dropped_and_reported_or_refused(tmp_path):
    text = broken_files(tmp_path)
    (stream,) = streams(text, on_invalid="skip")
    assert [len(batch) for batch in stream.epoch(0)] == [1]
    assert "5 of 6 lines are broken" in str(stream.report)
    with pytest.raises(ValueError, match=r"with an empty side \(line 2\)"):
        next(iter(streams(text, on_invalid="error")[0]))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_batches_do_not_depend_on_the_workers(num_workers, monkeypatch):
    monkeypatch.setattr(streaming, "READ_AT_ONCE", 10)
    rows = [{"source": " " if i % 9 == 0 else "a" * (1 + i % 9), "target": str(i)} for i in range(95)]
    text = DatasetText(Dataset.from_list(rows))
    options = {"on_invalid": "skip", "max_source_length": 9}
    (alone,), shares = streams(text, **options), streams(text, 2, num_workers=num_workers, **options)
    expected = [batch for epoch in range(2) for batch in alone.epoch(epoch)]
    random_state = torch.get_rng_state()
    (stream,) = streams(text, num_workers=num_workers, **options)
    assert [batch for epoch in range(2) for batch in stream.epoch(epoch)] == expected
    assert torch.equal(torch.get_rng_state(), random_state)  # or a resumed run would drop out other units
    assert stream.report == alone.report
    assert alone.report.counts == {"with an empty side": 11, "over-long": 10}
    assert [len(list(share.epoch(0))) for share in shares] == [len(list(shares[0].epoch(0)))] * 2


def test_a_streamed_data_set_has_one_worker(monkeypatch):
    monkeypatch.setattr(streaming, "READ_AT_ONCE", 5)
    text = DatasetText(numbered(40).dataset.to_iterable_dataset(num_shards=4))
    (stream,), (alone,) = streams(text, num_workers=3), streams(text)
    assert stream.num_workers == 1
    assert list(stream.epoch(0)) == list(alone.epoch(0))


def test_workers_are_the_streams_own():
    (stream,) = streams(numbered(20))
    with pytest.raises(ValueError, match="num_workers must be given to TokenBudgetStream"):
        list(islice(DataLoader(stream, batch_size=None, collate_fn=list, num_workers=1), 2))


@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_different_lengths_stop_a_run_before_training(streaming, tmp_path):
    write_corpus(tmp_path)
    with (tmp_path / "train.a").open("a") as lines:
        lines.write("abc\n")
    with pytest.raises(ValueError, match=r"must have the same number of lines, got 121 and 120\."):
        run(tmp_path, "out", on_invalid="skip", streaming=streaming)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_the_vocabulary_is_learned_from_the_whole_corpus(monkeypatch):
    from modeling_random_transformer.training import preparation as module

    text = numbered(100)
    monkeypatch.setattr(module, "TOKENIZER_PAIRS", 30)
    sources = [row["source"] for row in text.dataset]
    assert list(module._tokenizer_texts(text, 100))[::2] == sources[::4]
    assert list(module._tokenizer_texts(text, 30))[::2] == sources[:30]
    assert list(module._tokenizer_texts(text, None))[::2] == sources[:30]  # an endless stream has no other sample


@pytest.mark.slow
def test_a_run_from_a_stream_goes_on_where_it_stopped(tmp_path):
    """Half a run and the rest of it see the batches, and end with the weights, of a whole run without workers."""
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
def test_whatever_datasets_loads(streaming, tmp_path):
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


def test_a_dataset_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"dataset_name='.*nothing'.* must name a dataset"):
        DataArguments(dataset_name=str(tmp_path / "nothing")).text("train")
    with pytest.raises(ValueError, match="must be columns of the dataset, a, b, got 'source' and 'target'"):
        DatasetText(Dataset.from_dict({"a": ["x"], "b": ["y"]}))
    rows = Dataset.from_list([{"source": "x", "target": None}, {"source": " ", "target": "y"}])
    assert DatasetText(rows).check().counts == {"not of two sides": 1, "with an empty side": 1}


@pytest.mark.parametrize("kind", ["aligned", "tsv", "jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_text(kind, tmp_path):
    text = write(tmp_path, kind)
    for path in filter(None, (text.source, text.target)):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [tuple(line[1:]) for line in text.lines()] == PAIRS

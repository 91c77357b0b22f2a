"""Tokenization of parallel text, and the sample for a vocabulary."""

import multiprocessing

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import tokenization
from modeling_random_transformer.data.sources import DatasetText, ParallelText
from modeling_random_transformer.data.tokenization import (
    RATIO,
    TOO_LONG,
    LengthLimits,
    lengths_of,
    tokenize_pairs,
    vocabulary_sample,
)
from modeling_random_transformer.data.validation import load_pairs
from tests.helpers.corpora import PAIRS, write_pairs


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.train([text for pair in PAIRS for text in pair], vocab_size=270)


@pytest.mark.parametrize("num_proc", [None, 2])
def test_token_ids_decode_to_the_texts(num_proc, tokenizer, tmp_path):
    pairs, _ = load_pairs(write_pairs(tmp_path, "tsv"), cache_dir=tmp_path / "cache")
    tokens, report = tokenize_pairs(pairs, tokenizer, num_proc=num_proc)
    assert report.invalid == 0
    for row, (source, target) in zip(tokens, PAIRS, strict=True):
        assert tokenizer.decode(row["input_ids"], skip_special_tokens=True) == source
        assert tokenizer.decode(row["labels"], skip_special_tokens=True) == target
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
        assert (row["source_length"], row["target_length"]) == (len(row["input_ids"]), len(row["labels"]))


def test_long_pairs_are_skipped(tokenizer, tmp_path):
    pairs, _ = load_pairs(write_pairs(tmp_path, "tsv"), cache_dir=tmp_path / "cache")
    lengths = tokenize_pairs(pairs, tokenizer)[0]["source_length"][:]
    limit = max(lengths) - 1
    kept, report = tokenize_pairs(pairs, tokenizer, LengthLimits(source=limit))
    assert report.first == {TOO_LONG: [i + 1 for i, length in enumerate(lengths) if length > limit]}
    assert len(kept) == len(PAIRS) - report.invalid
    with pytest.raises(ValueError, match="at least one valid pair"):
        tokenize_pairs(pairs, tokenizer, LengthLimits(target=1))


def test_pairs_of_unequal_length_are_skipped(tokenizer):
    rows = [("a b c", "a b"), ("a b", "a b c d"), ("b", "b"), ("a", "b " * 9)]
    pairs = Dataset.from_list([{"line": i, "source": a, "target": b} for i, (a, b) in enumerate(rows, start=1)])
    lengths = lengths_of(tokenize_pairs(pairs, tokenizer)[0]) - 1
    ratios = lengths.max(axis=1) / lengths.min(axis=1)
    assert min(ratios[:2]) > 1
    longest = int(lengths[1, 1]) + 1
    kept, report = tokenize_pairs(pairs, tokenizer, LengthLimits(target=longest, ratio=ratios[0]))
    assert (kept["line"][:], report.first) == ([1, 3], {TOO_LONG: [4], RATIO: [2]})


def load_and_tokenize(folder):
    pairs, _ = load_pairs(ParallelText(folder / "a.tsv"), cache_dir=folder / "cache")
    tokens, _ = tokenize_pairs(pairs, AutoTokenizer.from_pretrained(folder))
    return tokens.cache_files[0]["filename"]


def test_concurrent_processes_share_one_cache(tokenizer, tmp_path):
    write_pairs(tmp_path, "tsv", PAIRS * 500)
    tokenizer.save_pretrained(tmp_path)
    with multiprocessing.get_context("fork").Pool(2) as processes:
        files = set(processes.map(load_and_tokenize, [tmp_path] * 2, chunksize=1))
    assert len(files) == 1
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 2  # the pairs and their tokens


def test_lengths_are_those_of_columns_or_counted():
    assert lengths_of([{"input_ids": [4, 5, 2], "labels": [4, 2]}, {"input_ids": [2]}]).tolist() == [[3, 2], [1, 0]]
    columns = Dataset.from_list([{"source_length": i, "target_length": 2 * i} for i in range(9)])
    assert lengths_of(columns.select([7, 1, 4]).select([2, 0])).tolist() == [[4, 8], [7, 14]]
    with pytest.raises(ValueError, match="must have a length, got generator"):
        lengths_of(row for row in columns)


def test_vocabulary_sample_is_taken_at_equal_distances_or_from_the_start(monkeypatch):
    monkeypatch.setattr(tokenization, "VOCABULARY_PAIRS", 30)
    rows = [{"source": "" if i % 5 == 2 else f"source {i}", "target": f"target {i}"} for i in range(100)]
    corpus = DatasetText(Dataset.from_list(rows))
    for lines, sample in ((100, rows[::4]), (None, rows[:30])):
        assert list(vocabulary_sample(corpus, lines)) == [
            text for row in sample if row["source"] for text in row.values()
        ]


def test_tokens_are_shared_by_runs_in_different_folders(tokenizer, tmp_path):
    """The tokenizer of each run is loaded from its own folder."""
    pairs, _ = load_pairs(write_pairs(tmp_path, "tsv"), cache_dir=tmp_path / "cache")
    files = []
    for name in ("first", "second"):
        tokenizer.save_pretrained(tmp_path / name)
        loaded = AutoTokenizer.from_pretrained(tmp_path / name)
        tokens, _ = tokenize_pairs(pairs, loaded)
        files.append(tokens.cache_files)
        assert loaded.name_or_path == str(tmp_path / name)
    assert files[0] == files[1]

"""Tokenization of parallel text, and the sample for a vocabulary."""

import multiprocessing

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import (
    DatasetText,
    LengthLimits,
    ParallelText,
    lengths_of,
    load_pairs,
    tokenization,
    tokenize_pairs,
    vocabulary_sample,
)
from modeling_random_transformer.data.lengths import TOO_LONG, UNEQUAL
from modeling_random_transformer.tokenization_random_transformer import normalize
from tests.helpers.corpora import PAIRS, write_pairs

TOKENIZER = RandomTransformerTokenizer.train([text for pair in PAIRS for text in pair], vocab_size=270)


def dataset(pairs):
    return Dataset.from_list([{"line": i, "source": a, "target": b} for i, (a, b) in enumerate(pairs, start=1)])


@pytest.mark.parametrize("num_proc", [None, 2])
def test_token_ids_decode_to_the_texts(num_proc):
    tokens, report = tokenize_pairs(dataset(PAIRS), TOKENIZER, num_proc=num_proc)
    assert report.invalid == 0
    for row, (source, target) in zip(tokens, PAIRS, strict=True):
        assert TOKENIZER.decode(row["input_ids"], skip_special_tokens=True) == normalize(source)
        assert TOKENIZER.decode(row["labels"], skip_special_tokens=True) == normalize(target)
        assert row["input_ids"][-1] == row["labels"][-1] == TOKENIZER.eos_token_id
        assert (row["source_length"], row["target_length"]) == (len(row["input_ids"]), len(row["labels"]))


def test_long_pairs_and_pairs_of_unequal_length_are_skipped():
    pairs = dataset([("a b c", "a b"), ("a b", "a b c d"), ("b", "b"), ("a", "b " * 9), ("b " * 30, "b " * 30)])
    source, target = (lengths_of(tokenize_pairs(pairs, TOKENIZER)[0]) - 1).T
    ratio = source[0] / target[0]
    assert 1 < ratio < target[1] / source[1]
    limits = LengthLimits(source=int(source[0]) + 1, target=int(target[1]) + 1, ratio=ratio)
    kept, report = tokenize_pairs(pairs, TOKENIZER, limits)
    assert (kept["line"][:], report.first) == ([1, 3], {TOO_LONG: [4, 5], UNEQUAL: [2]})
    with pytest.raises(ValueError, match="at least one valid pair"):
        tokenize_pairs(pairs, TOKENIZER, LengthLimits(target=1))


def load_and_tokenize(folder):
    """Tokenize with the tokenizer of a folder; the corpus and the cache are in its parent."""
    pairs, _ = load_pairs(ParallelText(folder.parent / "a.tsv"), cache_dir=folder.parent / "cache")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens, _ = tokenize_pairs(pairs, tokenizer)
    assert tokenizer.name_or_path == str(folder)
    return tokens.cache_files[0]["filename"]


def test_concurrent_processes_of_different_folders_share_one_cache(tmp_path):
    write_pairs(tmp_path, "tsv", PAIRS * 500)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        TOKENIZER.save_pretrained(folder)
    with multiprocessing.get_context("fork").Pool(2) as processes:
        files = set(processes.map(load_and_tokenize, folders, chunksize=1))
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
    for lines, sample in ((100, rows[::4]), (None, rows[:30])):
        texts = [text for row in sample if row["source"] for text in row.values()]
        assert list(vocabulary_sample(DatasetText(Dataset.from_list(rows)), lines)) == texts

"""Validation of parallel text, and its memory-mapped dataset."""

import gzip
import os
from pathlib import Path

import pytest

from modeling_random_transformer.data import ParallelText, load_pairs, validate
from modeling_random_transformer.data.sources import EMPTY_SIDE, NOT_UTF8
from modeling_random_transformer.data.validation import read_valid
from tests.helpers.corpora import write_invalid_lines


def test_invalid_lines_raise_error_or_are_skipped(tmp_path, caplog):
    corpus = write_invalid_lines(tmp_path)
    with pytest.raises(ValueError, match=r"5 of 6 lines are invalid.*skip them with on_invalid='skip'"):
        load_pairs(corpus, cache_dir=tmp_path / "cache")
    dataset, report = load_pairs(corpus, on_invalid="skip", cache_dir=tmp_path / "cache")
    assert [(row["line"], row["source"], row["target"]) for row in dataset] == [(1, "good", "bueno")]
    assert report == validate(corpus)
    assert report.counts == {EMPTY_SIDE: 4, NOT_UTF8: 1}
    assert report.first == {EMPTY_SIDE: [2, 4, 5, 6], NOT_UTF8: [3]}
    assert "1 not UTF-8 (line 3)" in str(report)
    assert [line.number for line in read_valid(corpus)] == [1]
    assert caplog.messages == [str(report)]
    with pytest.raises(ValueError, match="on_invalid must be one of error, skip, got 'ignore'"):
        load_pairs(corpus, on_invalid="ignore")


def test_text_in_another_encoding(tmp_path):
    lines = ["el niño", "la niña", "el pan", "la casa"]
    for encoding, count in (("utf-8", 0), ("latin-1", 2)):
        (tmp_path / encoding).write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
        corpus = ParallelText(tmp_path / "utf-8", tmp_path / encoding)
        assert validate(corpus).invalid == count
    with pytest.raises(ValueError, match=r"texts must be UTF-8, .* 2 of 4 lines are invalid: 2 not UTF-8"):
        validate(corpus, "skip")


@pytest.mark.parametrize("on_invalid", ["error", "skip"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"dog\tperro\tCC-BY\ncat\tgato\tCC-BY\n",
            "in two columns, or those of source_key and target_key, .*, got .* 2 of 2",
        ),
        (b"dog perro\n", "in two columns, or those of source_key and target_key, .*, got .* 1 of 1 lines are invalid"),
        (b"\t\n", "there must be at least one valid pair of texts, got .* 1 with an empty source or target"),
        (
            "boy\tniño\nman\thombre\n".encode("latin-1"),
            r"texts must be UTF-8, got .* save them as CSV UTF-8\.",
        ),
    ],
)
def test_a_file_as_a_whole_is_no_parallel_text(content, message, on_invalid, tmp_path):
    """Its lines need no correction one by one."""
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        validate(ParallelText(tmp_path / "a.tsv"), on_invalid)


def test_errors_of_the_reader_name_the_file(tmp_path):
    damaged = gzip.compress(b"a\tb\n" * 9999)[:-20]
    empty = gzip.compress(b"")
    for content, message in ((damaged, r"a\.tsv\.gz must be a complete gzip file"), (empty, r"got .*a\.tsv\.gz")):
        (tmp_path / "a.tsv.gz").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_pairs(ParallelText(tmp_path / "a.tsv.gz"), cache_dir=tmp_path / "cache")


def test_projects_with_equal_relative_paths_sizes_and_times(tmp_path, monkeypatch):
    for word in ("dog", "cat"):
        (tmp_path / word).mkdir()
        monkeypatch.chdir(tmp_path / word)
        Path("a.tsv").write_text(f"{word}\tx\n")
        os.utime("a.tsv", ns=(0, 0))
        assert load_pairs(ParallelText(Path("a.tsv")), cache_dir=tmp_path / "cache")[0]["source"][:] == [word]

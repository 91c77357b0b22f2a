"""Sources of parallel text: every file format, datasets, and the reason for each invalid line."""

import io
import os
import sys
from dataclasses import replace

import pandas
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data.readers import quoted, read_texts, unquoted
from modeling_random_transformer.data.sources import (
    EMPTY,
    NOT_A_PAIR,
    NOT_UTF8,
    UNALIGNED,
    DatasetText,
    InvalidLine,
    ParallelLine,
    ParallelText,
)
from modeling_random_transformer.inputs_random_transformer import LanguageTags
from modeling_random_transformer.utils.compressed_files import create_binary
from tests.helpers.corpora import PAIRS, write_invalid_lines, write_pairs


def compress(path, suffix):
    """Write a compressed copy of a file."""
    copy = path.with_name(path.name + suffix)
    with create_binary(copy) as file:
        file.write(path.read_bytes())
    return copy


@pytest.mark.parametrize(
    ("file_format", "suffix"), [("aligned", ".gz"), ("tsv", ".zst"), ("jsonl", ".gz"), ("aligned", "")]
)
def test_all_file_formats_yield_the_same_pairs(file_format, suffix, tmp_path):
    corpus = write_pairs(tmp_path, file_format)
    paths = [path for path in (corpus.source, corpus.target) if path is not None]
    for path in paths:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    read = ParallelText(*(compress(path, suffix) if suffix else path for path in paths))
    assert list(read.lines()) == [ParallelLine(number, *pair) for number, pair in enumerate(PAIRS, start=1)]


TABLE = "id\ten\tes\n1\tdog\tperro\n2\tcat\n3\tbird\tpájaro\textra\n"


def test_columns_of_tsv(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("\ufeff" + TABLE)
    assert list(ParallelText(path, None, "en", "es").lines()) == [
        ParallelLine(2, "dog", "perro"),
        *(InvalidLine(number, NOT_A_PAIR) for number in (3, 4)),
    ]
    by_number = list(ParallelText(path, None, "3", "2").lines())  # without a header
    assert by_number == [
        ParallelLine(1, "es", "en"),
        ParallelLine(2, "perro", "dog"),
        InvalidLine(3, NOT_A_PAIR),
        ParallelLine(4, "pájaro", "bird"),
    ]


def test_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    Dataset.from_dict({"en": ["dog", None, " "], "es": ["perro", "x", "y"], "id": [1, 2, 3]}).to_parquet(path)
    expected = [ParallelLine(1, "dog", "perro"), InvalidLine(2, NOT_A_PAIR), InvalidLine(3, EMPTY)]
    lines = list(ParallelText(path, None, "en", "es").lines())
    assert lines == expected
    assert lines[1].source == "{'en': None, 'es': 'x', 'id': 2}"
    with pytest.raises(ValueError, match=r"keys must be columns of .*a\.parquet, en, es, id, or numbers in a table"):
        list(ParallelText(path, None, "en", "fr").lines())
    Dataset.from_list([{"translation": {"en": "dog", "es": "perro"}}, {"translation": None}]).to_parquet(path)
    assert list(ParallelText(path, None, "en", "es").lines()) == [expected[0], InvalidLine(2, NOT_A_PAIR)]
    for dataset in (Dataset.from_parquet(str(path)), Dataset.from_parquet(str(path)).to_iterable_dataset()):
        assert list(DatasetText(dataset, "en", "es").lines()) == [expected[0], InvalidLine(2, NOT_A_PAIR)]
    path.write_text("text")
    with pytest.raises(ValueError, match=r"a\.parquet must be a Parquet file, got an error"):
        list(ParallelText(path).lines())


def test_standard_input_is_read_once(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"dog\tperro\n")))
    corpus = ParallelText("-")
    assert list(corpus.lines()) == [ParallelLine(1, "dog", "perro")]
    with pytest.raises(ValueError, match="the corpus must be in files, since it is read more than once"):
        corpus.fingerprint()
    with pytest.raises(ValueError, match="target must be given with a text file"):
        ParallelText("-", "-")


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("a.txt", "one\n\ntwo\u2028three\n", None),
        ("a.tsv.gz", "1\tone\n2\t\n3\ttwo\u2028three\n", "2"),
        ("a.jsonl", '{"text": "one"}\n{"text": ""}\n{"text": "two\u2028three"}\n', None),
    ],
)
def test_monolingual_text(name, content, key, tmp_path):
    with create_binary(tmp_path / name) as file:
        file.write(content.encode())
    texts = read_texts(tmp_path / name, *([] if key is None else [key]))
    assert list(texts) == ["one", "", "two\u2028three"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "one"}\n[]\n', "must have a text for the key 'text' on each line, but line 2 has none"),
        ("a.txt", b"one\ncaf\xe9\n", "must be UTF-8 text, but line 2 is not"),
    ],
)
def test_line_without_text_raises_value_error(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_texts(tmp_path / name))


TEXTS = [('He said "hi"', "x"), ('"quoted"', "a"), ("b", ' "'), ('"', 'a, "b"'), ('""a""', "\u2028")]


@pytest.mark.parametrize("header", [["source", "target"], False])
@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_tables_written_by_pandas_are_read_back(name, separator, header, tmp_path):
    rows = [*TEXTS, ("two\nlines", "a\ttab"), ("last", "x")] if name == "a.csv" else TEXTS
    pandas.DataFrame(rows).to_csv(tmp_path / name, sep=separator, header=header, index=False)
    lines = list(ParallelText(tmp_path / name).lines())
    assert [(line.source, line.target) for line in lines] == rows
    numbers = [1, 2, 3, 4, 5, 6, 8] if name == "a.csv" else [1, 2, 3, 4, 5]
    assert [line.number for line in lines] == [number + bool(header) for number in numbers]


@pytest.mark.parametrize("text", ["a\ttab", "two\nlines"])
def test_tabs_and_line_breaks_in_a_tsv_file_are_an_invalid_line(text, tmp_path):
    pandas.DataFrame([("a", "b"), (text, "x")]).to_csv(tmp_path / "a.tsv", sep="\t", header=False, index=False)
    assert list(ParallelText(tmp_path / "a.tsv").lines())[:2] == [ParallelLine(1, "a", "b"), InvalidLine(2, NOT_A_PAIR)]


@given(text=st.text('" a,', max_size=8))
def test_a_quoted_cell_is_restored(text):
    assert unquoted(quoted(text)) == text
    if '""' not in text:  # as in plain TSV files
        assert unquoted(text) == text


TRANSLATIONS = '{"translation": {"en": "dog", "es": "perro"}}\n{"translation": null}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", TRANSLATIONS),
        ("a.csv", "id,en,es\n1,dog,perro\n2,x\n"),
        ("a.tsv", "es\ten\nperro\tdog\nx\n"),
    ],
)
def test_columns_named_by_languages(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    by_keys, tags = ParallelText(tmp_path / name, None, "en", "es"), LanguageTags("en", "es")
    first = 1 if name == "a.jsonl" else 2
    valid, invalid = ParallelLine(first, "dog", "perro"), InvalidLine(first + 1, NOT_A_PAIR)
    assert list(by_keys.lines()) == [valid, invalid]
    by_languages = replace(by_keys, source_key="source", target_key="target", languages=tags)
    assert list(by_languages.lines()) == [replace(valid, languages=tags), invalid]
    assert by_keys.fingerprint() != replace(by_keys, target_key="id").fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "keys", "names"),
    [
        ("a.tsv", TABLE, ("en", "fr"), "id, en, es"),
        ("a.jsonl", '{"en": "dog", "id": 1}\n', ("source", "target"), "en, id"),
    ],
)
def test_unknown_columns_raise_value_error(name, content, keys, names, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(
        ValueError, match=rf"keys must be columns of .*{name}, {names}, or numbers in a table, got '{keys[0]}"
    ):
        list(ParallelText(path, None, *keys).lines())


def test_invalid_lines_of_aligned_files(tmp_path):
    corpus = write_invalid_lines(tmp_path)
    with corpus.target.open("a") as lines:
        lines.write("one more\n")
    reasons = [EMPTY, NOT_UTF8, EMPTY, EMPTY, EMPTY, UNALIGNED]
    invalid = [InvalidLine(number, reason) for number, reason in enumerate(reasons, start=2)]
    assert list(corpus.lines()) == [ParallelLine(1, "good", "bueno"), *invalid]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "no tab\na\tb\tc\nx\ty\n"),
        ("a.jsonl", '{"source": 1, "target": "b"}\n{"source": "b"}\n{"source": "x", "target": "y"}\n'),
        ("a.csv", 'only one\n"x"y,z\nx,y\n'),
        ("a.jsonl", "[" * 200_000 + '\n{"a":' + '\n{"source": "x", "target": "y"}\n'),
    ],
)
def test_lines_without_exactly_two_texts_are_invalid(name, content, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    expected = [InvalidLine(1, NOT_A_PAIR), InvalidLine(2, NOT_A_PAIR), ParallelLine(3, "x", "y")]
    assert list(ParallelText(path).lines()) == expected


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.tsv", b"caf\xe9\t" + 1000 * b"x", ("caf\ufffd", 200 * "x")),
        ("a.tsv", b"\tleer\n", ("", "leer")),
        ("a.jsonl", b'[{"source": 1}]\n', ('[{"source": 1}]', "")),
    ],
)
def test_an_invalid_line_has_the_beginnings_of_its_texts(name, content, texts, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    (line,) = ParallelText(path).lines()
    assert isinstance(line, InvalidLine)
    assert (line.source, line.target) == texts


def test_invalid_files_raise_value_error(tmp_path):
    (tmp_path / "a.en").touch()
    (tmp_path / "a.tsv").touch()
    with pytest.raises(ValueError, match=r"source must be a file, got '.*b\.en'"):
        ParallelText(tmp_path / "b.en", tmp_path / "a.en")
    message = "target must be given with a text file and omitted with a .tsv, .csv, .jsonl or .parquet file"
    with pytest.raises(ValueError, match=message):
        ParallelText(tmp_path / "a.en")
    with pytest.raises(ValueError, match=message):
        ParallelText(tmp_path / "a.tsv", tmp_path / "a.en")
    os.mkfifo(tmp_path / "b.tsv")
    with pytest.raises(ValueError, match="must be in files, since it is read more than once, got the pipe /"):
        ParallelText(tmp_path / "b.tsv").require_files()

"""Sources of parallel text: every file format, datasets, and the reason for each invalid line."""

import pytest
from datasets import Dataset

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
from tests.helpers.corpora import PAIRS, write_invalid_lines, write_pairs

FORMATS = ["aligned", "tsv", "jsonl"]


@pytest.mark.parametrize("byte_order_mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("file_format", FORMATS)
def test_all_file_formats_yield_the_same_pairs(file_format, byte_order_mark, tmp_path):
    corpus = write_pairs(tmp_path, file_format)
    for path in filter(None, (corpus.source, corpus.target)):
        path.write_bytes(byte_order_mark + path.read_bytes())
    assert list(corpus.lines()) == [ParallelLine(number, *pair) for number, pair in enumerate(PAIRS, start=1)]


def test_keys_of_json_objects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "dog", "es": "perro"}\n')
    corpus = ParallelText(path, source_key="en", target_key="es")
    assert list(corpus.lines()) == [ParallelLine(1, "dog", "perro")]


def test_invalid_lines_of_aligned_files(tmp_path):
    corpus = write_invalid_lines(tmp_path)
    reasons = [EMPTY, NOT_UTF8, EMPTY, EMPTY, EMPTY]
    invalid = [InvalidLine(number, reason) for number, reason in enumerate(reasons, start=2)]
    assert list(corpus.lines()) == [ParallelLine(1, "good", "bueno"), *invalid]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "no tab\na\tb\tc\nx\ty\n"),
        ("a.jsonl", '{"source": 1, "target": "b"}\n[]\n{"source": "x", "target": "y"}\n'),
        ("a.jsonl", "[" * 200_000 + '\n{"a":' + '\n{"source": "x", "target": "y"}\n'),
    ],
)
def test_lines_without_exactly_two_texts_are_invalid(name, content, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    expected = [InvalidLine(1, NOT_A_PAIR), InvalidLine(2, NOT_A_PAIR), ParallelLine(3, "x", "y")]
    assert list(ParallelText(path).lines()) == expected


@pytest.mark.parametrize("longer", ["a.en", "a.es"])
def test_lines_beyond_the_shorter_file_are_invalid(longer, tmp_path):
    corpus = write_pairs(tmp_path, "aligned")
    with (tmp_path / longer).open("a") as lines:
        lines.write("one more\n")
    assert list(corpus.lines())[-1] == InvalidLine(5, UNALIGNED)


def test_invalid_files_raise_value_error(tmp_path):
    (tmp_path / "a.en").touch()
    (tmp_path / "a.tsv").touch()
    with pytest.raises(ValueError, match=r"source must be a file, got .*b\.en"):
        ParallelText(tmp_path / "b.en", tmp_path / "a.en")
    message = "target must be given with a text file and omitted with a .tsv or .jsonl file"
    with pytest.raises(ValueError, match=message):
        ParallelText(tmp_path / "a.en")
    with pytest.raises(ValueError, match=message):
        ParallelText(tmp_path / "a.tsv", tmp_path / "a.en")


@pytest.mark.parametrize("streaming", [False, True])
def test_lines_of_a_dataset(streaming):
    texts = [("x", "y"), ("x", None), (" ", "y")]
    expected = [ParallelLine(1, "x", "y"), InvalidLine(2, NOT_A_PAIR), InvalidLine(3, EMPTY)]
    columns = Dataset.from_list([{"source": source, "target": target} for source, target in texts])
    languages = Dataset.from_list([{"translation": {"en": source, "es": target}} for source, target in texts])
    for rows, keys in ((columns, ("source", "target")), (languages, ("en", "es"))):
        dataset = rows.to_iterable_dataset() if streaming else rows
        assert list(DatasetText(dataset, *keys).lines()) == expected


def test_missing_columns_raise_value_error():
    with pytest.raises(ValueError, match="must be columns of the dataset, a, b, got 'source' and 'target'"):
        DatasetText(Dataset.from_dict({"a": ["x"], "b": ["y"]}))

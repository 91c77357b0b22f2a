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

from modeling_random_transformer.base.compressed_files import create_binaries
from modeling_random_transformer.data import DatasetText, InvalidLine, ParallelLine, ParallelText, read_texts, validate
from modeling_random_transformer.data.readers import quoted, unquoted
from modeling_random_transformer.data.sources import EMPTY_SIDE, NOT_A_PAIR
from modeling_random_transformer.inputs_random_transformer import Languages
from tests.helpers.corpora import PAIRS, read_pairs, write_invalid_lines, write_pairs


@pytest.mark.parametrize(
    ("file_format", "suffix"), [("aligned", ".gz"), ("tsv", ".zst"), ("jsonl", ".gz"), ("aligned", "")]
)
def test_all_file_formats_yield_the_same_pairs(file_format, suffix, tmp_path):
    corpus = write_pairs(tmp_path, file_format)
    copies = [path.with_name(f"{path.name}{suffix}") for path in (corpus.source, corpus.target) if path is not None]
    for path in copies:
        content = path.with_name(path.name.removesuffix(suffix)).read_bytes()
        with create_binaries([path]) as [file]:
            file.write(b"\xef\xbb\xbf" + content)  # a byte order mark
    lines = [ParallelLine(number, *pair) for number, pair in enumerate(PAIRS, start=1)]
    assert list(ParallelText(*copies).lines()) == lines


TABLE = "\ufeffid\ten\tes\n1\tdog\tperro\n2\tcat\n3\tbird\tpájaro\textra\n"
SEMICOLONS = '\ufeffid;en;es\r\n1;"a ""dog"", b";"perro; x\ny"\r\n2;cat;gato, gato\r\n3;bird\r\n'
ENGLISH_SPANISH = {"source_key": "en", "target_key": "es"}
BY_LANGUAGES = {"languages": Languages("en", "es")}
TRANSLATIONS = '{"translation": {"en": "dog", "es": "perro"}}\n{"translation": null}\n'
DEEP = "[" * 200_000 + '\n{"a":\n{"source": "x", "target": "y"}\n'


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.tsv", TABLE, ENGLISH_SPANISH, [(2, "dog", "perro"), 3, 4]),
        ("a.tsv", TABLE, {"source_key": "3", "target_key": "2"},
         [(1, "es", "en"), (2, "perro", "dog"), 3, (4, "pájaro", "bird")]),
        ("a.tsv", "no tab\na\tb\tc\nx\ty\n", {}, [1, 2, (3, "x", "y")]),
        ("a.tsv", "es\ten\nperro\tdog\nx\n", BY_LANGUAGES, [(2, "dog", "perro"), 3]),
        ("a.csv", "id,en,es\n1,dog,perro\n2,x\n", BY_LANGUAGES, [(2, "dog", "perro"), 3]),
        ("a.csv", 'only one\n"x"y,z\nx,y\n', {}, [1, 2, (3, "x", "y")]),
        ("a.csv", 'a,b\n"not closed,b\nx,y\nz,w\n', {}, [(1, "a", "b"), 2, 3, 4]),
        ("a.csv", SEMICOLONS, ENGLISH_SPANISH, [(2, 'a "dog", b', "perro; x\ny"), (4, "cat", "gato, gato"), 5]),
        ("a.csv", SEMICOLONS, {"source_key": "3", "target_key": "2"},
         [(1, "es", "en"), (2, "perro; x\ny", 'a "dog", b'), (4, "gato, gato", "cat"), 5]),
        ("a.csv", "perro;dog\ngato;cat\n", {"source_key": "2", "target_key": "1"},
         [(1, "dog", "perro"), (2, "cat", "gato")]),
        ("a.csv", "one, two;uno, dos\nred, blue, green;rojo\n", {}, [(1, "one, two", "uno, dos"),
         (2, "red, blue, green", "rojo")]),
        ("a.csv", "one; two,uno; dos\nred; blue,rojo\n", {}, [(1, "one; two", "uno; dos"), (2, "red; blue", "rojo")]),
        ("a.csv", "one;two,three\n", {}, [(1, "one;two", "three")]),
        ("a.csv", "x" * 1_000_000 + ",y\na,b\n", {}, [1, (2, "a", "b")]),
        ("a.csv", "es;en\nperro;dog\n" + "gato, gris;grey, cat\n" * 200 + "x\n", BY_LANGUAGES,
         [(2, "dog", "perro"), *((number, "grey, cat", "gato, gris") for number in range(3, 203)), 203]),
        ("a.jsonl", TRANSLATIONS, BY_LANGUAGES, [(1, "dog", "perro"), 2]),
        ("a.jsonl", TRANSLATIONS, ENGLISH_SPANISH, [(1, "dog", "perro"), 2]),
        ("a.jsonl", '{"source": 1, "target": "b"}\n{"source": "b"}\n{"source": "x", "target": "y"}\n', {},
         [1, 2, (3, "x", "y")]),
        ("a.jsonl", DEEP, {}, [1, 2, (3, "x", "y")]),
    ],
)  # fmt: skip
def test_pairs_are_in_the_columns_that_the_keys_name(name, content, options, expected, tmp_path):
    (tmp_path / name).write_text(content)
    corpus = ParallelText(tmp_path / name, **options)
    assert list(corpus.lines()) == [
        InvalidLine(line, NOT_A_PAIR) if isinstance(line, int) else ParallelLine(*line, corpus.languages)
        for line in expected
    ]
    assert corpus.fingerprint() != replace(corpus, target_key="id").fingerprint()


def test_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    Dataset.from_dict({"en": ["dog", None, " "], "es": ["perro", "x", "y"], "id": [1, 2, 3]}).to_parquet(path)
    lines = list(ParallelText(path, **ENGLISH_SPANISH).lines())
    assert lines == [ParallelLine(1, "dog", "perro"), InvalidLine(2, NOT_A_PAIR), InvalidLine(3, EMPTY_SIDE)]
    assert lines[1].source == "{'en': None, 'es': 'x', 'id': 2}"
    dataset = Dataset.from_list([{"translation": {"en": "dog", "es": "perro"}}, {"translation": None}])
    for hf_dataset in (dataset, dataset.to_iterable_dataset()):
        assert list(DatasetText(hf_dataset, **ENGLISH_SPANISH).lines()) == [lines[0], InvalidLine(2, NOT_A_PAIR)]
    path.write_text("text")
    with pytest.raises(ValueError, match=r"a\.parquet must be a Parquet file: "):
        list(ParallelText(path).lines())


def test_unknown_columns_raise_value_error(tmp_path):
    (tmp_path / "a.tsv").write_text(TABLE)
    (tmp_path / "a.jsonl").write_text('{"en": "dog", "id": 1}\n')
    for name, keys, names in (("a.tsv", ("en", "fr"), "id, en, es"), ("a.jsonl", ("source", "target"), "en, id")):
        message = rf"keys must be columns of .*{name}, {names}, or all numbers in a table, got '{keys[0]}"
        with pytest.raises(ValueError, match=message):
            read_pairs(tmp_path / name, source_key=keys[0], target_key=keys[1])


def test_a_spreadsheet_is_an_error_that_says_how_to_save_it(tmp_path):
    (tmp_path / "pairs.xlsx").touch()
    message = r"got '.*pairs\.xlsx' alone: save a spreadsheet as CSV UTF-8\.$"
    with pytest.raises(ValueError, match=message):
        ParallelText(tmp_path / "pairs.xlsx")


# Quotes


@pytest.mark.parametrize("header", [["source", "target"], False])
@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_tables_written_by_pandas_are_read_back(name, separator, header, tmp_path):
    rows = [('He said "hi"', "x"), ('"quoted"', "a"), ("two\nlines", "a\ttab"), ("x", 'and\nthree "more"\n\nlines')]
    rows += [("b", ' "'), ('"', 'a, "b"'), ('""a""', "\u2028")]
    pandas.DataFrame(rows).to_csv(tmp_path / name, sep=separator, header=header, index=False)
    assert read_pairs(tmp_path / name) == rows
    numbers = [line.number - bool(header) for line in ParallelText(tmp_path / name).lines()]
    assert numbers == [1, 2, 3, 5, 9, 10, 11]
    assert read_pairs(tmp_path / name, source_key="1", target_key="2")[bool(header) :] == rows


@pytest.mark.parametrize(
    "rows",
    [
        [('"Go away.', "«Vete."), ('Now!"', "¡Ya!»"), ("x", "y")],  # a quotation of two sentences
        [('"Go away!"', '"¡Vete!"'), ('He said "no".', 'Dijo "no".'), ('"', "x"), ('"x', 'y"'), ("x", '"y')],
    ],
)
def test_quotes_of_texts_are_kept(rows, tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    assert read_pairs(tmp_path / "a.tsv") == rows


@given(text=st.text('" a,', max_size=8))
def test_a_quoted_cell_is_restored(text):
    assert unquoted(quoted(text)) == text
    if '""' not in text:  # as in plain TSV files
        assert unquoted(text) == text


# Invalid lines and files


def test_aligned_files_of_different_lengths(tmp_path):
    corpus = write_invalid_lines(tmp_path)
    with corpus.target.open("a") as lines:
        lines.write("one more\n")
    message = r"a\.en and .*a\.es must have the same number of lines, got 6 in .*a\.en and 7 in .*a\.es\."
    with pytest.raises(ValueError, match=message):
        validate(corpus)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.tsv", b"caf\xe9\t" + 1000 * b"x", ("caf\ufffd", 200 * "x")),
        ("a.tsv", b"\tleer\n", ("", "leer")),
        ("a.jsonl", b'{"source": 1\n', ('{"source": 1', "")),
    ],
)
def test_an_invalid_line_has_the_beginnings_of_its_texts(name, content, texts, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert read_pairs(tmp_path / name) == [texts]


def test_invalid_files_raise_value_error(tmp_path):
    for name in ("a.en", "a.tsv"):
        (tmp_path / name).touch()
    for files, expected in (
        (("b.en", "a.en"), r"source must be a file, got '.*b\.en'"),
        (("a.en",), r"source must be a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file .* got '.*a\.en' alone"),
        (("a.tsv", "a.en"), r"target must be None with both sides in .*a\.tsv, got .*a\.en"),
    ):
        with pytest.raises(ValueError, match=expected):
            ParallelText(*(tmp_path / name for name in files))
    os.mkfifo(tmp_path / "b.tsv")
    with pytest.raises(ValueError, match="must be in files, since it is read more than once, got the pipe /"):
        ParallelText(tmp_path / "b.tsv").require_files()


def test_standard_input_is_read_once(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"dog\tperro\n")))
    corpus = ParallelText("-")
    assert list(corpus.lines()) == [ParallelLine(1, "dog", "perro")]
    with pytest.raises(ValueError, match="the corpus must be in files, since it is read more than once"):
        corpus.fingerprint()
    with pytest.raises(ValueError, match="target must be None with both sides in -, got -"):
        ParallelText("-", "-")


# Monolingual text


@pytest.mark.parametrize(
    ("name", "content", "key", "expected"),
    [
        ("a.txt", b"one\n\ntwo\xe2\x80\xa8three\n", [], ["one", "", "two\u2028three"]),
        ("a.tsv.gz", b"1\tone\n2\t\n", ["2"], ["one", ""]),
        ("a.tsv", b'"one\ntwo"\n', [], ['"one', 'two"']),
        ("a.jsonl", b'{"text": "one"}\n{"text": ""}\n', [], ["one", ""]),
        ("a.jsonl", b'{"text": "one"}\n[]\n', [],
         "must have a text for the key 'text' on each line, but line 2 has none. A file without columns, such as"),
        ("a.txt", b"one\ncaf\xe9\n", [], "must be UTF-8 text, but line 2 is not"),
        ("a.tsv", b"1\tcaf\xe9\n", ["2"], "must be UTF-8 text, but line 1 is not"),
    ],
)  # fmt: skip
def test_monolingual_text_is_lines_or_one_column(name, content, key, expected, tmp_path):
    with create_binaries([tmp_path / name]) as [file]:
        file.write(content)
    if isinstance(expected, list):
        assert list(read_texts(tmp_path / name, *key)) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            list(read_texts(tmp_path / name, *key))

"""Text files in other encodings, with NUL characters or other line ends: read right, or an error that names it."""

import bz2
import gzip
import json
import lzma

import pytest

from modeling_random_transformer.base.compressed_files import open_binary
from modeling_random_transformer.base.formats import file_format
from modeling_random_transformer.data.readers import read_texts
from modeling_random_transformer.data.sources import ParallelLine, ParallelText
from modeling_random_transformer.tokenization_random_transformer import lines_of_files

LINES = ["the cat sees\ta dog", "\u4f60\u597d\u4e16\u754c\tA\u00f1o nuevo", "", "one \u2028 line\ttwo"]
TEXT = "\n".join(LINES) + "\n"
NUL_BYTES = r"text without NUL characters, got one in line 2"
CONTENTS = {
    "UTF-16 with a byte order mark": (TEXT.encode("utf-16"), "got UTF-16"),
    "UTF-32 with a byte order mark": (TEXT.encode("utf-32"), "got UTF-16 or UTF-32"),
    "big-endian": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "got UTF-16"),
    "UTF-16 without": (TEXT.encode("utf-16-le"), "got UTF-16 or UTF-32"),
    "big-endian without": (TEXT.encode("utf-16-be"), "got UTF-16 or UTF-32"),
    "line ends of Windows": (TEXT.replace("\n", "\r\n").encode("utf-16"), "got UTF-16"),
    "UTF-32": (TEXT.encode("utf-32-le"), "got UTF-16 or UTF-32"),
    "a renamed .xlsx": (b"PK\x03\x04\x14\0\n", r"text, got a spreadsheet or document \(by its first bytes\)"),
    "a renamed .xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", r"text, got a spreadsheet or document"),
    "a renamed .gz": (
        gzip.compress(TEXT.encode()),
        r"text, got a compressed file \(by its first bytes\): decompress it",
    ),
    "a renamed .bz2": (bz2.compress(TEXT.encode()), r"text, got a compressed file"),
    "a renamed .bz2 of another level": (bz2.compress(TEXT.encode(), 1), r"text, got a compressed file"),
    "a renamed .xz": (lzma.compress(TEXT.encode()), r"text, got a compressed file"),
    "a NUL": (b"first line\ta\nsecond\0 line\tb\n", NUL_BYTES),
}
READERS = {
    "texts": lambda path: list(read_texts(path)),
    "lines": lambda path: list(lines_of_files([path])),
    "two files": lambda path: list(ParallelText(path, path).lines()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CONTENTS)
def test_other_encodings_are_errors(name, reader, tmp_path):
    content, message = CONTENTS[name]
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"texts\.txt must be .*{message}"):
        READERS[reader](path)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_other_encodings_of_tables_are_errors(name, suffix, tmp_path):
    content, message = CONTENTS[name]
    path = tmp_path / f"texts{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_texts(path, "1"))


def test_escaped_nul_is_an_error(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": "t\0wo"}) + "\n")
    with pytest.raises(ValueError, match=NUL_BYTES):
        list(read_texts(path))


@pytest.mark.parametrize(
    ("content", "indent", "message"),
    [
        ([{"text": "one"}], 2, "a list"),
        ([{"text": "one"}, {"text": "two"}], None, "a list"),
        ([], 2, "a list"),
        ({"text": "one"}, 2, "one on several lines"),
    ],
    ids=["list", "list on one line", "empty list", "object"],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_json_that_is_not_in_lines(content, indent, message, suffix, tmp_path):
    path = tmp_path / f"texts{suffix}"
    path.write_text(json.dumps(content, indent=indent))
    with pytest.raises(ValueError, match=rf"texts\{suffix} must have a JSON object on each line, got {message}\."):
        list(read_texts(path))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_windows_1252_is_named(encoding, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("plain\nel\tni\u00f1o".encode(encoding))
    with pytest.raises(ValueError, match=r"line 2 is not: .* It can be read as Windows-1252"):
        list(read_texts(path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_ends_a_line(end, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("".join(line + end for line in LINES).encode())
    assert list(read_texts(path)) == LINES
    path.write_bytes(end.join(LINES[:2]).encode())
    assert list(read_texts(path)) == LINES[:2]
    path.write_bytes(f"one{end}{end}{end}".encode())
    assert list(read_texts(path)) == ["one", "", ""]


def test_carriage_return_within_a_line_of_other_line_ends(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"one\rtwo\nthree\n")
    assert list(read_texts(path)) == ["one\rtwo", "three"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", 'source,target\n"a ""b"" c",d\n\ufeff"e ""f"" g",h\n'),
        ("pairs.tsv", 'source\ttarget\n"a ""b"" c"\td\n\ufeff"e ""f"" g"\th\n'),
        ("pairs.jsonl", '{"source": "a \\"b\\" c", "target": "d"}\n\ufeff{"source": "e \\"f\\" g", "target": "h"}\n'),
    ],
)
def test_byte_order_marks_of_joined_files(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    pairs = [(line.source, line.target) for line in ParallelText(tmp_path / name).lines()]
    assert pairs == [('a "b" c', "d"), ('e "f" g', "h")]


def test_byte_order_marks_of_joined_text_files(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\ufeffone\n\ufefftwo\n")
    assert [*read_texts(path)] == ["one", "two"]


@pytest.mark.parametrize(("first", "expected"), [('"a\rb";c', ("a\rb", "c")), ("a\rb;c", None)])
def test_carriage_return_in_the_first_line_of_a_csv_file(first, expected, tmp_path):
    (tmp_path / "pairs.csv").write_bytes(f"{first}\nd;e\n".encode())
    lines = [*ParallelText(tmp_path / "pairs.csv").lines()]
    pairs = [(line.source, line.target) for line in lines if isinstance(line, ParallelLine)]
    assert pairs == [expected, ("d", "e")][expected is None :]
    assert len(lines) == 2


@pytest.mark.parametrize("suffix", [".zip", ".ZIP", ".7z", ".rar", ".tar", ".tar.gz", ".TGZ", ".txz", ".lz4"])
def test_archives_are_errors(suffix, tmp_path):
    path = tmp_path / f"texts{suffix}"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(ValueError, match="extract it first"), open_binary(path):
        pass


@pytest.mark.parametrize(
    ("name", "expected"), [("a.TSV", "tsv"), ("a.Tsv.GZ", "tsv"), ("a.csv.xz", "csv"), ("a.bz2", "text")]
)
def test_suffixes_in_any_case(name, expected):
    assert file_format(name) == expected


@pytest.mark.parametrize("suffix", [".xliff", ".XLF", ".po", ".srt", ".docx", ".html", ".htm.gz", ".pdf", ".md"])
def test_documents_are_no_texts(suffix, tmp_path):
    path = tmp_path / f"document{suffix}"
    path.write_text("<p>text</p>")
    texts = tmp_path / "texts"
    texts.write_text("text\n")
    message = "must be a file with one text per line, got .*: extract the texts of other documents"
    with pytest.raises(ValueError, match=f"a text file {message}"):
        list(read_texts(path))
    with pytest.raises(ValueError, match=f"target_file {message}"):
        list(ParallelText(texts, path).lines())


@pytest.mark.parametrize("key", ["en", "2"])
def test_equal_keys_are_an_error(key, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("es\ten\nuno\tone\n")
    with pytest.raises(ValueError, match=f"source_key and target_key must differ, got '{key}' for both"):
        list(ParallelText(path, source_key=key, target_key=key).lines())

"""Cleaning of files and its command: outputs, reports, rejected lines and errors."""

import errno
import gzip
import io
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from modeling_random_transformer import cli
from modeling_random_transformer.data import CleaningReport, ParallelText, clean_files, cleaning, read_texts
from modeling_random_transformer.data.filters import COPY, DUPLICATE
from modeling_random_transformer.data.sources import EMPTY, NOT_A_PAIR, NOT_UTF8, InvalidLine, ParallelLine

ROWS = b"""a dog\tein Hund
two cats\tzwei Katzen
\tleer
two cats\tzwei Katzen
no tab
Three birds.\tthree birds
caf\xe9\tCaf\xe9
four red cars\tvier rote Autos
"""
KEPT = [("a dog", "ein Hund"), ("two cats", "zwei Katzen"), ("four red cars", "vier rote Autos")]
REJECTED = [
    (EMPTY, "3", "", "leer"),
    (DUPLICATE, "4", "two cats", "zwei Katzen"),
    (NOT_A_PAIR, "5", "no tab", ""),
    (COPY, "6", "Three birds.", "three birds"),
    (NOT_UTF8, "7", "caf\ufffd", "Caf\ufffd"),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(ROWS)
    return path


@pytest.fixture
def run(capsys):
    """Runs `random-transformer clean` and returns its status and the lines on stderr."""

    def run(*arguments):
        status = cli.main(["clean", *map(str, arguments)])
        return status, capsys.readouterr().err.splitlines()

    return run


def test_report(table, tmp_path):
    report = clean_files(ParallelText(table), tmp_path / "clean.tsv", report_file=tmp_path / "report.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "report.json.gz").read_bytes()))["kept"] == 3
    assert (report.lines, report.valid) == (8, 3)
    assert report.counts == {EMPTY: 1, DUPLICATE: 1, NOT_A_PAIR: 1, COPY: 1, NOT_UTF8: 1}
    assert report.examples[COPY] == [{"line": 6, "source": "Three birds.", "target": "three birds"}]
    assert report.examples[NOT_UTF8] == [{"line": 7, "source": "caf\ufffd", "target": "Caf\ufffd"}]
    assert report.scripts == {"source": ["Latin"], "target": ["Latin"]}
    assert str(report).startswith(f"{table}: kept 3 of 8 pairs (37.50%)\n")
    assert "12.50%  line 6: Three birds. ||| three birds" in str(report)
    assert "12.50%  line 3:  ||| leer\n" in str(report)


def test_table_is_sorted_and_shortened():
    report = CleaningReport("x")
    for number in range(5):
        report.drop(ParallelLine(number, "s" * 60, "t"), "rare" if number == 0 else "frequent")
    report.drop(InvalidLine(6, NOT_UTF8, "\x1b[2J\ta"), NOT_UTF8)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines] == ["x:", "frequent", "rare", "not"]
    assert lines[1].endswith(f"line 1: {'s' * 40}… ||| t")
    assert lines[3].endswith(r"line 6: \x1b[2J\ta ||| ")
    assert len(report.examples["frequent"]) == 3
    assert str(CleaningReport("empty")) == "empty: kept 0 of 0 pairs (0.00%)"


@pytest.mark.parametrize(("file_format", "suffix"), [("tsv", ".gz"), ("jsonl", ".zst"), ("text", "")])
def test_outputs(table, tmp_path, file_format, suffix):
    names = ["clean.en", "clean.de"] if file_format == "text" else [f"clean.{file_format}"]
    outputs = [tmp_path / f"{name}{suffix}" for name in names]
    rejected = tmp_path / f"rejected.tsv{suffix}"
    clean_files(ParallelText(table), *outputs, rejected_file=rejected)
    assert [(line.source, line.target) for line in ParallelText(*outputs).lines()] == KEPT
    rows = zip(*(read_texts(rejected, str(column)) for column in range(1, 5)), strict=True)
    assert list(rows) == REJECTED
    assert sorted(tmp_path.iterdir()) == sorted([table, rejected, *outputs])


def test_line_breaks_and_tabs_become_spaces(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"source": "a\tb\nc", "target": "x\r\ny"}) + "\n")
    clean_files(ParallelText(path), tmp_path / "b.tsv")
    assert (tmp_path / "b.tsv").read_text() == "a b c\tx y\n"
    clean_files(ParallelText(path), tmp_path / "b.jsonl")
    assert json.loads((tmp_path / "b.jsonl").read_text()) == {"source": "a b c", "target": "x y"}


def outputs_of_cleaning_twice(rows, file_format, **options):
    """The contents of the outputs for these pairs, and of those of cleaning the outputs; `None` if no pair is kept."""
    names = ["x.en", "x.de"] if file_format == "text" else [f"x.{file_format}"]
    contents = []
    with TemporaryDirectory() as folder:
        inputs = [Path(folder) / "corpus.jsonl"]
        lines = [json.dumps({"source": source, "target": target}) for source, target in rows]
        inputs[0].write_text("\n".join(lines))
        for number in range(2):
            outputs = [Path(folder) / f"{number}{name}" for name in names]
            try:
                clean_files(ParallelText(*inputs), *outputs, **options)
            except ValueError:
                if number == 1:
                    raise
                return None
            contents.append([path.read_bytes() for path in outputs])
            inputs = outputs
    return contents


TEXTS = st.text(st.sampled_from('ab яш 字犬" 12,\t\r\n\0\ufeff\u2028'), min_size=1, max_size=6)


@example(rows=[("a\tb", "c"), ("a b", "c")], file_format="tsv", duplicates="pair", share=0.5)
@example(rows=[("a\0b", "c"), ("a", "b\0c")], file_format="text", duplicates="pair", share=0.5)
@example(rows=[('"a ""b"""', 'c "')], file_format="tsv", duplicates="pair", share=0.5)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12),
    file_format=st.sampled_from(["tsv", "jsonl", "text"]),
    duplicates=st.sampled_from(["pair", "source", "target"]),
    share=st.sampled_from([0.4, 0.5, 0.9, 1.0]),
)
def test_cleaning_again_drops_nothing(rows, file_format, duplicates, share):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "SAMPLE_PAIRS", 4)  # pairs beyond the first ones have other scripts
        contents = outputs_of_cleaning_twice(rows, file_format, duplicates=duplicates, min_script_share=share)
    assume(contents is not None)
    assert contents[1] == contents[0]


def test_scripts_are_those_of_pairs_that_remain():
    """The first pairs are duplicates with Cyrillic targets, or too long with Greek ones."""
    rows = [("one two", "один")] * 20 + [("two", "δύο " * 300)] * 20
    rows += [(f"{number} cats", f"{number} Katzen") for number in range(20)] + [("last", "κακό")]
    report = CleaningReport("test")
    kept = list(cleaning.clean_pairs(rows, report=report))
    assert report.scripts == {"source": ["Latin"], "target": ["Latin"]}
    assert [line.source for line in kept] == [f"{number} cats" for number in range(20)]


def test_command_with_aligned_files(run, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"eins\ntwo\n"))
    outputs = ("--output_source", tmp_path / "b.en", "--output_target", tmp_path / "b.de")
    files = ("--source_file", tmp_path / "a.en", "--target_file", tmp_path / "a.de.gz", *outputs)
    status, errors = run(*files, "--report", tmp_path / "report.json")
    assert (status, errors[0][-26:]) == (0, "kept 1 of 2 pairs (50.00%)")
    assert ((tmp_path / "b.en").read_text(), (tmp_path / "b.de").read_text()) == ("one\n", "eins\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["lines"], report["kept"], report["counts"]) == (2, 1, {COPY: 1})
    assert report["options"]["max_length_ratio"] == 9.0
    assert run(*files, "--copies", "off")[0] == 0
    assert (tmp_path / "b.de").read_text() == "eins\ntwo\n"


def test_command_with_standard_streams(table, monkeypatch, capsysbinary):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table.read_bytes())))
    assert cli.main(["clean", "--train_file", "-", "--output", "-"]) == 0
    captured = capsysbinary.readouterr()
    assert captured.out.decode() == "".join(f"{source}\t{target}\n" for source, target in KEPT)
    assert captured.err.decode().startswith("-: kept 3 of 8 pairs")


def test_every_filter_can_be_turned_off(run, table, tmp_path):
    filters = ("copies", "duplicates", "max_length", "max_length_ratio", "min_script_share")
    flags = [word for name in filters for word in (f"--{name}", "off")]
    status, errors = run("--train_file", table, "--output", tmp_path / "b.tsv", *flags)
    assert status == 0
    assert "kept 5 of 8 pairs" in errors[0]  # the others are invalid


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--train_file train.tsv --output train.tsv", "outputs must differ from each other and from the inputs, got"),
        ("--train_file train.tsv --output - --rejected -", "outputs must differ from each other and from the inputs"),
        ("--train_file train.tsv --output no/b.tsv", "outputs must be files in folders that exist, got no/b.tsv."),
        ("--train_file train.tsv --output b.parquet", "output must be a .tsv or .jsonl file, or output and"),
        ("--train_file train.tsv --output b.tsv --source_key de", "keys must be columns of train.tsv, a dog, ein Hund"),
    ],
)
def test_invalid_input_is_a_one_line_error(run, table, flags, message, monkeypatch):
    monkeypatch.chdir(table.parent)
    status, errors = run(*flags.split())
    assert (status, len(errors)) == (2, 1)
    assert errors[0].startswith(f"random-transformer clean: error: {message}")
    assert [path.name for path in table.parent.iterdir()] == ["train.tsv"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--train_file a.tsv --output b.tsv", "argument --train_file: must be a file that exists, got 'a.tsv'."),
        ("--output b.tsv", "--train_file, or --source_file and --target_file, must be given, got none."),
        ("--train_file -", "--output, or --output_source and --output_target, must be given, got none."),
        ("--train_file - --output b.tsv --max_length x", "argument --max_length: must be a number or 'off'"),
    ],
)
def test_invalid_flag_exits(flags, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        sys.exit(cli.main(["clean", *flags.split()]))
    assert exit_.value.code == 2
    assert f"random-transformer clean: error: {message}" in capsys.readouterr().err


def test_files_of_different_lengths_are_an_error(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    with pytest.raises(ValueError, match=r"must have the same number of lines, got one that ends before line 2\."):
        clean_files(ParallelText(tmp_path / "a.en", tmp_path / "a.de"), tmp_path / "b.tsv")


def test_a_full_disk_leaves_all_earlier_outputs(table, tmp_path, monkeypatch):
    outputs = [tmp_path / name for name in ("clean.en", "clean.de", "rejected.tsv.gz", "report.json.zst")]
    for path in outputs:
        path.write_bytes(b"earlier")
    calls = []

    def full_disk(number):
        calls.append(number)
        if len(calls) == len(outputs):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    options = {"rejected_file": outputs[2], "report_file": outputs[3]}
    with pytest.raises(OSError, match="No space left on device"):
        clean_files(ParallelText(table), *outputs[:2], **options)
    assert [path.read_bytes() for path in outputs] == [b"earlier"] * 4
    assert sorted(tmp_path.iterdir()) == sorted([table, *outputs])


def test_a_corpus_without_a_pair_to_keep_is_an_error_and_leaves_earlier_outputs(run, table, tmp_path):
    """For example a column that does not exist."""
    output = tmp_path / "clean.tsv"
    output.write_text("earlier\n")
    status, errors = run("--train_file", table, "--source_key", "1", "--target_key", "5", "--output", output)
    assert status == 2
    assert errors[-1].endswith("must have a pair to keep, got 8 pairs: 8 without exactly one source and one target.")
    assert output.read_text() == "earlier\n"

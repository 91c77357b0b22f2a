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
from modeling_random_transformer.data import InvalidLine, ParallelLine, ParallelText, read_texts
from modeling_random_transformer.data.sources import EMPTY_SIDE, NOT_A_PAIR, NOT_UTF8
from modeling_random_transformer.data.words import words_digest
from modeling_random_transformer.extras.cleaning import CleaningReport, clean_files, clean_pairs, cleaning, filters
from modeling_random_transformer.extras.cleaning.filters import COPY_REASON, DUPLICATE
from modeling_random_transformer.extras.cleaning.splitting import SHARES_HELD_OUT_TEXT
from tests.helpers.command_line import exit_status
from tests.helpers.corpora import read_pairs

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
    (EMPTY_SIDE, "3", "", "leer"),
    (DUPLICATE, "4", "two cats", "zwei Katzen"),
    (NOT_A_PAIR, "5", "no tab", ""),
    (COPY_REASON, "6", "Three birds.", "three birds"),
    (NOT_UTF8, "7", "caf\ufffd", "Caf\ufffd"),
]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A corpus in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.tsv"
    path.write_bytes(ROWS)
    return path


def run(flags):
    """The exit status of `random-transformer clean`."""
    return exit_status(cli.main, ["clean", *flags.split()])


def test_report_of_a_file_whose_name_is_not_utf_8(table, tmp_path):
    renamed = table.rename(table.with_name(f"\udce9{table.name}"))
    clean_files(ParallelText(renamed), tmp_path / "clean.tsv", report_file=tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["name"] == str(renamed)


def test_report(table, tmp_path):
    report = clean_files(ParallelText(table), tmp_path / "clean.tsv", report_file=tmp_path / "report.json.gz")
    saved = json.loads(gzip.decompress((tmp_path / "report.json.gz").read_bytes()))
    assert (saved["lines"], saved["kept"], saved["options"]["max_length_ratio"]) == (8, 3, 9.0)
    assert (report.lines, report.valid) == (8, 3)
    assert report.counts == saved["counts"] == {EMPTY_SIDE: 1, DUPLICATE: 1, NOT_A_PAIR: 1, COPY_REASON: 1, NOT_UTF8: 1}
    assert report.examples[COPY_REASON] == [{"line": 6, "source": "Three birds.", "target": "three birds"}]
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


@pytest.mark.parametrize(
    "names", [("clean.tsv.gz", "rejected.tsv"), ("clean.jsonl.zst", "r.tsv.gz"), ("b.en", "b.de", "r.tsv")]
)
def test_outputs(table, tmp_path, names):
    *outputs, rejected = (tmp_path / name for name in names)
    clean_files(ParallelText(table), *outputs, rejected_file=rejected)
    assert read_pairs(*outputs) == KEPT
    rows = zip(*(read_texts(rejected, str(column)) for column in range(1, 5)), strict=True)
    assert list(rows) == REJECTED
    assert sorted(tmp_path.iterdir()) == sorted([table, rejected, *outputs])


def test_line_breaks_and_tabs_become_spaces():
    (line,) = clean_pairs([("\ufeffa\tb\nc", "x\r\ny\n")])
    assert (line.source, line.target) == ("a b c", "x y")


TEXTS = st.text(st.sampled_from('ab яш 字犬" 12,\t\r\n\0\ufeff\u2028'), min_size=1, max_size=6)


@example(rows=[("a\tb", "c"), ("a b", "c")], suffixes=["tsv"], duplicates="pair", share=0.5)
@example(rows=[("a\0b", "c"), ("a", "b\0c")], suffixes=["en", "de"], duplicates="pair", share=0.5)
@example(rows=[('"a ""b"""', 'c "')], suffixes=["tsv"], duplicates="pair", share=0.5)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12),
    suffixes=st.sampled_from([["tsv"], ["jsonl"], ["en", "de"]]),
    duplicates=st.sampled_from(["pair", "source", "target"]),
    share=st.sampled_from([0.4, 0.5, 0.9, 1.0]),
)
def test_cleaning_again_drops_nothing(rows, suffixes, duplicates, share):
    contents = []
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "SAMPLE_PAIRS", 4)  # pairs beyond the first ones have other scripts
        inputs = [Path(folder) / "corpus.jsonl"]
        inputs[0].write_text("\n".join(json.dumps({"source": source, "target": target}) for source, target in rows))
        for number in range(2):
            outputs = [Path(folder) / f"{number}.{suffix}" for suffix in suffixes]
            try:
                clean_files(ParallelText(*inputs), *outputs, duplicates=duplicates, min_script_share=share)
            except ValueError:
                assume(number > 0)  # no pair is kept
                raise
            contents.append([path.read_bytes() for path in outputs])
            inputs = outputs
    assert contents[1] == contents[0]


def test_scripts_are_those_of_pairs_that_remain():
    """The first pairs are duplicates with Cyrillic targets, or too long with Greek ones."""
    rows = [("one two", "один")] * 20 + [("two", "δύο " * 300)] * 20
    rows += [(f"{number} cats", f"{number} Katzen") for number in range(20)] + [("last", "κακό")]
    report = CleaningReport("test")
    kept = list(clean_pairs(rows, report=report))
    assert report.scripts == {"source": ["Latin"], "target": ["Latin"]}
    assert [line.source for line in kept] == [f"{number} cats" for number in range(20)]


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


# The command


@pytest.mark.usefixtures("table")
def test_command_with_aligned_files_and_all_filters_off(tmp_path, capsys):
    clean_files(ParallelText(tmp_path / "train.tsv"), "a.en", "a.de.gz", copies="off", duplicates="off")
    off = " ".join(
        f"--{name} off" for name in ("copies", "duplicates", "max_length", "max_length_ratio", "min_script_share")
    )
    flags = f"--source_file a.en --target_file a.de.gz --output_source b.en --output_target b.de {off}"
    assert run(f"{flags} --report r.json --rejected r.tsv") == 0
    assert capsys.readouterr().err.startswith("a.en and a.de.gz: kept 5 of 5 pairs (100.00%)\n  Of 5 kept pairs, ")
    assert (tmp_path / "b.en").read_text() == "a dog\ntwo cats\ntwo cats\nThree birds.\nfour red cars\n"
    assert json.loads((tmp_path / "r.json").read_text())["options"]["max_length_ratio"] is None
    assert (tmp_path / "r.tsv").read_bytes() == b""


def test_command_with_standard_streams(monkeypatch, capsysbinary):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ROWS)))
    assert run("--train_file - --output -") == 0
    captured = capsysbinary.readouterr()
    assert captured.out.decode() == "".join(f"{source}\t{target}\n" for source, target in KEPT)
    assert captured.err.decode().startswith("-: kept 3 of 8 pairs")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--overwrite --train_file train.tsv --output train.tsv", "output must differ from source, got"),
        ("--train_file train.tsv --output - --rejected -", "outputs must differ from each other, got -, -."),
        ("--train_file train.tsv --output no/b.tsv", "output must be a file, new or not, in a folder that exists, got"),
        ("--train_file train.tsv --output b.parquet", "output must be a .tsv or .jsonl file, or a text file for each"),
        ("--train_file train.tsv --output b.tsv --source_key de", "keys must be columns of train.tsv, a dog, ein Hund"),
        ("--train_file train.tsv --overwrite --output old.tsv --source_key 1 --target_key 5",
         "train.tsv must have a pair to keep, got 8 pairs: 8 without exactly one source and one target."),
        ("--train_file a.tsv --output b.tsv", "argument --train_file: must be a file that exists, got 'a.tsv'."),
        ("--output b.tsv", "--train_file, or --source_file and --target_file, must be given, got none."),
        ("--train_file -", "--output, or --output_source and --output_target, must be given, got none."),
        ("--train_file train.tsv --output b.tsv --report no/x", "report_file must be a file, new or not, in a folder"),
        ("--train_file train.tsv --output b.tsv --rejected no/x", "rejected_file must be a file, new or not, in a"),
        ("--train_file - --output b.tsv --max_length 0",
         "argument --max_length: must be a positive integer, got '0'. 'off' is allowed too."),
        ("--train_file - --output b.tsv --max_length_ratio nan",
         "argument --max_length_ratio: must be a finite number, got 'nan'."),
        ("--train_file train.tsv --output o.tsv --split 2,x", "argument --split: must be a positive integer, got 'x'."),
        ("--train_file train.tsv --output o.tsv --split 1,1,1", "split must be one or two positive numbers, got 1,"),
        ("--train_file train.tsv --output o.tsv --split 2,2", "split must have at most 3 pairs, which share no text,"),
        ("--train_file train.tsv --output o.tsv --split 2,2 --max_length 1",
         "train.tsv must have a pair to keep, got 8 pairs: 4 longer than the maximum length"),
        ("--train_file train.tsv --output o.tsv --split 2,1",
         "train.tsv must have a pair to keep, got 8 pairs: 1 with an empty source or target"),
        ("--train_file train.tsv --output - --split 1", "output must be a file with split, got -."),
        ("--train_file - --output o.tsv --split 1", "the corpus must be in files, since it is read more than"),
        ("--train_file train.tsv --output o.tsv --exclude missing.en", "exclude must be a file, got 'missing.en'"),
        ("--train_file train.tsv --output o.tsv --exclude -", "exclude must be a file, got '-'"),
        ("--train_file train.tsv --output o.tsv --exclude train.tsv",
         "train.tsv must have a source and a target on each line, but line 5 has not."),
        (
            "--train_file train.tsv --overwrite --output old.tsv --exclude old.tsv",
            "output must differ from exclude 1, got",
        ),
    ],
)  # fmt: skip
def test_invalid_input_is_a_one_line_error_and_leaves_earlier_outputs(table, flags, message, capsys):
    (table.parent / "old.tsv").write_text("earlier\n")
    assert run(flags) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"random-transformer clean: error: {message}")
    assert sorted(path.name for path in table.parent.iterdir()) == ["old.tsv", "train.tsv"]
    assert (table.parent / "old.tsv").read_text() == "earlier\n"


@pytest.mark.parametrize("name", ["test.en", "test.tsv", "test.csv"])
def test_excluded_files_are_utf_8(name, table):
    separator = "," if name.endswith("csv") else "\t"
    Path(name).write_bytes(f"a dog{separator}b\nüber{separator}b\n".encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{name} must be UTF-8 text, but line 2 is not"):
        clean_files(ParallelText(table), "out.tsv", exclude=[name])


def test_texts_of_other_files_are_excluded(table):
    """Regardless of case, punctuation and Unicode form; blank lines and emoji of the files exclude nothing else."""
    Path("test.en").write_text("A DO\u00adG!\n\n\U0001f600\n")
    Path("other.jsonl").write_text(json.dumps({"source": "", "target": "Vier rote \uff21utos?"}) + "\n")
    report = clean_files(ParallelText(table), "out.tsv", exclude=["test.en", "other.jsonl"])
    assert read_pairs(Path("out.tsv")) == KEPT[1:2]
    assert report.counts["source in an excluded file"] == report.counts["target in an excluded file"] == 1


@pytest.mark.parametrize(
    ("outputs", "validation"),
    [
        (["clean.tsv.gz"], ["clean.validation.tsv.gz"]),
        (["a.b.jsonl"], ["a.b.validation.jsonl"]),
        (["clean.en", "clean.de"], ["clean.validation.en", "clean.validation.de"]),
    ],
)
def test_split(outputs, validation, tmp_path, monkeypatch):
    """The sets share no text, whatever its case; the choice does not depend on the order of the corpus."""
    monkeypatch.chdir(tmp_path)
    pairs = [(f"word {i} {'.' * (i % 2)}", f"Wort {i // 2}") for i in range(60)]
    pairs += [(source.upper(), f"andere {source}") for source, _ in pairs[:20]]
    sets_by_order = []
    for rows in (pairs, pairs[::-1]):
        (tmp_path / "in.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
        options = {"rejected_file": "r.tsv", "copies": "off", "split": (8, 5)}
        report = clean_files(ParallelText(tmp_path / "in.tsv"), *outputs, **options)
        tests = [path.replace("validation", "test") for path in validation]
        sets = [set(read_pairs(*map(Path, paths))) for paths in (outputs, validation, tests)]
        assert [*map(len, sets)] == [*report.sets.values()] == [report.valid - 13, 8, 5]
        for side in (0, 1):
            keys = [{words_digest(pair[side]) for pair in pairs_of_set} for pairs_of_set in sets]
            assert len(set.union(*keys)) == sum(map(len, keys))
        dropped = [line.split("\t") for line in Path("r.tsv").read_text().splitlines()]
        assert len(dropped) == report.counts[SHARES_HELD_OUT_TEXT] == len(pairs) - report.valid > 0
        sets_by_order.append(sets)
    assert sets_by_order[0] == sets_by_order[1]


def test_excluded_files_are_read_once(table, monkeypatch):
    Path("test.en").write_text("A DOG\n")
    opened = []
    read = filters.excluded_texts
    monkeypatch.setattr(filters, "excluded_texts", lambda path: [opened.append(path), *read(path)][1:])
    report = clean_files(ParallelText(table), "out.tsv", exclude=["test.en"], split=(1,))
    assert report.counts["source in an excluded file"] == 1
    assert opened == ["test.en"]


def test_text_in_another_encoding_is_an_error(table, tmp_path):
    """Only the pairs without letters beyond ASCII would remain."""
    pairs = [f"año {number}\tel niño {number} ve\n" for number in range(3)]
    table.write_bytes("".join([*pairs, "a dog\tun perro\n"]).encode("latin-1"))
    with pytest.raises(ValueError, match=r"texts must be UTF-8, got .*: 3 of 4 lines are invalid: 3 not UTF-8"):
        clean_files(ParallelText(table), tmp_path / "clean.tsv")
    assert not (tmp_path / "clean.tsv").exists()


@pytest.mark.parametrize("pair", ["ab", ("one", "uno", "en"), ("one", None), None], ids=str)
def test_a_pair_is_two_strings(pair):
    with pytest.raises(ValueError, match=r"pairs must be two strings each, got .* as pair 2"):
        list(clean_pairs([("two", "dos"), pair]))

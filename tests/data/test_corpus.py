"""Parallel text: every kind of file, and every kind of broken line."""

import json
import multiprocessing

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data.corpus import lengths_of
from modeling_random_transformer.training import ParallelText, load_pairs, tokenize_pairs

PAIRS = [("one dog", "un perro"), ("two  dogs", "dos  perros"), ("a cat\u2028here", "un gato\x0baquí"), ("¿?", "…")]


def write(folder, kind, pairs=PAIRS):
    if kind == "aligned":
        for name, side in (("a.en", 0), ("a.es", 1)):
            (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8", newline="")
        return ParallelText(folder / "a.en", folder / "a.es")
    if kind == "tsv":
        rows = [f"{source}\t{target}\r\n" for source, target in pairs]
    else:
        rows = [json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs]
    (folder / f"a.{kind}").write_text("".join(rows), encoding="utf-8", newline="")
    return ParallelText(folder / f"a.{kind}")


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.train([side for pair in PAIRS for side in pair], vocab_size=270)


@pytest.mark.parametrize("kind", ["aligned", "tsv", "jsonl"])
def test_every_kind_of_file_gives_the_same_pairs(kind, tmp_path):
    dataset, report = load_pairs(write(tmp_path, kind), cache_dir=tmp_path / "cache")
    assert [(row["source"], row["target"]) for row in dataset] == PAIRS
    assert dataset["line"][:] == [1, 2, 3, 4]
    assert (report.lines, report.broken) == (4, 0)
    assert "none broken" in str(report)


def test_keys_of_ones_own(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "dog", "es": "perro"}\n')
    text = ParallelText(path, source_key="en", target_key="es")
    assert load_pairs(text, cache_dir=tmp_path / "cache")[0][0]["target"] == "perro"


def broken_files(folder):
    (folder / "a.en").write_bytes(b"good\n\ncaf\xe9\n  \nlonely\nmore\n")
    (folder / "a.es").write_bytes("bueno\nvacío\ncafé\nblanco\n\n \n".encode())
    return ParallelText(folder / "a.en", folder / "a.es")


def test_broken_lines_are_counted_by_kind_and_number(tmp_path):
    report = broken_files(tmp_path).check()
    assert report.lines == 6
    assert report.counts == {"with an empty side": 4, "not UTF-8": 1}
    assert report.first == {"with an empty side": [2, 4, 5, 6], "not UTF-8": [3]}
    assert "5 of 6 lines are broken" in str(report)
    assert "1 not UTF-8 (line 3)" in str(report)


def test_broken_lines_are_refused_or_dropped(tmp_path):
    text = broken_files(tmp_path)
    with pytest.raises(ValueError, match=r"5 of 6 lines are broken.*drop them with on_invalid='skip'"):
        load_pairs(text, cache_dir=tmp_path / "cache")
    dataset, report = load_pairs(text, on_invalid="skip", cache_dir=tmp_path / "cache")
    assert [(row["line"], row["source"]) for row in dataset] == [(1, "good")]
    assert report.broken == 5
    with pytest.raises(ValueError, match="on_invalid must be 'error' or 'skip', got 'ignore'"):
        load_pairs(text, on_invalid="ignore")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "no tab\na\tb\tc\nx\ty\n"),
        ("a.jsonl", '{"source": 1, "target": "b"}\n[]\n{"source": "x", "target": "y"}\n'),
        ("a.jsonl", "[" * 200_000 + '\n{"a":' + '\n{"source": "x", "target": "y"}\n'),
    ],
)
def test_lines_of_other_than_two_sides(name, content, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    assert ParallelText(path).check().first == {"not of two sides": [1, 2]}


def test_nothing_left_is_refused(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("\t\n")
    with pytest.raises(ValueError, match="nothing to train on"):
        load_pairs(ParallelText(path), on_invalid="skip")


def test_wrong_files_are_refused(tmp_path):
    (tmp_path / "a.en").touch()
    (tmp_path / "a.tsv").touch()
    with pytest.raises(ValueError, match=r"source must be a file, got .*b\.en"):
        ParallelText(tmp_path / "b.en", tmp_path / "a.en")
    with pytest.raises(ValueError, match="takes no target, any other takes one"):
        ParallelText(tmp_path / "a.en")
    with pytest.raises(ValueError, match="takes no target"):
        ParallelText(tmp_path / "a.tsv", tmp_path / "a.en")


def test_a_changed_file_is_read_again(tmp_path):
    text = write(tmp_path, "tsv")
    assert len(load_pairs(text, cache_dir=tmp_path / "cache")[0]) == 4
    write(tmp_path, "tsv", PAIRS[:2])
    assert len(load_pairs(text, cache_dir=tmp_path / "cache")[0]) == 2


@pytest.mark.parametrize("num_proc", [None, 2])
def test_tokenised_pairs(num_proc, tokenizer, tmp_path):
    pairs, _ = load_pairs(write(tmp_path, "tsv"), cache_dir=tmp_path / "cache")
    tokens, report = tokenize_pairs(pairs, tokenizer, num_proc=num_proc)
    assert report.broken == 0
    for row, (source, target) in zip(tokens, PAIRS, strict=True):
        assert tokenizer.decode(row["input_ids"], skip_special_tokens=True) == source
        assert tokenizer.decode(row["labels"], skip_special_tokens=True) == target
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
        assert (row["source_length"], row["target_length"]) == (len(row["input_ids"]), len(row["labels"]))


def test_over_long_pairs(tokenizer, tmp_path):
    pairs, _ = load_pairs(write(tmp_path, "tsv"), cache_dir=tmp_path / "cache")
    lengths = tokenize_pairs(pairs, tokenizer)[0]["source_length"][:]
    limit = max(lengths) - 1
    kept, report = tokenize_pairs(pairs, tokenizer, max_source_length=limit)
    assert report.first == {"over-long": [i + 1 for i, length in enumerate(lengths) if length > limit]}
    assert len(kept) == len(PAIRS) - report.broken
    with pytest.raises(ValueError, match="over-long"):
        tokenize_pairs(pairs, tokenizer, max_source_length=limit, on_invalid="error")
    with pytest.raises(ValueError, match="nothing to train on"):
        tokenize_pairs(pairs, tokenizer, max_target_length=1)


@pytest.mark.parametrize("on_invalid", ["error", "skip"])
@pytest.mark.parametrize("longer", ["a.en", "a.es"])
def test_files_of_different_lengths_are_an_error(longer, on_invalid, tmp_path):
    text = write(tmp_path, "aligned")
    with (tmp_path / longer).open("a") as lines:
        lines.write("one more\n")
    with pytest.raises(ValueError, match=r"a\.en and .*a\.es must have the same number of lines, got 5 and 4\."):
        load_pairs(text, on_invalid=on_invalid, cache_dir=tmp_path / "cache")


def test_the_files_are_read_once(tmp_path, monkeypatch):
    """A second process, as any later run, maps what the first one wrote."""
    text = broken_files(tmp_path)
    first, report = load_pairs(text, on_invalid="skip", cache_dir=tmp_path / "cache")
    monkeypatch.setattr(ParallelText, "lines", lambda _: pytest.fail("the files are read again"))
    second, same_report = load_pairs(text, on_invalid="skip", cache_dir=tmp_path / "cache")
    assert (second[:], same_report) == (first[:], report)


def load_and_tokenize(folder):
    pairs, _ = load_pairs(ParallelText(folder / "a.tsv"), cache_dir=folder / "cache")
    tokens, _ = tokenize_pairs(pairs, AutoTokenizer.from_pretrained(folder))
    return tokens.cache_files[0]["filename"]


def test_processes_at_the_same_time_share_one_cache(tokenizer, tmp_path):
    write(tmp_path, "tsv", PAIRS * 500)
    tokenizer.save_pretrained(tmp_path)
    with multiprocessing.get_context("fork").Pool(2) as processes:
        files = set(processes.map(load_and_tokenize, [tmp_path] * 2, chunksize=1))
    assert len(files) == 1
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 2  # the pairs and their tokens


def test_lengths_are_counted_where_there_are_no_columns_of_them():
    rows = [{"input_ids": [4, 5, 2], "labels": [4, 2]}, {"input_ids": [2]}]
    assert lengths_of(rows).tolist() == [[3, 2], [1, 0]]
    with pytest.raises(ValueError, match="must have a length, got generator"):
        lengths_of(row for row in rows)


def test_lengths_of_selected_rows():
    rows = Dataset.from_list([{"source_length": i, "target_length": 2 * i} for i in range(9)])
    for kept in (rows, rows.select([7, 1, 4]), rows.select(range(3, 6)), rows.select([7, 1, 4]).select([2, 0])):
        assert lengths_of(kept).tolist() == [[row["source_length"], row["target_length"]] for row in kept]

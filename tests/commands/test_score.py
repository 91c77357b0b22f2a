"""The command `score`: files, standard input and errors."""

import io
import json
import re
import sys

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.extras.pairs.scoring_files import score_line
from modeling_random_transformer.inference import score_pairs
from tests.helpers.corpora import write_pairs
from tests.helpers.translation import some_texts

PAIRS = list(zip(some_texts(30, seed=1), some_texts(30, seed=2), strict=True))


@pytest.fixture
def run(translator_folder, monkeypatch, capsysbinary, _reset_accelerate):
    """Run the command with bytes on standard input; returns the exit status, standard output and the errors."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = cli.main(["score", "--model", str(translator_folder), "--device", "cpu", *map(str, arguments)])
        captured = capsysbinary.readouterr()
        return status, captured.out, captured.err.decode()

    return run


def test_files_tsv_and_standard_input_agree(run, translator, tokenizer, tmp_path):
    lines = [score_line(score, "text") for score in score_pairs(translator, tokenizer, PAIRS)]
    expected = "".join(f"{line}\n" for line in lines).encode()
    corpus = write_pairs(tmp_path, "aligned", PAIRS)
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
    (tmp_path / "pairs.tsv").write_bytes(tsv)
    aligned = ("--source_file", corpus.source, "--target_file", corpus.target)
    for arguments in (aligned, ("--source_file", tmp_path / "pairs.tsv"), ()):
        assert run(*arguments, stdin=tsv)[:2] == (0, expected)
    assert run(*aligned, "--output", tmp_path / "scores.txt")[:2] == (0, b"")
    assert (tmp_path / "scores.txt").read_bytes() == expected


def test_jsonl_with_token_scores(run):
    status, output, _ = run("--output_format", "jsonl", "--token_scores", stdin=b"the boy\tel libro\n")
    score = json.loads(output)
    assert status == 0
    assert sum(score["token_log_probabilities"]) == pytest.approx(score["log_probability"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xe9\tb", r"stdin must contain valid pairs only, but line 2 is not UTF-8\."),
        (b"one " * 5000 + b"\tb", r"stdin, line 2: texts must have at most \d+ tokens"),
    ],
    ids=["not UTF-8", "long"],
)
def test_an_invalid_line_of_standard_input_is_an_error(run, line, message):
    status, _, error = run(stdin=b"a\tb\n" + line + b"\n")
    assert status == 2
    assert re.search(message, error)


def test_restart_without_files_is_an_error(run):
    status, output, error = run("--restart", stdin=b"a\tb\n")
    assert (status, output) == (2, b"")
    assert error.endswith("error: --restart must be given with a file as input and output, got - and -.\n")

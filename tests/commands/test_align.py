"""The command `align`: files and standard input."""

import io
import sys

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.extras.pairs.alignments import alignments, links_line
from tests.helpers.corpora import write_pairs
from tests.helpers.translation import some_texts

PAIRS = list(zip(some_texts(30, seed=1), some_texts(30, seed=2), strict=True))


@pytest.mark.usefixtures("_reset_accelerate")
def test_files_and_standard_input_agree(translator_folder, translator, tokenizer, tmp_path, monkeypatch, capsys):
    links = alignments(translator, tokenizer, PAIRS)
    expected = "".join(f"{links_line(of_pair)}\n" for of_pair in links)
    corpus = write_pairs(tmp_path, "aligned", PAIRS)
    files = ["--source_file", str(corpus.source), "--target_file", str(corpus.target)]
    output = tmp_path / "links.txt"
    command = ["align", "--model", str(translator_folder), "--device", "cpu"]
    assert cli.main([*command, *files]) == 0
    assert capsys.readouterr().out == expected
    assert cli.main([*command, *files, "--output", str(output)]) == 0
    assert output.read_text() == expected
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(tsv.encode())))
    assert cli.main(command) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.usefixtures("_reset_accelerate")
def test_a_long_text_is_an_error_without_truncation(translator_folder, monkeypatch, capsys):
    command = ["align", "--model", str(translator_folder), "--device", "cpu"]
    for flags, status in (([], 2), (["--truncation"], 0)):
        stdin = io.BytesIO(b"a\tb\n" + b"one " * 5000 + b"\tb\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        assert cli.main([*command, *flags]) == status
    assert "stdin, line 2: texts must have at most" in capsys.readouterr().err

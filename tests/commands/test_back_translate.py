"""The command `back-translate`: the options of the text and of the method, and the counts."""

from pathlib import Path

import pytest

from modeling_random_transformer import cli
from tests.helpers.translation import some_texts

LONG = "book " * 300


@pytest.mark.usefixtures("_reset_accelerate")
def test_the_command_reports_lines_that_it_skips(translator_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mono.tsv").write_text("".join(f"7\t{text}\n" for text in ("", *some_texts(12), LONG)))
    flags = f"--model {translator_folder} --input mono.tsv --text_key 2 --output_source a.en --output_target a.de"
    flags += " --method sampling --tag off --max_tokens 20 --device cpu"
    assert cli.main(["back-translate", *flags.split()]) == 0
    error = capsys.readouterr().err
    assert "of 14 lines are invalid: 1 blank (line 1)" in error
    assert "of more than 20 tokens (line" in error
    sources, targets = (Path(name).read_text().split("\n")[:-1] for name in ("a.en", "a.de"))
    assert len(sources) == len(targets) > 3
    assert not any(source.startswith("<bt>") for source in sources)

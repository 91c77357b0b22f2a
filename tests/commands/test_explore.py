"""The command `explore`: invalid arguments. Its page is tested in `tests/extras/inspection/test_explorer.py`."""

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.commands import explore


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "a"], "FOLDER: must contain a saved model, got 'nowhere'"),
        (["FOLDER", " "], "sentence must be a text that is not blank, got ' '"),
        (["FOLDER", "a", "--output", "."], "--output must be a file, new or not, in a folder that exists, got '.'"),
        (["FOLDER", "a", "--output", "file/a"], "--output must be a file, new or not, in a folder that exists, got"),
        (["FOLDER", "hello " * 3000], "sentence must have at most"),
    ],
)
def test_invalid_arguments(arguments, message, translator_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file")
    folder = str(translator_folder)
    assert cli.main(["explore", *(folder if argument == "FOLDER" else argument for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error_before_the_model_is_loaded(
    translator_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(explore, "load_models", None)
    monkeypatch.setattr("os.access", lambda *_: False)  # the user root may write all files
    assert cli.main(["explore", str(translator_folder), "a", "--output", str(tmp_path / "page.html")]) == 2
    assert "--output must be a file in a folder that can be written, got" in capsys.readouterr().err


def test_unsupported_model(tmp_path, capsys):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert cli.main(["explore", str(tmp_path), "a"]) == 2
    assert "must contain a model of type 'random_transformer'" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()

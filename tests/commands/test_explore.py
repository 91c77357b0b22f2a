"""The command `explore`: invalid arguments. Its page is tested in `tests/extras/inspection/test_explorer.py`."""

import pytest

from modeling_random_transformer import cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "a"], "FOLDER: must contain a saved model, got 'nowhere'"),
        (["FOLDER", " "], "sentence must be a text that is not blank, got ' '"),
        (["FOLDER", "a", "--output", "."], "--output must be a file, got ."),
        (["FOLDER", "hello " * 3000], "sentence must have at most"),
    ],
)
def test_invalid_arguments(arguments, message, translator_folder, capsys):
    folder = str(translator_folder)
    assert cli.main(["explore", *(folder if argument == "FOLDER" else argument for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_unsupported_model(tmp_path, capsys):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert cli.main(["explore", str(tmp_path), "a"]) == 2
    assert "must contain a model of type 'random_transformer'" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()

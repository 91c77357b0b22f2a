"""The command `export`: exit status and flags. tests/extras/export/test_saved.py has the exported folders."""

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.extras.export import Comparison, saved
from tests.helpers.command_line import exit_status


@pytest.mark.parametrize(
    ("dtype", "wrong", "status"),
    [("float32", 0, 0), ("float32", 1, 1), ("bfloat16", 4, 0), ("bfloat16", 5, 1), ("int8", 4, 0), ("int8", 5, 1)],
)
def test_status_depends_on_the_comparison(dtype, wrong, status, translator_folder, tmp_path, capsys, monkeypatch):
    comparisons = [Comparison(1, 8, 8, 1.0, 1.0), Comparison(4, 8, 8 - wrong, 1.0, 1.0)]
    monkeypatch.setattr(saved, "export_model", lambda *args, **_: args[2].mkdir())
    monkeypatch.setattr(saved, "load_engine", lambda *_: None)
    monkeypatch.setattr(saved, "compare", lambda *_: comparisons)
    options = ["--engine", "ctranslate2", "--dtype", dtype, "--output", str(tmp_path / "out")]
    assert cli.main(["export", str(translator_folder), *options]) == status
    captured = capsys.readouterr()
    assert f"{8 - wrong} of 8 translations identical" in captured.out
    least, share = ("99%", "87.5%") if dtype == "float32" else ("50%", "37.5%")
    complaint = f"at least {least} of the translations must be identical in {dtype}, got {share}."
    assert (complaint in captured.err) == (status == 1)
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --engine"),
        (["--engine", "onnx", "--check", "nowhere"], "--check: must be a file that exists, got 'nowhere'"),
        (["--engine", "ctranslate2", "--shortlist_source", __file__], "must be given together, got"),
    ],
    ids=["no engine", "missing file", "half a shortlist"],
)
def test_invalid_flags(flags, message, translator_folder, tmp_path, capsys):
    assert exit_status(cli.main, ["export", translator_folder, *flags, "--output", tmp_path / "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

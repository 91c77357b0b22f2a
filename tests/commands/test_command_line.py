"""What the commands share: sizes that no memory has, new outputs, the device of an engine."""

import pytest

from modeling_random_transformer.cli import main
from modeling_random_transformer.commands.command_line import (
    EngineArguments,
    InferenceArguments,
    check_new_outputs,
)


@pytest.mark.parametrize(
    "command", ["translate --num_beams", "translate --n_best", "translate --mbr", "serve --num_beams"]
)
def test_a_size_that_no_memory_has_is_an_error_before_a_model_is_loaded(command, capsys):
    assert main([*command.split(), "1000000000", "--model", "missing"]) == 2
    assert "must be at most 1000, got 1000000000." in capsys.readouterr().err


def test_outputs_are_new_unless_a_job_resumes(tmp_path):
    output, empty = tmp_path / "output", tmp_path / "empty"
    output.write_text("references")
    empty.touch()
    check_new_outputs(False, output=empty, report=None)
    check_new_outputs(True, output=output)
    with pytest.raises(ValueError, match=r"--output must be a new file without --overwrite, got .*, which exists"):
        check_new_outputs(False, output=output)
    (tmp_path / "output.parts").mkdir()
    check_new_outputs(False, output=output)


def test_an_engine_runs_on_a_cpu():
    arguments = EngineArguments(engine="ctranslate2", engine_dtype="int8")
    assert (arguments.device, arguments.engine_options["engine_dtype"]) == ("cpu", "int8")
    with pytest.raises(ValueError, match="--device must be cpu with --engine, got cuda"):
        EngineArguments(engine="ctranslate2", device="cuda")
    with pytest.raises(ValueError, match="--engine must be given with --engine_dtype"):
        EngineArguments(engine_dtype="int8")


def test_text_options_are_those_that_are_given(tmp_path):
    assert InferenceArguments(model=[tmp_path]).text_options == {"max_batch_tokens": 4096}
    arguments = InferenceArguments(model=[tmp_path], source_lang="en", target_lang="de", max_tokens_per_batch=8)
    assert arguments.text_options == {"max_batch_tokens": 8, "src_lang": "en", "tgt_lang": "de"}


@pytest.mark.parametrize("verb", ["score --model .", "align --model .", "clean --output_source c --output_target d"])
def test_keys_of_files_without_columns_are_an_error(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("the boy\n")
    command = f"{verb} --source_file a --target_file b --source_key en --target_key de"
    assert main(command.split()) == 2
    assert "--source_key and --target_key must be unset with --target_file, got en and de" in capsys.readouterr().err

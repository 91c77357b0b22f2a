"""A command does not replace a file that it did not write, such as the references of a test set."""

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.commands.command_line import check_new_outputs

ARGUMENTS = {
    "translate": "--model {translator} --input {input} --output {output}",
    "score": "--model {translator} --source_file {input} --target_file {input} --output {output}",
    "clean": "--source_file {input} --target_file {input} --output {output}",
    "back-translate": "--model {translator} --input {input} --output_source {output} --output_target {other}",
}


@pytest.fixture
def paths(translator_folder, tmp_path):
    (tmp_path / "test.en").write_text("the cat sees the dog\n")
    (tmp_path / "test.tsv").write_text("references\n")
    names = {"input": "test.en", "output": "test.tsv", "other": "other.en"}
    return {"translator": translator_folder} | {name: tmp_path / file for name, file in names.items()}


@pytest.mark.parametrize("command", ARGUMENTS)
def test_an_existing_output_is_an_error(command, paths, capsys):
    arguments = ARGUMENTS[command].format(**paths).split()
    assert cli.main([command, *arguments]) == 2
    assert "must be a new file without --overwrite" in capsys.readouterr().err
    assert paths["output"].read_text() == "references\n"


def test_overwrite_replaces_the_output(paths, capsys):
    arguments = ARGUMENTS["translate"].format(**paths).split()
    assert cli.main(["translate", *arguments, "--overwrite"]) == 0, capsys.readouterr().err
    assert paths["output"].read_text() != "references\n"


def test_empty_outputs_and_those_of_an_interrupted_job(tmp_path):
    output = tmp_path / "out.txt"
    output.touch()
    check_new_outputs(False, output=output)
    output.write_text("earlier\n")
    with pytest.raises(ValueError, match="--output must be a new file"):
        check_new_outputs(False, output=output)
    (tmp_path / "out.txt.parts").mkdir()
    check_new_outputs(False, output=output)

"""The command `distill`: its arguments and its output."""

from types import SimpleNamespace

from modeling_random_transformer import cli
from modeling_random_transformer.commands import distill as command
from modeling_random_transformer.stages.distillation import DistillationResult, ModelScores
from modeling_random_transformer.stages.training_set import SyntheticReport


def test_the_command_passes_its_flags_and_prints_the_comparison(tmp_path, capsys, monkeypatch):
    passed = []

    def distill(*arguments):
        passed.extend(arguments)
        row = ModelScores("student", "float32", 1.0, 2.0, 3.0, 4.0, "signature")
        return DistillationResult(SimpleNamespace(folder=tmp_path), SyntheticReport(8, 1, 2, 6), [row])

    monkeypatch.setattr(command, "distill", distill)
    for name in ("text", "test.a", "test.b"):
        (tmp_path / name).write_text("a\n")
    flags = f"--teacher {tmp_path} --source_text {tmp_path}/text --output_dir {tmp_path}/out --num_beams 2 --use_cpu"
    flags += f" --test_source_file {tmp_path}/test.a --test_target_file {tmp_path}/test.b --vocab_size 300"
    assert cli.main(["distill", *flags.split()]) == 0
    teacher, data, model, args = passed
    assert (teacher.teacher, teacher.source_text) == ([str(tmp_path)], [f"{tmp_path}/text"])
    assert (data.test_target_file, model.vocab_size, args.num_beams) == ([f"{tmp_path}/test.b"], 300, 2)
    output = capsys.readouterr().out
    assert output.startswith("6 synthetic and 6 original pairs")
    assert "| student | float32 | 1.00 | 2.00 | 3.0 | 4.0 |\n\nsignature" in output
    assert f"Saved the student to {tmp_path}, in int8 to {tmp_path / 'int8'}" in output

"""Dry runs: the estimate of a run from a few steps."""

import pytest
import transformers

from modeling_random_transformer import cli
from modeling_random_transformer.extras.estimation import measurement
from modeling_random_transformer.extras.estimation.measurement import GIB, DryRun
from tests.helpers.training import flags, parse_command


def test_units_of_the_estimate():
    sizes = {"steps": 100_000, "step_seconds": 0.4, "step_tokens": 48_000.0, "num_devices": 8}
    run = DryRun(**sizes, memory=2 * GIB, parameters=65, device="cuda")
    assert run.tokens_per_second == 120_000
    assert run.hours == pytest.approx(100_000 * 0.4 / 3600)


def test_the_command_prints_the_estimate_and_saves_nothing(corpus, monkeypatch, capsys):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 2)
    transformers.logging.set_verbosity_warning()  # commands of other tests raise the level, which hides the progress
    assert cli.main(["train", *flags(corpus, max_steps=5000, vocab_size=3000), "--dry_run"]) == 0
    output, progress = capsys.readouterr()
    assert output.startswith("measured ")
    assert "5/5" in progress
    assert "tokens/s" in output
    assert "5,000 steps" in output
    assert not (corpus / "out").exists()


@pytest.mark.parametrize("options", [{}, {"train_weights": 3}], ids=str)
def test_batches_are_complete_and_the_vocabulary_has_the_requested_size(options, corpus, monkeypatch):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 2)
    command_flags = flags(corpus, vocab_size=3000, gradient_accumulation_steps=3, **options)
    result = measurement.dry_run(*parse_command(command_flags)[:3])
    assert result.parameters > 3000 * 16
    assert 0.5 * 600 < result.step_tokens <= 600
    assert result.hours > 0


def test_invalid_arguments_and_lines(corpus, monkeypatch, capsys):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 1)
    (corpus / "train.a").write_text("\n" + "ab\n" * 119)
    for options in ({"max_steps": -1}, {}):
        assert cli.main(["train", *flags(corpus, **options), "--dry_run"]) == 2
    first, second = (line for line in capsys.readouterr().err.splitlines() if "error: " in line)
    assert "max_steps must be a positive integer for a dry run, got -1." in first
    assert "with an empty source or target (line 1)" in second
    assert cli.main(["train", *flags(corpus), "--dry_run", "--on_invalid=skip"]) == 0


def test_reason_of_invalid_lines_is_that_of_a_run(tmp_path, capsys):
    (tmp_path / "three.tsv").write_text("a\tb\tc\n")
    argv = ["--train_file", str(tmp_path / "three.tsv"), "--output_dir", str(tmp_path / "out"), "--dry_run"]
    assert cli.main(["train", *argv]) == 2
    assert "1 without exactly one source and one target (line 1)" in capsys.readouterr().err


def test_reasons_of_skipped_lines_are_those_of_a_run(corpus, monkeypatch, caplog):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 1)
    rows = ["one column", "four\tcolumns\tin\ta row", "\tno source", *("a source\ta target" for _ in range(117))]
    (corpus / "pairs.tsv").write_bytes("\n".join(rows).encode() + b"\n\xff\tnot UTF-8\n")
    changes = {"source_file": None, "target_file": None, "train_file": str(corpus / "pairs.tsv"), "max_steps": 1}
    argv = ["train", *flags(corpus, **changes), "--on_invalid=skip"]
    reports = []
    for options in (["--dry_run"], []):
        caplog.clear()
        assert cli.main([*argv, *options]) == 0
        reports.append([message for message in caplog.messages if "pairs.tsv: " in message])
    assert reports[0] == reports[1]
    assert "2 without exactly one source and one target (line 1, 2); 1 with an empty source" in reports[0][0]
    assert "not UTF-8 (line 121)" in reports[0][0]


def test_folders_and_files_are_checked_before_the_measurement(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    (tmp_path / "file").write_text("x")
    argv = ["train", "--train_file", str(tmp_path / "pairs.tsv"), "--max_steps", "1", "--dry_run", "--output_dir"]
    for output in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert cli.main([*argv, str(output)]) == 2
        message = f"output_dir must be a folder, new or not, that can be written, got {str(output)!r}."
        assert message in capsys.readouterr().err
    assert cli.main([*argv, str(tmp_path / "out"), "--test_file", str(tmp_path / "missing.tsv")]) == 2
    assert "test_file must be a file, got " in capsys.readouterr().err

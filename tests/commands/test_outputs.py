"""Outputs of all commands: existing files are replaced with --overwrite only; pipes and open files are written."""

import gzip
import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.commands.command_line import check_new_outputs
from modeling_random_transformer.inference import loading, translation_files
from tests.helpers.interruption import interrupt_at

pytestmark = pytest.mark.usefixtures("_reset_accelerate")
# The command, without the model and the device, and the files that it writes
COMMANDS = {
    "file": ("translate --input in.en --output out.txt", ["out.txt"]),
    "sentence": ("translate boy --output out.txt", ["out.txt"]),
    "document": ("translate --format html --input in.en --output out.html", ["out.html"]),
    "score": ("score --source_file in.en --target_file in.es --output out.gz", ["out.gz"]),
    "alignments": ("align --source_file in.tsv --output out.txt", ["out.txt"]),
    "report": ("report --source_file in.tsv --output out.html", ["out.html"]),
    "back-translate": ("back-translate --input in.en --output_source a --output_target b --max_tokens 9", ["a", "b"]),
    "explore": ("explore MODEL boy --output out.html --max_new_tokens 2", ["out.html"]),
    "clean": ("clean --train_file in.tsv --output out.tsv --rejected no.tsv", ["out.tsv", "no.tsv"]),
    "clean files": ("clean --train_file in.tsv --output_source a --output_target b --report c", ["a", "b", "c"]),
    "split": ("clean --train_file in.tsv --output out.tsv --split 1", ["out.tsv", "out.validation.tsv"]),
}


@pytest.fixture
def run(translator_folder, tmp_path, monkeypatch, capfd):
    """Run a command in a folder with small texts; returns its exit status and what it prints."""
    monkeypatch.chdir(tmp_path)
    Path("in.en").write_text("the boy\na girl\n")
    Path("in.es").write_text("el chico\nuna chica\n")
    Path("in.tsv").write_text("the boy\tel chico\na girl\tuna chica\nthe boy\tel chico\n")

    def run(command, *more):
        verb, *flags = command.replace("MODEL", str(translator_folder)).split()
        if verb in ("translate", "score", "align", "report", "back-translate"):
            flags += ["--model", str(translator_folder), "--device", "cpu"]
        status = cli.main([verb, *flags, *more])
        return status, capfd.readouterr()

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_existing_files_are_replaced_with_overwrite_only(run, name):
    command, outputs = COMMANDS[name]
    for output in outputs:
        Path(output).write_text("references\n")
        status, printed = run(command)
        assert status == 2
        assert f"must be a new file without --overwrite, got '{output}', which exists." in printed.err
        assert Path(output).read_text() == "references\n"
        Path(output).unlink()
    assert not any(Path(output).exists() for output in outputs)
    assert run(command)[0] == 0
    assert all(Path(output).read_bytes() != b"references\n" for output in outputs)
    first = [Path(output).read_bytes() for output in outputs]
    assert run(command)[0] == 2
    assert run(command, "--overwrite")[0] == 0
    assert [Path(output).read_bytes() for output in outputs] == first


@pytest.mark.parametrize("name", ["file", "score", "back-translate"])
def test_a_run_continues_the_files_that_it_has_written(run, name, monkeypatch):
    """A process may be killed after it has written the output, and before it has removed its record."""
    command, outputs = COMMANDS[name]
    with monkeypatch.context() as patch:
        patch.setattr(translation_files, "remove_written", interrupt)
        if name == "back-translate":
            interrupt_at(1, translation_files, "candidate_lines", patch)
        assert run(command)[0] == 130
    for output in outputs:
        Path(output).write_text("incomplete\n")
    assert run(command)[0] == 0
    assert all(Path(output).read_bytes() != b"incomplete\n" for output in outputs)


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "resumes"),
    [("file", True), ("score", True), ("alignments", True), ("back-translate", True), ("sentence", False)],
)
def test_an_interruption_says_whether_the_work_resumes(run, name, resumes, monkeypatch):
    command, _ = COMMANDS[name]
    monkeypatch.setattr(loading, "load_models", interrupt)
    status, printed = run(command)
    assert status == 130
    assert ("interrupted; the same command resumes the run." in printed.err) == resumes


@pytest.mark.parametrize(
    ("name", "redirection"),
    [
        *((name, "pipe") for name in ("file", "sentence", "document", "score", "report", "explore", "clean")),
        *(("sentence", redirection) for redirection in ("file", "appended file", "named pipe")),
        *(("clean", redirection) for redirection in ("file", "appended file")),
    ],
)
def test_an_output_may_be_an_open_file(run, name, redirection, tmp_path):
    """As in `--output >(gzip > out.gz)` and `--output /dev/stdout > out.txt`; an open file keeps what it contains."""
    command, [output, *_] = COMMANDS[name]
    stored = tmp_path / "stored"
    if redirection == "named pipe":
        os.mkfifo(tmp_path / "fifo")
        reader = subprocess.Popen(["sh", "-c", "cat fifo > stored"], cwd=tmp_path)
        path = "fifo"
    elif redirection == "pipe":
        reader = subprocess.Popen(["sh", "-c", "cat > stored"], stdin=subprocess.PIPE, cwd=tmp_path)
        path = f"/dev/fd/{reader.stdin.fileno()}"
    else:
        stored.write_bytes(b"header\n" if redirection == "appended file" else b"")
        descriptor = os.open(stored, os.O_WRONLY | os.O_APPEND)
        path = f"/dev/fd/{descriptor}"
    assert run(command.replace(output, path))[0] == 0
    if "pipe" in redirection:
        if reader.stdin is not None:
            reader.stdin.close()
        assert reader.wait(timeout=30) == 0
    else:
        os.close(descriptor)
    assert run(command, "--overwrite")[0] == 0
    content = Path(output).read_bytes()
    header = b"header\n" if redirection == "appended file" else b""
    assert stored.read_bytes() == header + (gzip.decompress(content) if output.endswith(".gz") else content)


def test_dev_stdout_continues_an_open_file(translator_folder, tmp_path):
    flags = ["translate", "--model", str(translator_folder), "--device", "cpu", "boy", "--output", "/dev/stdout"]
    stdout = os.dup(1)
    with open(tmp_path / "out", "wb") as file:
        file.write(b"header\n")
        file.flush()
        os.dup2(file.fileno(), 1)
    try:
        assert cli.main(flags) == 0
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert (tmp_path / "out").read_bytes().startswith(b"header\n")
    assert len((tmp_path / "out").read_bytes().splitlines()) == 2


@pytest.mark.parametrize("name", ["file", "score", "back-translate"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_before_the_first_chunk_does_not_block_other_inputs(run, name, error, monkeypatch):
    command, outputs = COMMANDS[name]
    with monkeypatch.context() as patch:
        patch.setattr(translation_files, "encode_lines", partial(fail, error))
        try:
            status, _ = run(command)
        except SystemExit as exit_:
            status = exit_.code
        assert status != 0
    assert not [path.name for path in Path().iterdir() if path.name.endswith(".parts")]
    for input_file in ("in.en", "in.es", "in.tsv"):
        Path(input_file).write_text(Path(input_file).read_text().replace("the boy", "the man"))
    assert run(command)[0] == 0
    assert all(Path(output).exists() for output in outputs)


def fail(error, *_):
    raise error("a text is invalid")


def test_a_record_of_a_killed_process_without_chunks_does_not_block_other_inputs(run):
    folder = Path("out.txt.parts")
    folder.mkdir()
    record = {"inputs": {"input": "another"}, "files": {}, "facts": {}, "is_finished": False}
    (folder / "job.json").write_text(json.dumps({"lines": record}))
    (folder / "job.lock").touch()
    assert run(COMMANDS["file"][0])[0] == 0
    assert not folder.exists()


def test_empty_outputs_and_those_of_an_interrupted_job(tmp_path):
    output = tmp_path / "out.txt"
    output.touch()
    check_new_outputs(False, output=output)
    output.write_text("earlier\n")
    with pytest.raises(ValueError, match="--output must be a new file"):
        check_new_outputs(False, output=output)
    (tmp_path / "out.txt.parts").mkdir()
    check_new_outputs(False, output=output)

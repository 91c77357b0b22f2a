"""`examples/translate.py` and its `main`: in this process where possible, otherwise in a subprocess."""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from modeling_random_transformer.commands import command_line
from modeling_random_transformer.commands import translate as command
from modeling_random_transformer.inference import encode_lines, translate
from tests.helpers.models import tiny_config
from tests.helpers.processes import WAIT_LIMIT, run_on_two_processes, start_imported
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

TEXTS = ["the boy", "", "we want to buy\u2028two red apples", "el niño"]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "translate.py"
# Two processes on a machine without accelerators: `--cpu` would start one.
TWO = ["--multi_gpu", "--num_processes", "2"]
LAUNCHER = "accelerate.commands.accelerate_cli"
SETTINGS = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
pytestmark = pytest.mark.usefixtures("_reset_accelerate")


@pytest.fixture(scope="module")
def model():
    return random_translator()


@pytest.fixture(scope="module")
def tokenizer():
    return random_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("saved")
    random_translator().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def run(folder, capsysbinary):
    """Run the command in this process; returns the exit status and the lines of stdout and stderr."""

    def run(*arguments):
        model = [] if "--model" in arguments else ["--model", str(folder)]
        try:
            status = command.main([*model, "--device", "cpu", *map(str, arguments)])
        except SystemExit as exit_of_argparse:
            status = exit_of_argparse.code
        captured = capsysbinary.readouterr()
        return status, captured.out.decode().split("\n")[:-1], captured.err.decode().splitlines()

    return run


class Stdin(io.TextIOWrapper):
    def __init__(self, content: bytes, typed: bool = False):
        super().__init__(io.BytesIO(content))
        self.typed = typed

    def isatty(self):
        return self.typed


class TestInputs:
    @pytest.fixture
    def expected(self, model, tokenizer):
        return [line.decode()[:-1] for line in encode_lines(translate(TEXTS, model, tokenizer))]

    def test_sentences(self, run, expected):
        assert run(*TEXTS) == (0, expected, [])

    def test_sentences_between_options(self, run, model, tokenizer):
        expected = translate(["the boy", "el niño"], model, tokenizer, num_beams=2, length_penalty=1.5)
        assert run("the boy", "--num_beams", 2, "el niño", "--length_penalty", 1.5) == (0, expected, [])

    def test_adapter(self, run, folder, tokenizer, tmp_path):
        adapted = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(folder), LoraConfig(init_lora_weights=False))
        adapted.eval().save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        expected = translate(TEXTS, adapted, tokenizer, progress=False)
        assert expected != translate(TEXTS, AutoModelForSeq2SeqLM.from_pretrained(folder), tokenizer, progress=False)
        assert run("--model", tmp_path, *TEXTS)[:2] == (0, [line.decode()[:-1] for line in encode_lines(expected)])

    def test_adapter_without_its_base_model(self, run, folder, tokenizer, tmp_path):
        shutil.copytree(folder, tmp_path / "base")
        adapted = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), LoraConfig())
        adapted.save_pretrained(tmp_path / "adapter")
        tokenizer.save_pretrained(tmp_path / "adapter")
        shutil.rmtree(tmp_path / "base")
        status, _, errors = run("--model", tmp_path / "adapter", "the boy")
        assert status == 2
        assert "adapter_config.json: " in errors[-1]
        assert str(tmp_path / "base") in errors[-1]

    def test_missing_weights(self, run, folder, tmp_path):
        shutil.copytree(folder, tmp_path / "model")
        weights = load_file(tmp_path / "model" / "model.safetensors")
        weights.pop("model.encoder.layers.0.fc1.bias")
        save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
        status, lines, errors = run("--model", tmp_path / "model", "the boy")
        assert (status, lines) == (2, [])
        assert "got none for model.encoder.layers.0.fc1.bias" in errors[-1]

    def test_tokenizer_of_another_vocabulary(self, run, folder, tmp_path):
        shutil.copytree(folder, tmp_path / "model")
        RandomTransformerTokenizer.train(["a"] * 9, vocab_size=1000).save_pretrained(tmp_path / "model")
        model = RandomTransformerForConditionalGeneration(tiny_config(vocab_size=1000))
        model.save_pretrained(tmp_path / "model")
        status, lines, errors = run("--model", tmp_path / "model", "the boy")
        assert (status, lines) == (2, [])
        assert "tokenizer must match the model's vocab_size=1000, got " in errors[-1]

    @pytest.mark.parametrize("flags", [(), ("--input", "-")])
    def test_stdin(self, run, expected, monkeypatch, flags):
        monkeypatch.setattr(sys, "stdin", Stdin("\r\n".join(TEXTS).encode()))
        assert run(*flags) == (0, expected, [])

    def test_compressed_file_to_stdout(self, run, expected, tmp_path):
        (tmp_path / "in.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
        assert run("--input", tmp_path / "in.gz") == (0, expected, [])

    def test_file_to_stdout(self, run, expected, tmp_path):
        (tmp_path / "in.txt").write_text("\n".join(TEXTS))
        assert run("--input", tmp_path / "in.txt", "--chunk_size", 2) == (0, expected, [])

    def test_file_to_file(self, run, expected, tmp_path):
        (tmp_path / "in.txt").write_text("\n".join(TEXTS))
        assert run("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt") == (0, [], [])
        assert (tmp_path / "out.txt").read_text() == "".join(f"{line}\n" for line in expected)

    def test_stdin_to_file(self, run, expected, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "stdin", Stdin("\n".join(TEXTS).encode()))
        assert run("--output", tmp_path / "out.txt") == (0, [], [])
        assert (tmp_path / "out.txt").read_text() == "".join(f"{line}\n" for line in expected)

    def test_named_pipe_to_file(self, run, expected, tmp_path):
        """A pipe cannot be read twice, so it is translated in a single pass."""
        os.mkfifo(tmp_path / "pipe")
        writer = subprocess.Popen(["sh", "-c", 'printf "%s" "$1" > "$0"', tmp_path / "pipe", "\n".join(TEXTS)])
        assert run("--input", tmp_path / "pipe", "--output", tmp_path / "out.txt") == (0, [], [])
        assert (tmp_path / "out.txt").read_text() == "".join(f"{line}\n" for line in expected)
        writer.wait()

    def test_interactive_input_is_translated_line_by_line(self, run, expected, monkeypatch):
        """The translation of a line is written before the next line is read."""
        stdin = Stdin("\n".join(TEXTS).encode(), typed=True)
        lines, read = list(stdin.buffer), []
        monkeypatch.setattr(sys, "stdin", stdin)
        recorder = Recorder(stdin, lines, read)
        for module in (command, command_line):
            monkeypatch.setattr(module, "sys", recorder)
        status, _, errors = run()
        answers = [line.decode()[:-1] for kind, line in read if kind == "answer"]
        assert (status, answers) == (0, expected)
        assert [kind for kind, _ in read] == ["line", "answer"] * 4
        assert errors == ["Enter one text per line; end with Ctrl-D."]

    def test_sampling(self, run):
        sampled = run("--sample", "--seed", 1, *TEXTS)
        assert sampled == run("--sample", "--seed", 1, *TEXTS)
        assert sampled != run("--sample", "--seed", 2, *TEXTS)
        greedy = run("--num_beams", 1, *TEXTS)
        assert run("--sample", "--temperature", 1e-6, *TEXTS) == greedy != sampled

    def test_dtype(self, run, monkeypatch):
        models = []
        monkeypatch.setattr(command, "translate_lines", lambda _, model, *__: models.append(model))
        for dtype in ("auto", "float32", "bfloat16", "int8"):
            assert run("--dtype", dtype, "the boy") == (0, [], [])
        float32, bfloat16 = torch.float32, torch.bfloat16
        assert [model.dtype for model in models] == [float32, float32, bfloat16, float32]
        assert [getattr(model, "is_quantized", False) for model in models] == [False, False, False, True]

    def test_max_source_tokens_truncates(self, run):
        cut = run("--max_source_tokens", 4, "the the the the", "the the the the the")
        assert cut[1][0] == cut[1][1]


class Recorder:
    """A replacement of `sys` that records the order of reads and writes."""

    def __init__(self, stdin, lines, read):
        self.stdin = self.stdout = self
        self.buffer = self
        self.lines, self.read = iter(lines), read
        self.isatty, self.stderr = stdin.isatty, sys.stderr

    def __iter__(self):
        for line in self.lines:
            self.read.append(("line", line))
            yield line

    def write(self, line):
        self.read.append(("answer", line))

    def flush(self):
        pass


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--num_beams", "0"], "argument --num_beams: must be a positive integer, got '0'."),
            (["--num_beams", "two"], "argument --num_beams: must be a positive integer, got 'two'."),
            (
                ["--max_tokens_per_batch", "-5"],
                "argument --max_tokens_per_batch: must be a positive integer",
            ),
            (["--temperature", "0", "--sample"], "argument --temperature: must be a positive number, got '0'."),
            (["--temperature", "2"], "--temperature must be given with --sample, got 2.0 without it."),
            (["--input", "FOLDER"], "argument --input: must be a file that exists, got 'FOLDER'."),
            (["--input", "missing"], "argument --input: must be a file that exists, got 'missing'."),
            (["--output", "missing/out"], "argument --output: must be in a folder that exists, got 'missing/out'."),
            (["--output", "FOLDER"], "argument --output: must be a file, new or not, got 'FOLDER'."),
            (["--output", "/dev/null"], "argument --output: must be a file, new or not, got '/dev/null'."),
            (["--model", "missing"], "argument --model: must be a folder with a saved model and its tokenizer, got"),
            (["--dtype", "float8"], "argument --dtype: invalid choice: 'float8' (choose from"),
            (["--input", "INPUT", "a"], "sentences and --input must not be given together, got ['a'] and INPUT."),
            (["--input", "INPUT", "--output", "INPUT"], "--output must differ from --input, got INPUT for both."),
            (["--beams=2"], "unrecognized arguments: --beams=2"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_invalid_arguments_are_one_line_errors(self, run, folder, monkeypatch, arguments, message):
        monkeypatch.setattr(command, "run", None)
        names = {"FOLDER": str(folder), "INPUT": str(folder / "model.safetensors")}
        for name, path in names.items():
            arguments = [argument.replace(name, path) for argument in arguments]
            message = message.replace(name, path)
        status, output, errors = run(*arguments)
        assert (status, output, len(errors)) == (2, [], 1)
        assert errors[0].startswith(f"random-transformer translate: error: {message}")

    def test_unavailable_device(self, run):
        status, _, errors = run("--device", "nonsense", "a")
        assert (status, len(errors)) == (2, 1)
        assert "device must be an available device, got nonsense:" in errors[0]

    @pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json"])
    def test_damaged_folder(self, run, folder, tmp_path, name):
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(b"{" if path.name == name else path.read_bytes())
        status, _, errors = run("--model", tmp_path, "a")
        assert status == 2
        assert f"--model must contain a model and its tokenizer, got {tmp_path}:" in errors[-1]

    def test_invalid_utf8(self, run, tmp_path, monkeypatch):
        content = b"the boy\n" * 3 + b"the \xff boy\n"
        (tmp_path / "in.txt").write_bytes(content)
        status, output, errors = run("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
        assert (status, output) == (2, [])
        assert "in.txt must be UTF-8 text, but line 4 is not:" in errors[0]
        monkeypatch.setattr(sys, "stdin", Stdin(content))
        status, output, errors = run("--chunk_size", 3)
        assert (status, len(output)) == (2, 3), "the chunk before is translated"
        assert "stdin must be UTF-8 text, but line 4 is not:" in errors[0]

    def test_sentence_that_is_not_unicode(self, run):
        status, _, errors = run("the boy", b"\xff".decode(errors="surrogateescape"))
        assert status == 2
        assert "index 1: texts must be Unicode, got" in errors[0]

    def test_resume_requires_the_same_options(self, run, tmp_path, monkeypatch):
        (tmp_path / "in.txt").write_text("the boy\n" * 3 + "the girl\n")
        files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]

        def stopped(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("modeling_random_transformer.inference.translation_files.translate_chunk", stopped)
            assert run(*files)[0] == 130
        status, _, errors = run(*files, "--num_beams", 2)
        assert status == 2
        assert (
            "out.txt.parts must contain an earlier attempt with the same inputs and options, got one with other values "
            "(num_beams was 4, now 2)" in errors[0]
        )
        assert run(*files, "--num_beams", 2, "--restart") == (0, [], [])


def environment():
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def start(*command, **options):
    return subprocess.Popen(list(map(str, command)), env=environment(), stderr=subprocess.PIPE, **options)


@pytest.mark.slow
def test_closed_stdout(folder, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(some_texts(2000)))
    arguments = ["--model", folder, "--input", tmp_path / "in.txt", "--num_beams", 1, "--chunk_size", 5]
    process = start(sys.executable, SCRIPT, *arguments, stdout=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(1200) == 0
    assert "Traceback" not in errors
    assert "Broken" not in errors


@pytest.mark.slow
class TestProcesses:
    """All but the processes that the launcher starts are forked from a server with their imports."""

    OPTIONS = ["--num_beams", 1, "--chunk_size", 3]

    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "in.txt"
        path.write_text("\n".join(some_texts(150, seed=7)) + "\n")
        return path

    @pytest.fixture
    def expected(self, model, tokenizer):
        return b"".join(encode_lines(translate(some_texts(150, seed=7), model, tokenizer, num_beams=1)))

    @pytest.fixture
    def output(self, tmp_path):
        return tmp_path / "out.txt"

    @pytest.fixture
    def arguments(self, folder, source, output):
        return ["--model", folder, "--input", source, "--output", output, *self.OPTIONS]

    @pytest.fixture
    def alone(self, arguments, tmp_path_factory):
        """Start one process."""
        return partial(start_imported, SCRIPT, *arguments, stderr=tmp_path_factory.mktemp("alone") / "stderr")

    @pytest.fixture
    def launch(self, arguments, tmp_path_factory):
        """Start `accelerate launch` with these options."""
        errors = tmp_path_factory.mktemp("launcher") / "stderr"

        def launch(*options):
            command = ["launch", *options, *SETTINGS, SCRIPT, *arguments]
            return start_imported(LAUNCHER, *command, environment=environment(), stderr=errors)

        return launch

    def test_two_processes_write_the_same_output(self, launch, source, output, expected):
        finish(launch(*TWO))
        assert output.read_bytes() == expected
        assert sorted(output.parent.iterdir()) == [source, output]

    @pytest.mark.long
    def test_resume_after_random_kills(self, alone, source, output, expected):
        draw = random.Random(2017)
        for _ in range(3):
            process = alone()
            wait_for_parts(output, draw.randint(1, 12), process)
            time.sleep(draw.uniform(0, 0.2))
            process.kill()
            process.join()
            assert not output.exists()
        finish(alone())
        assert output.read_bytes() == expected
        assert sorted(output.parent.iterdir()) == [source, output]

    @pytest.mark.long
    @pytest.mark.parametrize("processes", [TWO, ["--cpu", "--num_processes", "2"]], ids=["two", "--cpu"])
    def test_processes_exit_with_a_killed_launcher(self, launch, alone, output, expected, processes):
        """One process continues."""
        process = launch(*processes)
        wait_for_parts(output, 3, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.join()
        _, alive = psutil.wait_procs(children, timeout=WAIT_LIMIT)
        assert children
        assert not alive
        assert not output.exists()
        finish(alone())
        assert output.read_bytes() == expected

    def test_two_processes_continue_the_parts_of_one(self, alone, output, expected, arguments):
        process = alone()
        wait_for_parts(output, 10, process)
        process.kill()
        process.join()
        done = run_on_two_processes(SCRIPT, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        assert output.read_bytes() == expected

    def test_a_second_call_is_an_error(self, alone, run, output, expected, arguments):
        process = alone()
        wait_for_parts(output, 2, process)
        status, _, errors = run(*arguments[2:])
        assert status == 2
        assert "output_file must not be in use" in errors[0]
        finish(process)
        assert output.read_bytes() == expected

    def test_several_processes_require_files(self, folder):
        done = run_on_two_processes(SCRIPT, "--model", folder, "the boy")
        assert done.returncode != 0
        assert "--input and --output must both be files with 2 processes." in done.stderr


def finish(process):
    process.join(1200)
    assert process.exitcode == 0


def parts_of(output):
    with contextlib.suppress(FileNotFoundError):
        return [path for path in output.with_name(f"{output.name}.parts").iterdir() if path.suffix == ".txt"]
    return []


def wait_for_parts(output, more, process):
    """Wait for this number of additional parts."""
    before = len(parts_of(output))
    while len(parts_of(output)) < before + more:
        assert process.exitcode is None
        time.sleep(0.005)


@pytest.mark.slow
def test_full_disk_at_stdout(folder):
    with open("/dev/full", "wb") as full:
        process = start(sys.executable, SCRIPT, "--model", folder, "--device", "cpu", "the boy", stdout=full)
        errors = process.communicate(timeout=WAIT_LIMIT)[1].decode().splitlines()
    assert process.returncode == 2
    assert errors[-1] == "random-transformer translate: error: stdout: No space left on device."


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("config.json", "model_type", "x", "model_type must be an architecture of transformers, got 'x'"),
        ("config.json", "dropout", "x", "dropout must be a rate of at least 0 and below 1, got 'x'"),
        ("config.json", "vocab_size", 7, ""),
        ("config.json", "auto_map", 7, ""),
        ("config.json", "decoder_layers", 1, ""),
        ("generation_config.json", "suppress_tokens", 7, ""),
        ("tokenizer_config.json", "add_prefix_space", 1.5, "add_prefix_space must be True or False, got 1.5"),
        ("tokenizer.json", "model", 7, ""),
    ],
)
def test_error_names_the_damaged_file(run, folder, tmp_path, name, field, value, reason):
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / name
    file.write_text(json.dumps({**json.loads(file.read_bytes()), field: value}))
    status, lines, errors = run("--model", tmp_path / "model", "the boy")
    assert (status, lines, len(errors)) == (2, [], 1)
    assert name in errors[0]
    assert reason in errors[0]
    assert "trust" not in errors[0]

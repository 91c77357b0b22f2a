"""`random-transformer translate`, in this process where possible."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer, cli
from modeling_random_transformer.commands import command_line
from modeling_random_transformer.commands import translate as command
from modeling_random_transformer.extras.documents import translate_html
from modeling_random_transformer.extras.export import ctranslate2_engine
from modeling_random_transformer.inference import encode_lines, translate, translation_files
from modeling_random_transformer.inference.loading import load_translator
from tests.helpers.command_line import exit_status
from tests.helpers.engines import needs
from tests.helpers.interruption import interrupt_at
from tests.helpers.models import tiny_config
from tests.helpers.processes import run_on_two_processes
from tests.helpers.translation import multilingual_translator, some_texts

TEXTS = ["the boy", "", "we want to buy\u2028two red apples", "el niño"]
CONTENT = "\n".join(TEXTS)
pytestmark = pytest.mark.usefixtures("_reset_accelerate")


def lines_of(translations) -> list[str]:
    return [line.decode()[:-1] for line in encode_lines(translations)]


@pytest.fixture(scope="module")
def expected(translator, tokenizer):
    return lines_of(translate(TEXTS, translator, tokenizer))


@pytest.fixture
def run(translator_folder, capsysbinary):
    """Run the command in this process; returns the exit status and the lines of stdout and stderr."""

    def run(*arguments):
        model = [] if "--model" in arguments else ["--model", str(translator_folder)]
        status = exit_status(cli.main, ["translate", *model, "--device", "cpu", *arguments])
        captured = capsysbinary.readouterr()
        return status, captured.out.decode().split("\n")[:-1], captured.err.decode().splitlines()

    return run


@pytest.fixture
def folder(translator_folder, tmp_path):
    """A copy of the model, which a test may change."""
    return shutil.copytree(translator_folder, tmp_path / "model")


@pytest.fixture
def interrupted(run, tmp_path, monkeypatch):
    """The arguments of a translation of a file that was interrupted after the first chunk."""
    (tmp_path / "in.txt").write_text("the boy\n" * 3 + "the girl\n")
    files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--chunk_size", 3]
    with monkeypatch.context() as patch:
        interrupt_at(2, translation_files, "candidate_lines", patch)
        assert run(*files)[0] == 130
    return files


def stdin(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content))


class TestInputs:
    def test_sentences_between_options(self, run, translator, tokenizer):
        expected = translate(["the boy", "el niño"], translator, tokenizer, num_beams=2, length_penalty=1.5)
        assert run("the boy", "--num_beams", 2, "el niño", "--length_penalty", 1.5) == (0, expected, [])

    @pytest.mark.parametrize(
        ("source", "flags"),
        [
            (None, TEXTS),
            ("stdin", []),
            ("stdin", ["--input", "-"]),
            ("in.gz", ["--input", "in.gz"]),
            ("in.txt", ["--input", "in.txt", "--chunk_size", 2]),
            ("in.txt", ["--input", "in.txt", "--output", "out.txt"]),
            ("stdin", ["--output", "out.txt"]),
            ("pipe", ["--input", "pipe", "--output", "out.txt"]),  # which cannot be read twice
        ],
        ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else value,
    )
    def test_line_n_translates_text_n(self, run, expected, tmp_path, monkeypatch, source, flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "stdin", stdin(CONTENT.encode().replace(b"\n", b"\r\n") if source == "stdin" else b""))
        if source == "in.gz":
            (tmp_path / source).write_bytes(gzip.compress(CONTENT.encode()))
        elif source == "in.txt":
            (tmp_path / source).write_text(CONTENT)
        elif source == "pipe":
            os.mkfifo(source)
            subprocess.Popen(["sh", "-c", 'printf "%s" "$1" > "$0"', source, CONTENT])
        status, output, errors = run(*flags)
        if "out.txt" in flags:
            assert not output
            output = (tmp_path / "out.txt").read_text().split("\n")[:-1]
        assert (status, output, errors) == (0, expected, [])

    def test_interactive_input_is_translated_line_by_line(self, run, expected, monkeypatch):
        """The translation of a line is written before the next line is read."""
        events = []

        def read():
            for line in CONTENT.encode().splitlines(keepends=True):
                events.append("line")
                yield line

        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=read(), isatty=lambda: True))
        stdout = SimpleNamespace(buffer=SimpleNamespace(write=events.append, flush=lambda: None))
        monkeypatch.setattr(command_line, "sys", SimpleNamespace(stdout=stdout))
        assert run() == (0, [], ["Enter one text per line; end with Ctrl-D."])
        assert events == [event for line in expected for event in ("line", f"{line}\n".encode())]

    def test_an_adapter_is_loaded_with_its_base_model(self, run, folder, tokenizer, tmp_path):
        saved = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        before = translate(TEXTS, saved, tokenizer)
        adapted = get_peft_model(saved, LoraConfig(init_lora_weights=False)).eval()
        adapted.save_pretrained(tmp_path / "adapter")
        tokenizer.save_pretrained(tmp_path / "adapter")
        expected = translate(TEXTS, adapted, tokenizer)
        assert expected != before
        assert run("--model", tmp_path / "adapter", *TEXTS)[:2] == (0, lines_of(expected))
        status, _, errors = run("--model", tmp_path / "adapter", "--engine", "ctranslate2", "the boy")
        assert status == 2
        assert "engine must be None for an adapter that is not merged, got 'ctranslate2' for" in errors[-1]
        shutil.rmtree(folder)  # its base model
        status, _, errors = run("--model", tmp_path / "adapter", "the boy")
        assert status == 2
        assert "adapter_config.json: " in errors[-1]
        assert str(folder) in errors[-1]


def test_the_name_of_a_file_is_translated_with_a_warning(expected, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / TEXTS[0]).touch()
    status, lines, errors = run(TEXTS[0], TEXTS[3], " " * 300)
    assert (status, lines) == (0, [expected[0], expected[3], ""])
    assert errors == ["Warning: 'the boy' is translated as a text. --input translates a file."]


def test_an_adapter_has_its_own_target_language(tmp_path):
    model, tokenizer = multilingual_translator(tgt_lang="fr")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "base")
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    get_peft_model(base, LoraConfig()).save_pretrained(tmp_path / "adapter")
    tokenizer.tgt_lang = "es"
    tokenizer.save_pretrained(tmp_path / "adapter")
    loaded, _ = load_translator(tmp_path / "adapter")
    assert loaded.generation_config.forced_bos_token_id == tokenizer.get_lang_id("es")


def test_an_adapter_whose_base_model_was_moved(folder, run, tokenizer, tmp_path):
    adapted = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(folder), LoraConfig())
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    folder.rename(tmp_path / "moved")
    status, _, errors = run("--model", tmp_path / "adapter", "the boy")
    assert status == 2
    assert f"base_model_name_or_path must be a path that exists, or a name on the Hub, got '{folder}': " in errors[-1]


class TestOptions:
    def test_html_of_a_file_and_of_arguments_is_that_of_translate_html(self, run, translator, tokenizer, tmp_path):
        content = "\ufeff<p class=a>the <b>boy</b></p>\r\n<script>x</script>"
        [expected] = translate_html([content], translator, tokenizer)
        (tmp_path / "in.html").write_bytes(content.encode())
        assert run("--format", "html", "--input", tmp_path / "in.html", "--output", tmp_path / "out.html")[0] == 0
        assert (tmp_path / "out.html").read_bytes() == expected.encode()
        fragments = translate_html(["<b>the boy</b>", "el niño"], translator, tokenizer)
        assert run("--format", "html", "<b>the boy</b>", "el niño")[:2] == (0, "\n".join(fragments).split("\n"))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"<p>a\n\xff", "must be UTF-8 text, but line 2 is not: "),
            ("<p>a".encode("utf-16"), "must be UTF-8 text, got UTF-16 or UTF-32 (by its byte order mark): save it as "),
            ("<p>a".encode("utf-16-le"), "must be UTF-8 text, got UTF-16 or UTF-32 (NUL bytes in line 1): save it as "),
            (b"<p>one\n\0 two three", "must be text without NUL characters, got one in line 2."),
        ],
        ids=["Latin-1", "UTF-16", "UTF-16 without a mark", "NUL"],
    )
    def test_encodings_of_documents(self, content, message, run, tmp_path):
        (tmp_path / "in.html").write_bytes(content)
        assert f"in.html {message}" in run("--format", "html", "--input", tmp_path / "in.html")[2][-1]

    def test_sentences_are_split_on_request(self, run, translator, tokenizer):
        texts = ["the boy. el niño", "  the boy"]
        expected = lines_of(translate(texts, translator, tokenizer, split_sentences=True))
        assert run("--split_sentences", "--source_lang", "en", *texts) == (0, expected, [])

    def test_the_seed_determines_a_sample(self, run):
        sampled = run("--sample", "--seed", 1, *TEXTS)
        assert sampled == run("--seed", 1, "--sample", *TEXTS)
        assert sampled != run("--sample", "--seed", 2, *TEXTS)
        greedy = run("--num_beams", 1, *TEXTS)
        assert run("--sample", "--temperature", 1e-6, *TEXTS) == greedy != sampled

    def test_the_model_has_the_requested_dtype(self, run, monkeypatch):
        models = []
        monkeypatch.setattr(command, "translate_single_pass", lambda _, model, *__: models.append(model))
        for dtype in ("auto", "float32", "bfloat16", "int8"):
            assert run("--dtype", dtype, "the boy") == (0, [], [])
        float32, bfloat16 = torch.float32, torch.bfloat16
        assert [model.dtype for model in models] == [float32, float32, bfloat16, float32]
        assert [getattr(model, "is_quantized", False) for model in models] == [False, False, False, True]


class TestEngine:
    pytestmark = needs("ctranslate2")

    def test_resume_requires_the_same_engine(self, run, interrupted, tmp_path):
        status, _, errors = run(*interrupted, "--engine", "ctranslate2", "--engine_folder", tmp_path / "engines")
        assert (status, "(engine was None, now ctranslate2-int8-" in errors[-1]) == (2, True)

    @pytest.fixture
    def warnings(self, monkeypatch):
        """The warnings of the engine."""
        messages = []
        monkeypatch.setattr(ctranslate2_engine.logger, "warning_once", lambda text, *args: messages.append(text % args))
        return messages

    @pytest.mark.parametrize("engine_folder", [None, "new/exports"])
    def test_export_is_cached(self, run, folder, tmp_path, translator, tokenizer, warnings, monkeypatch, engine_folder):
        expected = lines_of(translate(TEXTS, translator, tokenizer, num_beams=1))
        cache = folder / "engines" if engine_folder is None else tmp_path / engine_folder
        options = ["--engine", "ctranslate2", "--engine_dtype", "float32", "--num_beams", 1]
        options += [] if engine_folder is None else ["--engine_folder", cache]
        assert run("--model", folder, *options, *TEXTS) == (0, expected, [])
        [_] = cache.glob("ctranslate2-float32-*")
        monkeypatch.setattr("modeling_random_transformer.extras.export.cache.export_model", None)  # not called again
        assert run("--model", folder, *options, *TEXTS) == (0, expected, [])
        assert (folder / "engines").exists() == (engine_folder is None)
        assert not warnings

    def test_requests_that_the_model_computes(self, run, folder, warnings):
        sampling = ["--model", folder, "--engine", "ctranslate2", "--sample", "--seed", 1, *TEXTS]
        status, lines, _ = run(*sampling)
        assert (status, len(lines)) == (0, len(TEXTS))
        assert run(*sampling)[1] == lines
        reason = "the generation mode 'sample' was requested"
        assert set(warnings) == {f"generate() runs the model, not CTranslate2: {reason}."}


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--max_tokens_per_batch two", "argument --max_tokens_per_batch: must be a positive integer, got 'two'"),
            ("--temperature 0 --sample", "--temperature must be a positive number, given with --sample, got 0.0"),
            ("--seed 1", "--seed must be given with --sample or --mbr, got 1."),
            ("--seed -1 --sample", "argument --seed: must be an integer from 0 to 4294967295, got '-1'."),
            ("--length_penalty nan", "argument --length_penalty: must be a finite number, got 'nan'."),
            ("--temperature 2", "--temperature must be a positive number, given with --sample, got 2.0."),
            ("--format html --n_best 2", "--format must be text with --n_best, --prefix_file or --output_format, got"),
            ("--n_best 5", "n_best must be at most num_beams=4, got 5."),
            ("--format html --split_sentences", "--format must be text with --split_sentences, --repair, --confidence"),
            ("--num_beams 1 --length_penalty 3", "length_penalty must be None without beam search, got 3.0."),
            ("--sample --length_penalty 3", "length_penalty must be None without beam search, got 3.0."),
            ("--prefix_file -", "one argument at most must be - (standard input), got input and prefix_file."),
            ("--glossary -", "one argument at most must be - (standard input), got input and glossary."),
            ("--restart", "--restart must be given with a file as input and output, got - and -."),
            (
                "--restart --output out.txt",
                "--restart must be given with a file as input and output, got - and out",
            ),
            ("--input FOLDER", "argument --input: must be a file that exists, got 'FOLDER'."),
            ("--input pairs.tsv", "argument --input: must be a file that exists"),
            ("--input TABLE", "--input must be a file with one text per line, not .tsv, .csv, .jsonl, .json, .parquet"),
            (
                "--prefix_file TABLE a",
                "--prefix_file must be a file with one text per line, not .tsv, .csv, .jsonl, .json",
            ),
            ("--input INPUT a", "sentences and --input must not be given together, got ['a'], INPUT."),
            ("--input INPUT --output INPUT", "--output must differ from input, got 'INPUT' for both."),
            ("--output missing/out", "--output must be a file, new or not, in a folder that exists, got 'missing/out'"),
            ("--model missing a", "--model must contain a model and its tokenizer, got missing:"),
            ("--dtype float8", "argument --dtype: invalid choice: 'float8' (choose from"),
            ("--beams=2", "arguments must be among those of --help, got --beams."),
            ("--device nonsense a", "device must be an available device, got nonsense:"),
            (f"boy {os.fsdecode(bytes([255]))}", "index 1: texts must be Unicode, got"),
        ],
        ids=lambda value: ascii(value) if value.startswith(("-", "boy")) else "",
    )
    def test_invalid_arguments_are_one_line_errors(self, run, translator_folder, tmp_path, arguments, message):
        (tmp_path / "a.jsonl.gz").write_text("a")
        names = {"FOLDER": str(translator_folder), "TABLE": str(tmp_path / "a.jsonl.gz")}
        names["INPUT"] = str(translator_folder / "model.safetensors")
        for name, path in names.items():
            arguments, message = arguments.replace(name, path), message.replace(name, path)
        status, output, errors = run(*arguments.split(" "))
        assert (status, output, len(errors)) == (2, [], 1)
        assert errors[0].startswith(f"random-transformer translate: error: {message}")

    @pytest.mark.parametrize("name", ["a.xliff", "a.po", "a.SRT", "a.docx", "a.html", "a.html.gz"])
    @pytest.mark.parametrize("flags", [["--input"], ["--output", "out", "--input"], ["--prefix_file"]], ids=str)
    def test_documents_are_no_texts(self, run, tmp_path, monkeypatch, name, flags):
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_text("<p>the boy</p>\n")
        status, output, errors = run(*flags, name)
        assert (status, output, len(errors)) == (2, [], 1)
        document = ", or a document with --format html, srt, po, xliff" if flags[-1] == "--input" else ""
        message = f"{flags[-1]} must be a file with one text per line{document}, got {name!r}: extract the texts of"
        assert message in errors[0]
        if "html" not in name:
            assert run("--format", "html", "--input", name)[0] == 2

    @pytest.mark.parametrize("start", ["<?xml version='1.0'?>", "<!DOCTYPE html>", " <HTML lang='en'>", "WEBVTT"])
    @pytest.mark.parametrize("flags", [[], ["--input", "in.txt"], ["--input", "in.txt", "--output", "out.txt"]])
    def test_documents_of_another_name_are_no_texts(self, run, tmp_path, monkeypatch, start, flags):
        monkeypatch.chdir(tmp_path)
        content = f"{start}\nthe boy\n"
        (tmp_path / "in.txt").write_text(content)
        monkeypatch.setattr(sys, "stdin", stdin(content.encode()))
        status, output, errors = run(*flags)
        assert (status, output, len(errors)) == (2, [], 1)
        assert "must be one text per line, or HTML with --format html, got a document that begins with" in errors[0]
        assert {path.name for path in tmp_path.iterdir()} == {"in.txt"}

    def test_invalid_utf8_is_an_error_after_the_chunks_before_it(self, run, monkeypatch):
        monkeypatch.setattr(sys, "stdin", stdin(b"the boy\n" * 3 + b"the \xff boy\n"))
        status, output, errors = run("--chunk_size", 3)
        assert (status, len(output)) == (2, 3), "the chunk before is translated"
        assert "stdin must be UTF-8 text, but line 4 is not:" in errors[0]

    def test_resume_requires_the_same_options(self, run, interrupted):
        status, _, errors = run(*interrupted, "--num_beams", 2)
        assert status == 2
        assert (
            "out.txt.parts must contain an earlier attempt with the same inputs and options, got one with other values "
            "(num_beams was 4, now 2)" in errors[0]
        )
        assert run(*interrupted, "--num_beams", 2, "--restart") == (0, [], [])

    def test_several_processes_require_files(self, run, monkeypatch):
        state = SimpleNamespace(num_processes=2, destroy_process_group=lambda: None)
        monkeypatch.setattr(command_line, "initialize_process", lambda _: state)
        status, _, errors = run("the boy")
        assert (status, len(errors)) == (2, 1)
        assert "the input and --output must be files with 2 processes." in errors[0]


class TestDamagedFolders:
    @pytest.mark.parametrize(
        ("name", "field", "value", "reason"),
        [
            ("config.json", None, None, ""),
            ("config.json", "model_type", "x", "model_type must be an architecture of transformers, got 'x'"),
            ("config.json", "dropout", "x", "dropout must be a rate of at least 0 and below 1, got 'x'"),
            ("config.json", "vocab_size", 7, ""),
            ("config.json", "decoder_layers", 1, ""),
            ("generation_config.json", "suppress_tokens", 7, ""),
            ("tokenizer_config.json", "add_prefix_space", 1.5, "add_prefix_space must be True or False, got 1.5"),
            ("tokenizer_config.json", "model_max_length", "9", "model_max_length must be a positive integer, got '9'"),
            ("tokenizer_config.json", "model_max_length", -1, "model_max_length must be a positive integer, got -1"),
            ("tokenizer.json", "model", 7, ""),
            ("model.safetensors", None, None, ""),
        ],
    )
    def test_error_names_the_damaged_file(self, run, folder, name, field, value, reason):
        file = folder / name
        file.write_text("{" if field is None else json.dumps({**json.loads(file.read_bytes()), field: value}))
        status, lines, errors = run("--model", folder, "the boy")
        assert (status, lines, len(errors)) == (2, [], 1)
        assert f"--model must contain a model and its tokenizer, got {folder}:" in errors[0]
        assert name in errors[0]
        assert reason in errors[0]
        assert "trust" not in errors[0]

    def test_a_tokenizer_of_another_vocabulary(self, run, folder):
        RandomTransformerTokenizer.train(["a"] * 9, vocab_size=1000).save_pretrained(folder)
        RandomTransformerForConditionalGeneration(tiny_config(vocab_size=1000)).save_pretrained(folder)
        status, lines, errors = run("--model", folder, "the boy")
        assert (status, lines) == (2, [])
        assert "tokenizer must match the model's vocab_size=1000, got " in errors[-1]


@pytest.mark.parametrize(
    ("stdout", "status", "error"),
    [
        ("closed", 0, b""),
        ("/dev/full", 2, b"random-transformer translate: error: stdout: No space left on device.\n"),
    ],
)
def test_stdout_that_cannot_be_written(translator_folder, tmp_path, stdout, status, error):
    """A reader that has exited, such as `head`, is no error. The end of the process writes the buffer again."""
    if stdout == "closed":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open(stdout, os.O_WRONLY)
    child = os.fork()
    if child == 0:
        exit_status = 99
        try:
            os.dup2(write, 1)
            sys.stdout, sys.stderr = open(1, "w"), open(tmp_path / "stderr", "w")  # noqa: SIM115
            exit_status = cli.main(["translate", "--model", str(translator_folder), "--device", "cpu", "the boy"])
            sys.stdout.close()
            sys.stderr.close()
        finally:
            os._exit(exit_status)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
    assert (tmp_path / "stderr").read_bytes() == error


@pytest.mark.slow
def test_two_processes_continue_the_parts_of_one(run, translator, tokenizer, translator_folder, tmp_path, monkeypatch):
    texts = some_texts(20, seed=7)
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    flags = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--num_beams", 1, "--chunk_size", 3]
    with monkeypatch.context() as patch:
        interrupt_at(3, translation_files, "candidate_lines", patch)
        assert run(*flags)[0] == 130
    assert len(list((tmp_path / "out.txt.parts").glob("*.txt"))) == 2
    done = run_on_two_processes("modeling_random_transformer", "translate", "--model", translator_folder, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = translate(texts, translator, tokenizer, num_beams=1)
    assert (tmp_path / "out.txt").read_bytes() == b"".join(encode_lines(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]

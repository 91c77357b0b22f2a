"""The export of a saved model: comparison, limits, languages and options."""

import os
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from modeling_random_transformer import cli
from modeling_random_transformer.data.sources import ParallelText
from modeling_random_transformer.extras.export import load_engine, saved
from modeling_random_transformer.inference import translate
from tests.helpers.command_line import exit_status
from tests.helpers.engines import TEXTS, exportable, needs
from tests.helpers.translation import multilingual_translator

(NEEDS_CTRANSLATE2,) = needs("ctranslate2")


@pytest.fixture(autouse=True)
def _short_comparisons(monkeypatch):
    """Compare the first tokens once. Translations of a random model do not end."""
    monkeypatch.setattr(saved, "compare", partial(saved.compare, max_new_tokens=16, rounds=1))


@pytest.fixture
def folder(tmp_path):
    """A saved model and its tokenizer."""
    model, tokenizer = exportable(encoder_layers=1, decoder_layers=1)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


ENGINES = [
    pytest.param("ctranslate2", "float32", marks=NEEDS_CTRANSLATE2),
    pytest.param("ctranslate2", "int8", marks=NEEDS_CTRANSLATE2),
    pytest.param("onnx", "float32", marks=[*needs("onnx"), pytest.mark.long]),
    ("transformers", "float32"),
]


@pytest.mark.parametrize(("engine", "dtype"), ENGINES)
def test_export_and_check(engine, dtype, folder, tmp_path, capsys, monkeypatch):
    assert saved.MAX_SENTENCES == 200
    monkeypatch.setattr(saved, "MAX_SENTENCES", 10)
    monkeypatch.setattr(saved, "LEAST_IDENTICAL", {"float32": 1, "bfloat16": 0, "int8": 0})  # random weights
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(bytes(10**7))
    sentences = tmp_path / "sentences"
    sentences.write_text("\n".join(["", *TEXTS]))
    output = tmp_path / "out"
    options = ["--engine", engine, "--dtype", dtype, "--output", str(output), "--check", str(sentences)]
    assert cli.main(["export", str(folder), *options]) == 0
    size, *beams = capsys.readouterr().out.splitlines()
    assert size.startswith(f"{output}: {engine}, {dtype}, ")
    assert size.endswith(f"; the model's weights {(folder / 'model.safetensors').stat().st_size / 1e6:.1f} MB")
    assert [line.split(":")[0] for line in beams] == ["1 beam", "4 beams"]
    assert all(" of 9 translations identical" in line for line in beams)  # ten lines, of which one is blank
    if dtype == "float32":
        assert all("9 of 9" in line for line in beams)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "sentences"]
    assert output.stat().st_mode == folder.stat().st_mode
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer("the boy")["input_ids"] == exportable()[1]("the boy")["input_ids"]
    assert cli.main(["export", str(folder), *options]) == 2
    assert "output must be a new or an empty folder without overwrite" in capsys.readouterr().err
    assert cli.main(["export", str(folder), *options, "--overwrite"]) == 0


@NEEDS_CTRANSLATE2
@pytest.mark.parametrize(("kind", "limit"), [("learned", 64), ("sinusoidal", 1024)])
def test_limits_on_lengths(kind, limit, folder, tmp_path, capsys):
    """Translations of model and engine are limited; longer sentences are an error before anything is written.

    The model computes sinusoids for any length, the engine has a table.
    """
    exportable(position_embedding=kind, lm_head_bias=False)[0].save_pretrained(folder)
    capsys.readouterr()  # the progress bar of saving
    sentences = tmp_path / "sentences"
    sentences.write_text("the boy\n" + "z" * limit + "\n")
    options = ["--engine", "ctranslate2", "--output", tmp_path / "out", "--check", sentences]
    message = error_of([folder, *options], capsys)
    assert message.endswith(
        f"sentences must have at most {limit} tokens for ctranslate2, but sentence 2 has {limit + 1}."
    )
    assert not (tmp_path / "out").exists()
    sentences.write_text("z" * (limit - 3) + "</s>\n")  # four tokens of plain text, not the end token
    assert "but sentence 1 has" in error_of([folder, *options], capsys)
    if kind == "learned":
        sentences.write_text("the boy\n")
        assert cli.main(["export", *map(str, (folder, *options))]) == 0
        assert "1 of 1 translations identical" in capsys.readouterr().out


@NEEDS_CTRANSLATE2
def test_one_direction_of_a_model_of_several_languages(tmp_path, capsys):
    model, tokenizer = multilingual_translator()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = [tmp_path / "model", "--engine", "ctranslate2", "--source_lang", "en", "--output"]
    translations = []
    for code in ("es", "fr"):
        assert cli.main(["export", *map(str, (*options, tmp_path / code, "--target_lang", code))]) == 0
        assert capsys.readouterr().out.count("8 of 8 translations identical") == 2
        translations.append(load_engine(tmp_path / code)(TEXTS, 1, 9))
        languages = {"src_lang": "en", "tgt_lang": code}
        assert translations[-1] == translate(TEXTS, model, tokenizer, num_beams=1, max_new_tokens=9, **languages)
    assert translations[0] != translations[1]
    assert "tgt_lang must be one of en, es, fr, got None." in error_of([*options, tmp_path / "out"], capsys)
    assert not (tmp_path / "out").exists()


def error_of(arguments, capsys):
    """The one line on stderr for invalid arguments."""
    assert exit_status(cli.main, ["export", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "onnx", "--check", "BLANK"], "check must be a file with text in its first 200 lines"),
        (["--engine", "ctranslate2", "--web"], "engine must be onnx with web, got ctranslate2."),
        (["--engine", "onnx", "--npm_cache", "x"], "npm_cache must be given with web only, got x."),
        (["--engine", "onnx", "--sentence_splitter", "BLANK"], "sentence_splitter must be None for onnx"),
        (
            ["--engine", "onnx", "--shortlist_source", "BLANK", "--shortlist_target", "BLANK"],
            "shortlist must be None for onnx, which has no such option.",
        ),
    ],
)
def test_invalid_options(options, message, folder, tmp_path, capsys):
    (folder / "blank").write_text("\n\n")
    options = [folder / "blank" if option == "BLANK" else option for option in options]
    assert message in error_of([folder, *options, "--output", tmp_path / "out"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_output_with_files_is_an_error_before_the_model_is_loaded(folder, capsys, monkeypatch):
    """A shortlist of a large corpus takes long."""
    monkeypatch.setattr(saved, "load_translator", None)
    message = error_of([folder, "--engine", "transformers", "--output", folder], capsys)
    assert "output must be a new or an empty folder without overwrite" in message


@NEEDS_CTRANSLATE2
def test_texts_of_a_shortlist_in_another_encoding_are_an_error(folder, tmp_path, capsys):
    files = []
    for name in ("source", "target"):
        files += [f"--shortlist_{name}", tmp_path / name]
        (tmp_path / name).write_bytes("el niño\nun gato\n".encode("latin-1"))
    message = error_of([folder, "--engine", "ctranslate2", "--output", tmp_path / "out", *files], capsys)
    assert "texts must be UTF-8, got" in message
    assert not (tmp_path / "out").exists()


def test_texts_of_a_shortlist_may_be_pipes(tmp_path):
    _, tokenizer = exportable()
    files = []
    pipes = []
    for name in ("source", "target"):
        files.append(tmp_path / name)
        files[-1].write_text("\n".join(TEXTS))
        read, write = os.pipe()  # which cannot be read twice
        os.write(write, files[-1].read_bytes())
        os.close(write)
        pipes.append(Path(f"/dev/fd/{read}"))
    assert saved.shortlist_of(ParallelText(*pipes), tokenizer) == saved.shortlist_of(ParallelText(*files), tokenizer)
    for pipe in pipes:
        os.close(int(pipe.name))


def test_an_export_is_not_exported(folder, tmp_path, capsys):
    (folder / "model.safetensors").rename(folder / "model.bin")
    message = error_of([folder, "--engine", "transformers", "--output", tmp_path / "out"], capsys)
    assert "the folder must be that of the model, not of its export, got one with model.bin" in message


def test_adapters_are_not_exported(folder, tmp_path, capsys):
    (folder / "config.json").rename(folder / "adapter_config.json")
    message = error_of([folder, "--engine", "ctranslate2", "--output", tmp_path / "out"], capsys)
    assert "It contains an adapter: merge it first" in message
    assert not (tmp_path / "out").exists()

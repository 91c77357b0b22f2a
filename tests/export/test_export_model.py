"""The command `export`."""

import json

import pytest
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from modeling_random_transformer import RandomTransformerModel
from modeling_random_transformer.commands import export as command
from modeling_random_transformer.export import Comparison, load_engine
from modeling_random_transformer.inference import translate
from tests.helpers.engines import TEXTS, exportable, needs
from tests.helpers.translation import multilingual_translator


@pytest.fixture
def folder(tmp_path):
    """A saved model and its tokenizer."""
    model, tokenizer = exportable(encoder_layers=1, decoder_layers=1)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


ENGINES = [
    pytest.param("ctranslate2", "float32", marks=needs("ctranslate2")),
    pytest.param("ctranslate2", "bfloat16", marks=needs("ctranslate2")),
    pytest.param("ctranslate2", "int8", marks=needs("ctranslate2")),
    pytest.param("onnx", "float32", marks=[*needs("onnx"), pytest.mark.long]),
]


@pytest.mark.parametrize(("engine", "dtype"), ENGINES)
def test_export_and_check(engine, dtype, folder, tmp_path, capsys, monkeypatch):
    assert command.MAX_SENTENCES == 200
    monkeypatch.setattr(command, "MAX_SENTENCES", 10)
    monkeypatch.setattr(command, "LEAST_IDENTICAL", {"float32": 1, "bfloat16": 0, "int8": 0})  # random weights
    sentences = tmp_path / "sentences"
    sentences.write_text("\n".join(["", *TEXTS]))
    output = tmp_path / "out"
    options = ["--engine", engine, "--dtype", dtype, "--output", str(output), "--check", str(sentences)]
    assert command.main([str(folder), *options]) == 0
    size, *beams = capsys.readouterr().out.splitlines()
    assert size.startswith(f"{output}: {engine}, {dtype}, ")
    assert [line.split(":")[0] for line in beams] == ["1 beam", "4 beams"]
    assert all(" of 9 translations identical" in line for line in beams)  # ten lines, of which one is blank
    if dtype == "float32":
        assert all("9 of 9" in line for line in beams)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "sentences"]
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer("the boy")["input_ids"] == exportable()[1]("the boy")["input_ids"]


@pytest.mark.parametrize(
    ("dtype", "wrong", "status"),
    [("float32", 0, 0), ("float32", 1, 1), ("bfloat16", 4, 0), ("bfloat16", 5, 1), ("int8", 4, 0), ("int8", 5, 1)],
)
def test_status_depends_on_the_comparison(dtype, wrong, status, folder, tmp_path, capsys, monkeypatch):
    found = [Comparison(1, 8, 8, 1.0, 1.0), Comparison(4, 8, 8 - wrong, 1.0, 1.0)]
    monkeypatch.setattr(command, "export_model", lambda *args, **_: args[2].mkdir())
    monkeypatch.setattr(command, "load_engine", lambda *_: None)
    monkeypatch.setattr(command, "compare", lambda *_: found)
    options = ["--engine", "ctranslate2", "--dtype", dtype, "--output", str(tmp_path / "out")]
    assert command.main([str(folder), *options]) == status
    captured = capsys.readouterr()
    assert f"{8 - wrong} of 8 translations identical" in captured.out
    least, share = ("99%", "87.5%") if dtype == "float32" else ("50%", "37.5%")
    complaint = f"at least {least} of the translations must be identical in {dtype}, got {share}."
    assert (complaint in captured.err) == (status == 1)
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", [pytest.param("ctranslate2", marks=needs("ctranslate2"))])
def test_checkpoints_are_not_weights_of_the_model(engine, folder, tmp_path, capsys, monkeypatch):
    """The output is the current folder, which is empty."""
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(bytes(10**7))
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    assert command.main([str(folder), "--engine", engine, "--output", "."]) == 0
    size = (folder / "model.safetensors").stat().st_size / 1e6
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(f"; the model's weights {size:.1f} MB")
    assert "8 of 8 translations identical" in shown  # of the built-in sentences
    assert (tmp_path / "out" / "model.bin").is_file()


@pytest.mark.parametrize("engine", [pytest.param("ctranslate2", marks=needs("ctranslate2"))])
def test_limit_of_learned_positions(engine, folder, tmp_path, capsys):
    """Translations of model and engine are limited; longer sentences are an error before anything is written."""
    exportable(position_embedding="learned", lm_head_bias=False)[0].save_pretrained(folder)
    sentences = tmp_path / "sentences"
    sentences.write_text("the boy\n")
    options = ["--engine", engine, "--output", tmp_path / "out", "--check", sentences]
    assert command.main([str(argument) for argument in (folder, *options)]) == 0
    assert "1 of 1 translations identical" in capsys.readouterr().out
    sentences.write_text("the boy\n" + "z" * 64 + "\n")
    options[3] = tmp_path / "another"
    message = error_of([folder, *options], capsys)
    assert message.endswith(f"sentences must have at most 64 tokens for {engine}, but sentence 2 has 65.")
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("engine", [pytest.param("ctranslate2", marks=needs("ctranslate2"))])
def test_limit_of_the_engine(engine, folder, tmp_path, capsys):
    """The model computes sinusoids for any length, the engine has a table."""
    (tmp_path / "sentences").write_text("the boy\n" + "z" * 1024 + "\n")
    options = ["--engine", engine, "--output", tmp_path / "out", "--check", tmp_path / "sentences"]
    message = error_of([folder, *options], capsys)
    assert "sentences must have at most 1024 tokens for ctranslate2, but sentence 2 has 1025" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", [pytest.param("ctranslate2", marks=needs("ctranslate2"))])
def test_one_direction_of_a_model_of_several_languages(engine, tmp_path, capsys):
    model, tokenizer = multilingual_translator()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    translations = []
    for code in ("es", "fr"):
        options = ["--engine", engine, "--output", tmp_path / code, "--source_lang", "en", "--target_lang", code]
        assert command.main([str(argument) for argument in (tmp_path / "model", *options)]) == 0
        assert capsys.readouterr().out.count("8 of 8 translations identical") == 2
        translations.append(load_engine(tmp_path / code, engine)(TEXTS, 1, 9))
        assert translations[-1] == translate(
            TEXTS, model, tokenizer, num_beams=1, max_new_tokens=9, src_lang="en", tgt_lang=code
        )
    assert translations[0] != translations[1]
    options = ["--engine", engine, "--output", tmp_path / "out", "--source_lang", "en"]
    assert "tgt_lang must be one of en, es, fr, got None." in error_of([tmp_path / "model", *options], capsys)
    assert not (tmp_path / "out").exists()


def error_of(arguments, capsys):
    """The one line on stderr for invalid arguments."""
    try:
        status = command.main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "tensorrt"], "argument --engine: invalid choice: 'tensorrt'"),
        (["--engine", "onnx", "--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
        (["--engine", "onnx", "--dtype", "bfloat16"], "dtype must be one of 'float32', 'int8' for onnx"),
        ([], "the following arguments are required: --engine"),
        (["--engine", "onnx", "--check", "nowhere"], "--check: must be a file that exists, got 'nowhere'"),
    ],
)
def test_invalid_options(options, message, folder, tmp_path, capsys):
    assert message in error_of([folder, *options, "--output", tmp_path / "out"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_unsupported_models(tmp_path, capsys):
    options = ["--engine", "ctranslate2", "--output", tmp_path / "out"]
    small = T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(small).save_pretrained(tmp_path / "t5")
    exportable()[1].save_pretrained(tmp_path / "t5")
    capsys.readouterr()  # progress bar of saving
    message = error_of([tmp_path / "t5", *options], capsys)
    assert "must contain a model of type 'random_transformer'" in message
    assert message.endswith("of type 't5'.")
    assert "without config.json" in error_of([tmp_path, *options], capsys)
    (tmp_path / "t5" / "config.json").write_text("{")
    assert "config.json must be a JSON file, but it is missing or damaged" in error_of(
        [tmp_path / "t5", *options], capsys
    )
    (tmp_path / "t5" / "config.json").rename(tmp_path / "t5" / "adapter_config.json")
    assert "with an adapter: merge it first" in error_of([tmp_path / "t5", *options], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_folder_without_output_layer(tied, folder, tmp_path, capsys):
    """A missing output layer is an error instead of a random one."""
    options = ["--engine", "ctranslate2", "--output", tmp_path / "out"]
    (folder / "model.safetensors").write_bytes(b"nothing")
    assert "FOLDER must contain a model and its tokenizer, got" in error_of([folder, *options], capsys)
    model, _ = exportable(tie_word_embeddings=tied)
    RandomTransformerModel(model.config).save_pretrained(folder)
    capsys.readouterr()
    missing = "lm_head.bias" if tied else "lm_head.bias, lm_head.weight"
    assert f"got none for {missing}." in error_of([folder, *options], capsys)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["RandomTransformerModel"]
    assert not (tmp_path / "out").exists()


def test_existing_output_is_not_overwritten(folder, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "existing").write_text("kept")
    message = error_of([folder, "--engine", "ctranslate2", "--output", tmp_path / "out"], capsys)
    assert "output must be a new or an empty folder, got" in message
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["existing"]


def test_blank_file_to_check(folder, tmp_path, capsys):
    (tmp_path / "blank").write_text("\n\n")
    options = ["--engine", "ctranslate2", "--output", tmp_path / "out", "--check", tmp_path / "blank"]
    assert "--check must name a file with text in its first 200 lines" in error_of([folder, *options], capsys)
    assert not (tmp_path / "out").exists()

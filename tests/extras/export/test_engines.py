"""Behavior that all engines share: validation, and the comparison with the model."""

import sys

import pytest
from peft import LoraConfig, inject_adapter_in_model
from torchao.quantization import Int8WeightOnlyConfig
from transformers import TorchAoConfig

from modeling_random_transformer import RandomTransformerModel
from modeling_random_transformer.extras.export import compare, export_model, load_engine
from modeling_random_transformer.extras.export.engines import translate_fn
from modeling_random_transformer.extras.new_folder import check_free
from modeling_random_transformer.inference import translate
from tests.helpers.engines import LIMIT, PACKAGES, TEXTS, exportable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tensorrt"}, "engine must be one of ctranslate2, argos, onnx, transformers, got 'tensorrt'"),
        ({"dtype": "int4"}, "dtype must be one of float32, bfloat16, int8, got 'int4'"),
        ({"engine": "onnx", "dtype": "bfloat16"}, "dtype must be one of float32, int8, got 'bfloat16'"),
    ],
)
def test_unknown_engine_or_dtype(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(*exportable(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_models_that_are_not_exported(tmp_path):
    model, tokenizer = exportable()
    model.save_pretrained(tmp_path / "model")
    int8 = TorchAoConfig(Int8WeightOnlyConfig())
    quantized = type(model).from_pretrained(tmp_path / "model", quantization_config=int8)
    adapted = type(model).from_pretrained(tmp_path / "model")
    inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), adapted)
    for unsupported, message in (
        (
            RandomTransformerModel(model.config),
            r"model must be a RandomTransformerForConditionalGeneration, got a \w+Model",
        ),
        (quantized, "model must not be quantized, got a model quantized by torchao"),
        (adapted, "model must not have an adapter: merge it first"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(unsupported, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("engine", "package"), [(engine, name) for engine in PACKAGES for name in PACKAGES[engine]])
def test_engine_that_is_not_installed(engine, package, tmp_path, monkeypatch):
    for module in (engine, f"{engine}_model"):  # the modules that import the package
        monkeypatch.delitem(sys.modules, f"modeling_random_transformer.extras.export.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    for call in (
        lambda: export_model(*exportable(), tmp_path / "out", engine=engine),
        lambda: load_engine(tmp_path, engine),
    ):
        with pytest.raises(ValueError, match=rf"install 'random-transformer\[{engine}\]': .*{package}"):
            call()
    assert not list(tmp_path.iterdir())


def test_invalid_output_folder(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "full/file", "link"):
        with pytest.raises(ValueError, match=f"output must be a new or an empty folder.*, got '.*{name}'"):
            check_free(tmp_path / name)
    with pytest.raises(ValueError, match=r"output must be in a folder that exists, got '.*nowhere/out'"):
        check_free(tmp_path / "nowhere" / "out")


def test_compare_counts_identical_translations():
    model, tokenizer = exportable()
    expected, calls = translate_fn(model, tokenizer), []

    def engine(texts, num_beams, max_new_tokens):
        calls.append((texts, num_beams, max_new_tokens))
        return [*expected(texts, num_beams, max_new_tokens)[:-1], "something else"]

    texts = ["the boy reads", "  ", "we want to buy", "the old house"]
    results = compare(model, tokenizer, engine, texts, beams=(1, 2), max_new_tokens=7, rounds=2)
    assert [(r.num_beams, r.sentences, r.identical) for r in results] == [(1, 3, 2), (2, 3, 2)]
    assert all(r.model_speed > 0 and r.engine_speed > 0 for r in results)
    non_blank = [text for text in texts if text.strip()]
    assert calls == [(non_blank, beams, 7) for beams in (1, 2) for _ in range(1 + 2)]


@pytest.mark.parametrize("engine", ["ctranslate2", pytest.param("onnx", marks=pytest.mark.long), "transformers"])
def test_beam_search_has_the_length_penalty_of_the_model(engine, tmp_path):
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    model, tokenizer = exportable()
    translations = []
    model.generation_config.num_beams = 4  # otherwise a length penalty is not saved
    for penalty in (-2.0, 3.0):
        model.generation_config.length_penalty = penalty
        folder = tmp_path / str(penalty)
        export_model(model, tokenizer, folder, engine=engine)
        translations.append(load_engine(folder, engine)(TEXTS, 4, LIMIT))
        search = {"max_new_tokens": LIMIT, "early_stopping": True, "progress": False}
        assert translations[-1] == translate(TEXTS, model, tokenizer, **search)
    assert translations[0] != translations[1]


def test_compare_requires_text():
    with pytest.raises(ValueError, match="sentences must include a text that is not blank, got 2 blank ones"):
        compare(*exportable(), lambda *_: [], ["", " "])


def test_blank_texts_of_generate_have_blank_translations():
    translate_texts = translate_fn(*exportable())
    [translation] = translate_texts([TEXTS[0]], 1, LIMIT)
    assert translate_texts(["", TEXTS[0], " \u200b", "42"], 1, LIMIT) == ["", translation, "", "42"]
    assert translate_texts([" "], 1, LIMIT) == [""]
    with pytest.raises(ValueError, match="index 1: texts must be strings, got None"):
        translate_texts(["", None], 1, LIMIT)

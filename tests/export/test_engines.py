"""Behavior that all engines share: validation, atomic output, and the comparison with the model."""

import sys

import pytest
from torchao.quantization import Int8WeightOnlyConfig
from transformers import TorchAoConfig

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel
from modeling_random_transformer.export import Comparison, compare, export_model, folder_size, load_engine
from modeling_random_transformer.export import engines as engines_module
from modeling_random_transformer.export.engines import translate_fn
from modeling_random_transformer.utils.atomic_files import check_free
from tests.helpers.engines import PACKAGES, exportable


class FakeEngine:
    """Stub for an engine's module."""

    def __init__(self, fails=False):
        self.fails = fails

    def save(self, _model, _tokenizer, folder, _dtype):
        (folder / "weights").write_bytes(b"12345")
        if self.fails:
            raise ValueError("no such weights")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tensorrt"}, "engine must be one of 'ctranslate2', 'onnx', got 'tensorrt'"),
        ({"dtype": "int4"}, "dtype must be one of 'float32', 'bfloat16', 'int8' for ctranslate2, got 'int4'"),
        ({"engine": "onnx", "dtype": "bfloat16"}, "dtype must be one of 'float32', 'int8' for onnx, got 'bfloat16'"),
    ],
)
def test_unknown_engine_or_dtype(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(*exportable(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_model_without_output_layer_is_not_exported(tmp_path):
    model, tokenizer = exportable()
    with pytest.raises(ValueError, match=r"must be a RandomTransformerForConditionalGeneration, got a \w+Model"):
        export_model(RandomTransformerModel(model.config), tokenizer, tmp_path / "out")


def test_quantized_model_is_not_exported(tmp_path):
    model, tokenizer = exportable()
    model.save_pretrained(tmp_path / "model")
    int8 = TorchAoConfig(Int8WeightOnlyConfig())
    model = RandomTransformerForConditionalGeneration.from_pretrained(tmp_path / "model", quantization_config=int8)
    with pytest.raises(ValueError, match="model must not be quantized, got a model quantized by torchao"):
        export_model(model, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("engine", "package"), [(engine, name) for engine in PACKAGES for name in PACKAGES[engine]])
def test_engine_that_is_not_installed(engine, package, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, f"modeling_random_transformer.export.{engine}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    for call in (
        lambda: export_model(*exportable(), tmp_path / "out", engine=engine),
        lambda: load_engine(tmp_path, engine),
    ):
        with pytest.raises(ValueError, match=rf"install 'random-transformer\[{engine}\]'\), but .*{package}"):
            call()
    assert not list(tmp_path.iterdir())


def test_output_is_created_when_complete(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()  # an empty folder is allowed
    monkeypatch.setattr(engines_module, "engine_module", lambda _: FakeEngine())
    export_model(*exportable(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "weights").read_bytes() == b"12345"
    (tmp_path / "new").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_failure_leaves_no_output(tmp_path, monkeypatch):
    monkeypatch.setattr(engines_module, "engine_module", lambda _: FakeEngine(fails=True))
    with pytest.raises(ValueError, match="no such weights"):
        export_model(*exportable(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_invalid_output_folder(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "full/file", "link"):
        with pytest.raises(ValueError, match=f"output must be a new or an empty folder, got '.*{name}'"):
            check_free(tmp_path / name)
    with pytest.raises(ValueError, match=r"output must be in a folder that exists, got '.*nowhere/out'"):
        check_free(tmp_path / "nowhere" / "out")


def test_folder_size(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(bytes(2_500_000))
    (tmp_path / "b.json").write_bytes(bytes(500_000))
    assert folder_size(tmp_path) == 3.0
    assert folder_size(tmp_path, "**/*.bin") == 2.5
    assert folder_size(tmp_path, "*.bin") == 0


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


def test_compare_requires_text():
    with pytest.raises(ValueError, match="sentences must include a text that is not blank, got 2 blank ones"):
        compare(*exportable(), lambda *_: [], ["", " "])


def test_comparison_as_string():
    assert str(Comparison(4, 8, 7, 20.04, 41.26)) == (
        "4 beams: 7 of 8 translations identical (87.5%); 41.3 sentences/s, the model 20.0"
    )

"""onnxruntime returns the model's logits and, under `generate()`, its translations."""

import re
from pathlib import Path
from shutil import copytree

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

from modeling_random_transformer.extras.export import export_model, load_engine
from modeling_random_transformer.inference import translate
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoderLayer
from tests.helpers.engines import BEAMS, LIMIT, TEXTS, needs, own_translations
from tests.helpers.models import random_ids
from tests.helpers.translation import multilingual_translator

# Exporting takes about ten seconds of CPU time.
pytestmark = [*needs("onnx"), pytest.mark.slow]

GUIDE = Path(__file__).parents[3] / "docs" / "how_to" / "export.md"


def test_translations_equal_model(exported):
    model, tokenizer, _, folder = exported
    translate = load_engine(folder, "onnx")
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams)
        assert len(set(expected)) > 1, "translations must differ to be compared"
        assert translate(TEXTS, num_beams, LIMIT) == expected


def test_edited_code_is_found_by_the_comparison(exported, monkeypatch):
    from modeling_random_transformer.extras.export.onnx import check_graph_logits

    model, _, _, folder = exported
    check_graph_logits(model, folder)
    original = RandomTransformerDecoderLayer.feed_forward
    monkeypatch.setattr(RandomTransformerDecoderLayer, "feed_forward", lambda *args: -original(*args))
    with pytest.raises(ValueError, match=r"must compute what ONNX Runtime computes, .* its logits differ by"):
        check_graph_logits(model, folder)


def test_int8_logits_have_a_bounded_error(exported, tmp_path, monkeypatch):
    """The graphs in float32 are those of `exported`, since exporting takes long. Large weights have large errors."""
    from modeling_random_transformer.extras.export import onnx
    from modeling_random_transformer.extras.export.onnx_model import OnnxModel

    model, tokenizer, _, folder = exported
    monkeypatch.setattr(onnx, "export_graphs", lambda _, graphs: copytree(folder, graphs, dirs_exist_ok=True))
    export_model(model, tokenizer, tmp_path / "out", engine="onnx", dtype="int8")
    inputs = {**tokenizer(TEXTS, padding=True, return_tensors="pt"), "decoder_input_ids": random_ids(len(TEXTS), 12)}
    with torch.no_grad():
        expected = model(**inputs).logits
    error = OnnxModel.load(tmp_path / "out")(**inputs).logits - expected
    assert 0 < error.std() < 0.6 * expected.std()


def test_products_in_int8_have_a_bounded_error(tmp_path):
    """The limit is 1.25 times the largest error, 0.0136."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import QuantType

    from modeling_random_transformer.extras.export.onnx import dynamic, export_graph, quantize

    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    inputs, path = torch.randn(4, 8, 64), tmp_path / "float32.onnx"
    export_graph(layers, (inputs,), (dynamic(0, 1),), ["inputs"], ["outputs"], path)
    expected = layers(inputs).detach()
    for weight_type in (QuantType.QInt8, QuantType.QUInt8):
        quantize(path, tmp_path / "int8.onnx", weight_type)
        assert (tmp_path / "int8.onnx").stat().st_size < 0.4 * path.stat().st_size
        (actual,) = InferenceSession(tmp_path / "int8.onnx").run(None, {"inputs": inputs.numpy()})
        assert 0 < (torch.from_numpy(actual) - expected).std() < 0.017 * expected.std()


def test_each_row_of_an_int8_embedding_has_its_scale():
    from modeling_random_transformer.extras.export.onnx import Int8Embedding

    weight = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    weight[0] = 0
    ids = torch.tensor([[0, 1, 8], [5, 5, 2]])
    error = (Int8Embedding(weight)(ids) - weight[ids]).abs()
    assert (error <= weight[ids].abs().amax(-1, keepdim=True) / 250).all()


@pytest.mark.long
def test_code_of_the_guide_for_several_languages(tmp_path, monkeypatch):
    model, tokenizer = multilingual_translator(src_lang="en", tgt_lang="fr")
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr")
    (code,) = re.findall(r"^```python\n([^`]+onnx_model import.+?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"model": model, "tokenizer": tokenizer, "sentences": TEXTS[:5]}
    namespace = {**names, "export_model": export_model, "AutoTokenizer": AutoTokenizer}
    monkeypatch.chdir(tmp_path)
    exec(code, namespace)
    assert namespace["translations"] == translate(TEXTS[:5], model, tokenizer)

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
from tests.helpers.engines import BEAMS, LIMIT, TEXTS, exportable, needs, own_translations
from tests.helpers.models import assert_near, padded_batch, random_ids
from tests.helpers.translation import multilingual_translator

# Exporting takes about ten seconds of CPU time.
pytestmark = [*needs("onnx"), pytest.mark.slow]

GUIDE = Path(__file__).parents[3] / "docs" / "how_to" / "export.md"
CONFIGS = {
    "post-norm": {"norm_order": "post", "d_k": 5, "d_v": 3, "sinusoid_layout": "concatenated", "position_offset": 3},
    "pre-norm": {
        "position_embedding": "learned",
        "position_offset": 2,
        "activation_function": "gelu",
        "share_embeddings": False,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_scale": 0.7,
    },
    "no positions": {"position_embedding": "none", "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.fixture(
    scope="module", params=["post-norm", *(pytest.param(name, marks=pytest.mark.long) for name in [*CONFIGS][1:])]
)
def exported(request, tmp_path_factory):
    """A model, its tokenizer, the exported model and its folder."""
    from modeling_random_transformer.extras.export.onnx_model import OnnxModel

    options = {"encoder_layers": 1, "decoder_layers": 2, **CONFIGS[request.param]}
    model, tokenizer = exportable(seed=1, **options)
    folder = tmp_path_factory.mktemp("onnx") / "out"
    export_model(model, tokenizer, folder, engine="onnx")
    return model, tokenizer, OnnxModel.load(folder), folder


def test_translations_equal_model(exported):
    model, tokenizer, _, folder = exported
    translate = load_engine(folder, "onnx")
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams)
        assert len(set(expected)) > 1, "translations must differ to be compared"
        assert translate(TEXTS, num_beams, LIMIT) == expected


def test_generated_ids_equal_model(exported):
    model, tokenizer, engine, _ = exported
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for options in (
        {"do_sample": False},
        {"num_beams": 4, "length_penalty": 0.6, "num_return_sequences": 3},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"do_sample": True, "temperature": 0.5, "top_k": 5},
        {"decoder_input_ids": random_ids(len(TEXTS), 3)},
        {"num_beams": 3, "use_cache": False},  # the complete target is computed at each step
    ):
        ids = []
        for side in (model, engine):
            torch.manual_seed(0)
            ids.append(side.generate(**inputs, **options, max_new_tokens=LIMIT))
        assert torch.equal(*ids), options


@pytest.mark.parametrize(
    ("lengths", "beams", "parts"),
    [([7, 5, 3], 1, [4, 1, 1]), ([1], 1, [1, 1]), ([2], 3, [2]), ([30, 1], 4, [1] * 12), ([4, 4], 1, [20])],
)
def test_logits_equal_model(exported, lengths, beams, parts):
    """Several batch sizes, lengths and numbers of beams, with the target in one part or several."""
    model, _, engine, _ = exported
    source = padded_batch(lengths)
    target = random_ids(len(lengths) * beams, sum(parts), seed=1)
    encoded = engine.encoder(**source)
    cache, found = None, []
    with torch.no_grad():
        expected = model(**source, decoder_input_ids=target).logits
        for part in target.split(parts, dim=1):
            outputs = engine(None, source["attention_mask"], part, encoded, cache)
            cache = outputs.past_key_values
            found.append(outputs.logits)
    assert_near(torch.cat(found, dim=1), expected, 1e-4)


def test_fully_padded_source_yields_finite_logits(exported):
    _, _, engine, _ = exported
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    assert engine(random_ids(2, 3), mask, random_ids(2, 2)).logits.isfinite().all()


def test_edited_code_is_found_by_the_comparison(exported, monkeypatch):
    from modeling_random_transformer.extras.export.onnx import check_logits

    model, _, _, folder = exported
    check_logits(model, folder)
    original = RandomTransformerDecoderLayer.feed_forward
    monkeypatch.setattr(RandomTransformerDecoderLayer, "feed_forward", lambda *args: -original(*args))
    with pytest.raises(ValueError, match=r"must compute what ONNX Runtime computes, .* its logits differ by"):
        check_logits(model, folder)


def test_invalid_inputs(exported):
    _, _, engine, _ = exported
    with pytest.raises(ValueError, match="decoder_input_ids and one of input_ids and encoder_outputs must be given"):
        engine(random_ids(2, 3))
    with pytest.raises(ValueError, match=r"cache_implementation must be None or 'dynamic' for ONNX.* got 'static'"):
        engine.generate(random_ids(2, 3), cache_implementation="static")
    for token in (-1, 9999):
        other = torch.tensor([[5, token]])
        for name, inputs in (
            ("input_ids", (other, None, other[:, :1])),
            ("decoder_input_ids", (other[:, :1], None, other)),
        ):
            with pytest.raises(ValueError, match=f"^{name} must be in the vocabulary, 0 to .*, got ids from .*{token}"):
                engine(*inputs)


def test_maximum_length(exported):
    model, _, engine, _ = exported
    too_long = random_ids(1, model.config.max_position_embeddings + 1)
    if model.config.position_embedding == "learned":
        for arguments in ({"input_ids": too_long}, {"input_ids": too_long[:, :5], "decoder_input_ids": too_long}):
            with pytest.raises(ValueError, match="sequence length must be at most max_position_embeddings=64, got"):
                engine(**{"decoder_input_ids": too_long[:, :1], **arguments})
    else:
        with torch.no_grad():
            expected = model(too_long, decoder_input_ids=too_long).logits
        found = engine(too_long, decoder_input_ids=too_long).logits
        assert_near(found, expected, 1e-4)


def test_int8(exported, tmp_path, monkeypatch):
    """The graphs in float32 are those of `exported`, since exporting takes long. Large weights have large errors."""
    from modeling_random_transformer.extras.export import onnx
    from modeling_random_transformer.extras.export.onnx_model import OnnxModel

    model, tokenizer, _, folder = exported
    monkeypatch.setattr(onnx, "export_graphs", lambda _, graphs: copytree(folder, graphs, dirs_exist_ok=True))
    export_model(model, tokenizer, tmp_path / "out", engine="onnx", dtype="int8")
    inputs = {**tokenizer(TEXTS, padding=True, return_tensors="pt"), "decoder_input_ids": random_ids(len(TEXTS), 12)}
    with torch.no_grad():
        own = model(**inputs).logits
    error = OnnxModel.load(tmp_path / "out")(**inputs).logits - own
    assert 0 < error.std() < 0.6 * own.std()


def test_int8_products(tmp_path):
    """The limit is 1.25 times the largest error, 0.0136."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import QuantType

    from modeling_random_transformer.extras.export.onnx import dynamic, export_graph, quantize

    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    inputs, path = torch.randn(4, 8, 64), tmp_path / "float32.onnx"
    export_graph(layers, (inputs,), (dynamic(0, 1),), ["inputs"], ["outputs"], path)
    own = layers(inputs).detach()
    for weight_type in (QuantType.QInt8, QuantType.QUInt8):
        quantize(path, tmp_path / "int8.onnx", weight_type)
        assert (tmp_path / "int8.onnx").stat().st_size < 0.4 * path.stat().st_size
        (found,) = InferenceSession(tmp_path / "int8.onnx").run(None, {"inputs": inputs.numpy()})
        assert 0 < (torch.from_numpy(found) - own).std() < 0.017 * own.std()


def test_int8_embedding():
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

"""Model configurations for the export, their translations by `generate()`, and marks for optional engines."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from modeling_random_transformer.extras.export import export_model, load_engine
from modeling_random_transformer.extras.export.engines import translate_fn
from tests.helpers.models import EOS, tiny_model
from tests.helpers.translation import random_tokenizer, some_texts

PACKAGES = {"ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxruntime", "onnxscript")}
CONFIGS = {
    "post-norm": {"norm_order": "post"},
    "post-norm with a final norm": {"norm_order": "post", "final_layer_norm": True, "layer_norm_eps": 0.1},
    "pre-norm": {},
    "pre-norm without a final norm": {"final_layer_norm": False, "scale_embedding": False},
    "narrow values": {"d_k": 11, "d_v": 5},
    "narrow keys": {"d_k": 3, "d_v": 11, "attention_bias": False},
    "wide heads": {"d_k": 16, "attention_scale": 0.7},
    "three heads": {"d_model": 18, "num_heads": 3, "d_ff": 20, "encoder_layers": 3, "decoder_layers": 1},
    "no positions": {"position_embedding": "none", "lm_head_bias": False},
    "learned positions": {"position_embedding": "learned", "position_offset": 2, "tie_word_embeddings": False},
    "sines first": {"sinusoid_layout": "concatenated", "position_offset": 3, "share_embeddings": False},
    "nothing shared": {"share_embeddings": False, "tie_word_embeddings": False},
}
TEXTS = some_texts(24, seed=1)
LIMIT = 24  # maximum tokens of a translation
BEAMS = (1, 4)
SHORT = {"max_new_tokens": LIMIT, "early_stopping": True}  # what CTranslate2 computes under `generate()`
GREEDY = {"num_beams": 1, "early_stopping": False}  # one beam has no early stopping


def needs(engine: str) -> list[pytest.MarkDecorator]:
    """Marks for `pytestmark` that skip tests if an engine is not installed."""
    missing = [package for package in PACKAGES[engine] if find_spec(package) is None]
    return [pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: extra '{engine}'")]


def exportable(seed: int = 0, **overrides):
    """A model and its tokenizer. The weights are large, so that no two tokens have nearly equal logits."""
    tokenizer = random_tokenizer()
    options = {"norm_order": "pre", "lm_head_bias": True, **overrides}
    model = tiny_model(seed, spread=2.0, vocab_size=len(tokenizer), **options)
    if model.lm_head.bias is not None:
        with torch.no_grad():
            model.lm_head.bias[EOS] = 8.0  # otherwise few translations would end
    return model, tokenizer


def check_translations(model, tokenizer, folder: Path, engine: str, texts: Sequence[str] = TEXTS, same=None) -> None:
    """Export a model to a new folder, and check that the engine's translations are those of the model, or of `same`."""
    export_model(model, tokenizer, folder, engine=engine)
    translate = load_engine(folder, engine)
    for num_beams in BEAMS:
        expected = own_translations(same or model, tokenizer, num_beams, texts)
        assert len(set(expected)) > 1, "translations must differ to be compared"
        assert translate(texts, num_beams, LIMIT) == expected


def own_translations(model, tokenizer, num_beams: int, texts: Sequence[str] = TEXTS, limit: int = LIMIT) -> list[str]:
    return translate_fn(model, tokenizer)(texts, num_beams, limit)

"""Graphs under `generate()`: the model's ids, logits and errors."""

import pytest
import torch

from tests.helpers.engines import LIMIT, TEXTS, needs
from tests.helpers.models import assert_near, padded_batch, random_ids

# Exporting takes about ten seconds of CPU time.
pytestmark = [*needs("onnx"), pytest.mark.slow]


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
    cache, logits = None, []
    with torch.no_grad():
        expected = model(**source, decoder_input_ids=target).logits
        for part in target.split(parts, dim=1):
            outputs = engine(None, source["attention_mask"], part, encoded, cache)
            cache = outputs.past_key_values
            logits.append(outputs.logits)
    assert_near(torch.cat(logits, dim=1), expected, 1e-4)


def test_fully_padded_source_yields_finite_logits(exported):
    _, _, engine, _ = exported
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    assert engine(random_ids(2, 3), mask, random_ids(2, 2)).logits.isfinite().all()


def test_invalid_inputs(exported):
    _, _, engine, _ = exported
    with pytest.raises(ValueError, match="decoder_input_ids and one of input_ids and encoder_outputs must be given"):
        engine(random_ids(2, 3))
    with pytest.raises(ValueError, match=r"cache_implementation must be None or 'dynamic' for ONNX.* got 'static'"):
        engine.generate(random_ids(2, 3), cache_implementation="static")
    for token in (-1, 9999):
        ids = torch.tensor([[5, token]])
        for name, inputs in (
            ("input_ids", (ids, None, ids[:, :1])),
            ("decoder_input_ids", (ids[:, :1], None, ids)),
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
        actual = engine(too_long, decoder_input_ids=too_long).logits
        assert_near(actual, expected, 1e-4)

"""What differs between the supported versions of transformers."""

import warnings

import pytest
import torch
from transformers import BartForConditionalGeneration, MarianMTModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from modeling_random_transformer.versions_random_transformer import CACHE_NAME
from tests.helpers.models import VOCAB_SIZE, exact_model, padded_batch, random_ids, tiny_model

BATCH = padded_batch([8, 5, 3])


def test_both_names_of_the_cache():
    model = exact_model(spread=2.0)
    states = model.get_encoder()(**BATCH)
    ids = random_ids(3, 2)
    options = {"encoder_outputs": states, "attention_mask": BATCH["attention_mask"]}
    first = model(**options, decoder_input_ids=ids[:, :1], use_cache=True)
    assert first[CACHE_NAME] is getattr(first, CACHE_NAME)
    expected = model(**options, decoder_input_ids=ids, use_cache=False).logits[:, 1:]
    for name in ("cache", "past_key_values"):
        cache = model(**options, decoder_input_ids=ids[:, :1], use_cache=True)[CACHE_NAME]
        logits = model(**options, decoder_input_ids=ids[:, 1:], **{name: cache}).logits
        torch.testing.assert_close(logits, expected)


def outcomes_of_cache_names(model):
    """Whether each use of each name of the cache is accepted, and whether it gives a FutureWarning."""
    outcomes = {}
    first = model(**BATCH, decoder_input_ids=random_ids(3, 1), use_cache=True)
    for name in ("cache", "past_key_values"):
        uses = {
            "output": lambda name=name: getattr(first, name).get_seq_length(),
            "key": lambda name=name: first[name].get_seq_length(),
            "forward": lambda name=name: model(**BATCH, decoder_input_ids=random_ids(3, 1), **{name: new_cache()}),
            "generate": lambda name=name: model.generate(**BATCH, max_new_tokens=3, **{name: new_cache()}),
        }
        for use, call in uses.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    call()
                    outcome = "accepted"
                except Exception as error:
                    outcome = type(error).__name__
            warned = any(issubclass(warning.category, FutureWarning) for warning in caught)
            outcomes[use, name] = outcome, warned
    return outcomes


def new_cache():
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@pytest.mark.parametrize("peer", [BartForConditionalGeneration, MarianMTModel])
def test_names_of_the_cache_are_those_of_other_models(peer):
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    theirs = outcomes_of_cache_names(peer(peer.config_class(**sizes, **tokens)).eval())
    if CACHE_NAME == "past_key_values":  # there, other models ignore the new name in forward() without an error
        assert theirs["forward", "cache"] == ("accepted", False)
    assert outcomes_of_cache_names(tiny_model()) == theirs

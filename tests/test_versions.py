"""What differs between the supported versions of transformers."""

import inspect
import warnings

import pytest
import torch
from transformers import BartForConditionalGeneration, MarianMTModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from modeling_random_transformer import versions_random_transformer as versions
from modeling_random_transformer.versions_random_transformer import (
    CACHE_NAME,
    NEWEST_TESTED,
    OLDEST_TESTED,
    TESTED_VERSIONS,
    UNTESTED_ADVICE,
    CheckpointedLayer,
    accepts_cache,
    cache_of,
    is_untested_version,
    named_cache,
)
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


def test_two_caches_raise():
    """peft 0.21 passes the prefixes of prefix tuning by the old name, which transformers 5.24 would ignore."""
    names = {"cache": DynamicCache(), "past_key_values": DynamicCache()}
    with pytest.raises(ValueError, match="one of cache and past_key_values must be given, got both"):
        tiny_model()(**BATCH, decoder_input_ids=random_ids(3, 1), **names)


@pytest.mark.parametrize("call", ["forward", "generate"])
def test_a_cache_of_tuples_raises(call):
    layers = ((torch.zeros(3, 2, 1, 8),) * 4,) * 3
    with pytest.raises(ValueError, match=f"{CACHE_NAME} must be None or a Cache of transformers, got tuple"):
        getattr(tiny_model(), call)(**BATCH, decoder_input_ids=random_ids(3, 2), **named_cache(layers))


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


@pytest.mark.parametrize("current", ["cache", "past_key_values"])
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_a_function_gets_the_cache_by_either_name(name, current, monkeypatch):
    monkeypatch.setattr(versions, "CACHE_NAME", current)

    @accepts_cache
    def forward(first, cache=None, *, last=3):
        return first, cache, last

    assert forward(1, **{name: "a cache"}) == (1, "a cache", 3)
    assert forward(1, last=4) == (1, None, 4)
    assert forward.__name__ == "forward"
    assert str(inspect.signature(forward)) == f"(first, {current}=None, *, last=3)"


def test_the_cache_among_arguments_and_outputs():
    cache = new_cache()
    assert cache_of({"logits": 1} | named_cache(cache)) is cache
    assert cache_of({"logits": 1}) is None


(OLDEST, OLDEST_MINOR), (NEWEST, NEWEST_MINOR) = OLDEST_TESTED, NEWEST_TESTED


@pytest.mark.parametrize(
    ("version", "is_untested"),
    [
        (f"{OLDEST}.{OLDEST_MINOR - 1}.9", True),
        (f"{OLDEST}.{OLDEST_MINOR}.0", False),
        (f"{NEWEST}.{NEWEST_MINOR}.7", False),
        (f"{NEWEST}.{NEWEST_MINOR}.0.dev0", False),
        (f"{NEWEST}.{NEWEST_MINOR + 1}.0", True),
        (f"{NEWEST + 1}.{OLDEST_MINOR}.0", True),
        (f"{OLDEST - 1}.{NEWEST_MINOR}.0", True),
    ],
)
def test_a_version_outside_of_the_tested_ones_is_untested(version, is_untested, monkeypatch):
    monkeypatch.setattr(versions.transformers, "__version__", version)
    assert is_untested_version() is is_untested


def test_the_advice_names_the_installed_and_the_tested_versions():
    assert f"{OLDEST}.{OLDEST_MINOR} to {NEWEST}.{NEWEST_MINOR}" == TESTED_VERSIONS
    assert f"transformers {versions.transformers.__version__} is installed, " in UNTESTED_ADVICE
    assert f"tested with {TESTED_VERSIONS}: " in UNTESTED_ADVICE


@pytest.mark.parametrize("is_enabled", [False, True])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_layer_is_checkpointed_with_gradients_only(has_gradients, is_enabled):
    layer, second_layer = CheckpointedLayer(), CheckpointedLayer()
    layer.gradient_checkpointing = is_enabled
    with torch.set_grad_enabled(has_gradients):
        assert layer.gradient_checkpointing is (is_enabled and has_gradients)
        assert second_layer.gradient_checkpointing is False

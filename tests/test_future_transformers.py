"""Simulated changes of a future transformers: `generate()` is right, or raises an error that names the versions."""

import functools
import subprocess
import sys

import pytest
import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from modeling_random_transformer import (
    RandomTransformerForCausalLM,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
    Seq2SeqPipeline,
)
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer import verification_random_transformer as verification
from modeling_random_transformer import versions_random_transformer as versions
from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.training import TranslationTrainer
from modeling_random_transformer.versions_random_transformer import CACHE_NAME, TESTED_VERSIONS, named_cache
from tests.helpers.models import exact_model, padded_batch, random_ids, tiny_config
from tests.helpers.trainer import new_trainer, pairs

BATCH = padded_batch([8, 5, 3])
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "patience": {"num_beams": 3, "patience": 2, "early_stopping": True, "length_penalty": 2.0},
    "static cache": {"cache_implementation": "static"},
}
NEW_NAME = "kv_memory"  # of the cache


def rename_argument(monkeypatch, owner, name, old, new):
    """The argument `old` of a function is now called `new`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def renamed(*args, **kwargs):
        if new in kwargs:
            kwargs[old] = kwargs.pop(new)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, renamed)


def cache_is_renamed_in_generate(monkeypatch):
    """As in 5.24: other names in `generate()` and in the inputs of the model."""
    prepare_cache = GenerationMixin._prepare_cache_for_generation
    prepare_inputs = GenerationMixin.prepare_inputs_for_generation

    def create_cache(self, generation_config, model_kwargs, *args):
        prepare_cache(self, generation_config, model_kwargs, *args)
        model_kwargs[NEW_NAME] = model_kwargs.pop(CACHE_NAME, None)

    def inputs_of_next_pass(self, input_ids, next_sequence_length=None, **kwargs):
        cache = kwargs.pop(NEW_NAME, None)
        inputs = prepare_inputs(self, input_ids, next_sequence_length, **kwargs | named_cache(cache))
        inputs[NEW_NAME] = inputs.pop(CACHE_NAME, None)
        return inputs

    monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", create_cache)
    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", inputs_of_next_pass)


def cache_returns_new_keys_only(monkeypatch):
    update = DynamicCache.update

    def update_and_return_new(self, key_states, value_states, *args, **kwargs):
        update(self, key_states, value_states, *args, **kwargs)
        return key_states, value_states

    monkeypatch.setattr(DynamicCache, "update", update_and_return_new)


def cache_counts_one_more_token(monkeypatch):
    get_seq_length = DynamicCache.get_seq_length
    monkeypatch.setattr(DynamicCache, "get_seq_length", lambda self, *args: get_seq_length(self, *args) + 1)


def cache_is_not_reordered(monkeypatch):
    monkeypatch.setattr(DynamicCache, "reorder_cache", lambda self, beam_idx: None)  # noqa: ARG005


def cache_method_is_renamed(monkeypatch):
    monkeypatch.delattr(EncoderDecoderCache, "get_seq_length")


def replace_mask(monkeypatch, name, create):
    """The modeling file and the file that verifies it import these functions of transformers."""
    for module in (modeling, verification):
        monkeypatch.setattr(module, name, create)


def mask_has_the_opposite_meaning(monkeypatch):
    create = modeling.create_causal_mask

    def inverted(*args, **kwargs):
        mask = create(*args, **kwargs | {"allow_is_causal_skip": False})
        return ~mask if mask.dtype == torch.bool else mask - mask.min() - mask

    replace_mask(monkeypatch, "create_causal_mask", inverted)


def mask_ignores_padding(monkeypatch):
    replace_mask(monkeypatch, "create_bidirectional_mask", lambda *_, **__: None)


def mask_arguments_have_another_order(monkeypatch):
    create = modeling.create_causal_mask

    def reordered(config, attention_mask, inputs_embeds, *args, **kwargs):
        return create(config, inputs_embeds, attention_mask, *args, **kwargs)

    replace_mask(monkeypatch, "create_causal_mask", reordered)


def mask_argument_is_required(monkeypatch):
    create = modeling.create_bidirectional_mask
    replace_mask(monkeypatch, "create_bidirectional_mask", lambda *args, _layout, **kwargs: create(*args, **kwargs))


def replace_attention(monkeypatch, change):
    original = modeling.ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(modeling.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", functools.partial(change, original))


def attention_scaling_is_renamed(monkeypatch):
    def attend(original, *args, scaling=None, scale=None, **kwargs):  # noqa: ARG001
        return original(*args, scaling=scale, **kwargs)

    replace_attention(monkeypatch, attend)


def attention_arguments_have_another_order(monkeypatch):
    def attend(original, module, query, value, key, mask, **kwargs):
        return original(module, query, key, value, mask, **kwargs)

    replace_attention(monkeypatch, attend)


def attention_outputs_have_another_layout(monkeypatch):
    def attend(original, *args, **kwargs):
        outputs, weights = original(*args, **kwargs)
        return outputs.transpose(1, 2).contiguous(), weights

    replace_attention(monkeypatch, attend)


def attention_mask_is_renamed(monkeypatch):
    def attend(original, module, query, key, value, legacy=None, mask=None, **kwargs):  # noqa: ARG001
        return original(module, query, key, value, mask, **kwargs)

    replace_attention(monkeypatch, attend)


def selection_of_beams_has_other_arguments(monkeypatch):
    original = vars(GenerationMixin)["_get_top_k_continuations"]
    search = GenerationMixin._beam_search

    def select(self, sampling, **kwargs):
        return original(self, do_sample=sampling, **kwargs)

    def search_with_new_names(self, *args, **kwargs):
        method = self._get_top_k_continuations
        self._get_top_k_continuations = lambda do_sample, **state: method(sampling=do_sample, **state)
        try:
            return search(self, *args, **kwargs)
        finally:
            del self._get_top_k_continuations

    monkeypatch.setattr(GenerationMixin, "_get_top_k_continuations", select)
    monkeypatch.setattr(GenerationMixin, "_beam_search", search_with_new_names)


def hide_override(name):
    """transformers calls this method by another name, so that the override of a model has no effect."""

    def hide(monkeypatch):
        for cls in (*modeling.RandomTransformerForConditionalGeneration.__mro__, EnsembleForSeq2SeqLM):
            if name in vars(cls) and cls is not GenerationMixin:
                monkeypatch.delattr(cls, name)

    return hide


def encoder_outputs_are_renamed(monkeypatch):
    expand = GenerationMixin._expand_inputs_for_generation

    def expand_with_new_name(*args, **kwargs):
        ids, kwargs = expand(*args, **kwargs)
        return ids, kwargs

    def prepare(self, *args, **kwargs):
        inputs = GenerationMixin.prepare_inputs_for_generation(self, *args, **kwargs)
        inputs["encoded"] = inputs.pop("encoder_outputs", None)
        return inputs

    monkeypatch.setattr(modeling.RandomTransformerGenerationMixin, "prepare_inputs_for_generation", prepare)
    monkeypatch.setattr(GenerationMixin, "_expand_inputs_for_generation", expand_with_new_name)


CHANGES = {
    "generate(): the cache has another name": cache_is_renamed_in_generate,
    "generate(): encoder outputs have another name": encoder_outputs_are_renamed,
    "cache: update() returns the new keys only": cache_returns_new_keys_only,
    "cache: get_seq_length() counts one more": cache_counts_one_more_token,
    "cache: reorder_cache() has no effect": cache_is_not_reordered,
    "cache: a method is renamed": cache_method_is_renamed,
    "masks: the opposite meaning": mask_has_the_opposite_meaning,
    "masks: padding is ignored": mask_ignores_padding,
    "masks: another order of arguments": mask_arguments_have_another_order,
    "masks: a new required argument": mask_argument_is_required,
    "attention: scaling has another name": attention_scaling_is_renamed,
    "attention: another order of arguments": attention_arguments_have_another_order,
    "attention: another layout of outputs": attention_outputs_have_another_layout,
    "attention: the mask has another name": attention_mask_is_renamed,
    "beam search: other arguments of the selection": selection_of_beams_has_other_arguments,
    "hook renamed: _prepare_cache_for_generation": hide_override("_prepare_cache_for_generation"),
    "hook renamed: _expand_inputs_for_generation": hide_override("_expand_inputs_for_generation"),
    "hook renamed: _update_finished_beams": hide_override("_update_finished_beams"),
    "hook renamed: _check_early_stop_heuristic": hide_override("_check_early_stop_heuristic"),
    "hook renamed: _reorder_cache": hide_override("_reorder_cache"),
    "hook renamed: _update_model_kwargs_for_generation": hide_override("_update_model_kwargs_for_generation"),
    "hook renamed: prepare_inputs_for_generation": hide_override("prepare_inputs_for_generation"),
}


def seq2seq_model():
    return exact_model(spread=2.0)


def eager_model():
    model = exact_model(spread=2.0)
    model.set_attn_implementation("eager")
    return model


def ensemble():
    return EnsembleForSeq2SeqLM([exact_model(seed, spread=2.0) for seed in (1, 2)])


def language_model():
    torch.manual_seed(0)
    return RandomTransformerForCausalLM(tiny_config()).double().eval()


MODELS = {"seq2seq": seq2seq_model, "eager": eager_model, "ensemble": ensemble, "language model": language_model}


NOT_SUPPORTED = {("ensemble", "static cache"), ("language model", "patience")}


def generated(model, search):
    inputs = {"input_ids": random_ids(3, 5)} if isinstance(model, RandomTransformerForCausalLM) else BATCH
    return model.generate(**inputs, max_new_tokens=8, do_sample=False, disable_compile=True, **SEARCHES[search])


@pytest.fixture(scope="module")
def expected():
    """The outputs of the unchanged version."""
    return {
        (name, search): generated(model(), search)
        for name, model in MODELS.items()
        for search in SEARCHES
        if (name, search) not in NOT_SUPPORTED
    }


@pytest.mark.parametrize("change", CHANGES)
def test_generation_is_right_or_an_error(change, expected, monkeypatch):
    monkeypatch.setattr(versions, "NEWEST_TESTED", (5, 0))
    outcomes = {}
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        for (name, search), tokens in expected.items():
            try:
                outputs = generated(MODELS[name](), search)
            except Exception as error:
                notes = [str(error), *getattr(error, "__notes__", [])]
                assert any(TESTED_VERSIONS in note for note in notes), notes
                outcomes[name, search] = "error"
            else:
                assert torch.equal(outputs, tokens), (name, search)
                outcomes[name, search] = "right"
    print(change, outcomes)


def test_a_broken_cache_is_an_error_on_a_tested_version(monkeypatch):
    cache_returns_new_keys_only(monkeypatch)
    model = exact_model(spread=2.0)
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match=f"does not append keys and values.* tested with {TESTED_VERSIONS}"):
        generated(model, "greedy")


# The first import fails in a process of its own, which shares the imports of transformers.
IMPORTS = """
from dataclasses import make_dataclass
import os
import transformers, transformers.utils.deprecation
from transformers import modeling_outputs

if os.fork() == 0:
    modeling_outputs.Seq2SeqLMOutput = make_dataclass("Output", ["logits", "memory"])
    import modeling_random_transformer
os.wait()
transformers.__version__ = "5.99.0"
import modeling_random_transformer
"""


@pytest.mark.slow
def test_import_names_the_versions():
    """An error if outputs have no cache, and a warning about a newer version."""
    process = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    error, _, warning = process.stderr.partition(f"tested with {TESTED_VERSIONS}")
    assert "ImportError: the outputs of transformers have no cache" in error
    assert "5.99.0 is installed" in warning
    assert warning.count(f"tested with {TESTED_VERSIONS}") == 1


def test_tokenizer_that_is_not_told_of_targets(monkeypatch):
    """Otherwise, targets would silently have the language tag of sources."""
    options = {"languages": ["en", "de"], "src_lang": "en", "tgt_lang": "de"}
    tokenizer = RandomTransformerTokenizer.train(["the cat sees a dog"], vocab_size=300, **options)
    expected = tokenizer("the cat", text_target="a dog")
    assert expected["labels"][0] == tokenizer.get_lang_id("de")
    monkeypatch.delattr(RandomTransformerTokenizer, "_switch_to_target_mode")
    for call in (tokenizer, tokenizer.encode_texts):
        with pytest.raises(RuntimeError, match=f"language tag.* tested with {TESTED_VERSIONS}"):
            call("the cat", text_target="a dog")


@pytest.mark.parametrize("hook", ["_forward", "_sanitize_parameters"])
def test_pipeline_whose_hooks_are_renamed(hook, translator_folder, monkeypatch):
    monkeypatch.delattr(Seq2SeqPipeline, hook)
    model = RandomTransformerForConditionalGeneration.from_pretrained(translator_folder)
    tokenizer = RandomTransformerTokenizer.from_pretrained(translator_folder)
    with pytest.raises((NotImplementedError, TypeError, AttributeError)):
        Seq2SeqPipeline(model, tokenizer, device="cpu")("the cat")


def test_output_layer_that_is_not_tied(monkeypatch):
    """Otherwise, a model that is loaded has a random output layer."""
    monkeypatch.setattr(PreTrainedModel, "get_expanded_tied_weights_keys", lambda *_, **__: {})
    with pytest.raises(RuntimeError, match=f"does not tie the output layer.* tested with {TESTED_VERSIONS}"):
        RandomTransformerForConditionalGeneration(tiny_config())


TRAINER_HOOKS = {
    "prediction_step": lambda trainer: trainer.evaluate(),
    "_save_checkpoint": lambda trainer: trainer.train(),
}


@pytest.mark.parametrize("hook", TRAINER_HOOKS)
def test_trainer_whose_hooks_are_renamed(hook, tmp_path, monkeypatch):
    """Otherwise, evaluation would have other search options, and checkpoints no mark that they are complete."""
    trainer = new_trainer(tmp_path, eval_dataset=pairs(3), save_steps=1)
    owner = next(cls for cls in TranslationTrainer.__mro__ if hook in vars(cls))
    monkeypatch.delattr(owner, hook)
    with pytest.raises(RuntimeError, match=f"{hook}.* tested with {TESTED_VERSIONS}"):
        TRAINER_HOOKS[hook](trainer)

"""Exports a model to a class of transformers that computes the same: MarianMT, Pegasus or Blenderbot.

Nothing of this package is needed to load the folder, nor `trust_remote_code`. Only the layout of the residual stream
changes: the classes with sinusoids have all sines before all cosines, so an interleaved model is permuted.
"""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ...base.files import StrPath, read_json, write_json
from ...base.saved_files import TOKENIZER_CONFIG_FILE
from ...configuration_random_transformer import RandomTransformerConfig
from ...inputs_random_transformer import check_choice, tokenizer_languages
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...tokenization_random_transformer import RandomTransformerTokenizer
from ..conversion.marian import CLASSES, COMMON_FIELDS, FORMAT, LAYER_NORM_EPS, TOKENIZER_SETTINGS, NativeClass
from .compare import check_equal, compared_ids, reference_of
from .engines import EngineTranslate, translate_fn
from .search import first_token, table_positions, without_patience

# Modules by their axis of `d_model`: those that read the residual stream, and those that write to it.
READING = ("shared", "embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "fc1")
WRITING = ("out_proj", "fc2", "self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm", "layer_norm")


def save(
    model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: str
) -> None:
    """Save the model as a class of transformers, with its generation config and tokenizer.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        folder: an empty folder.
        dtype: dtype of the weights, `"float32"` or `"bfloat16"`.

    Raises:
        ValueError: no class computes the same; the message names the option.
    """
    forced = first_token(model, tokenizer)
    if languages := tokenizer_languages(tokenizer):
        check_choice(languages, src_lang=tokenizer.src_lang)
    native = native_model(model)
    native.generation_config = without_patience(model.generation_config, "transformers' own class")
    native.generation_config.forced_bos_token_id = forced
    native.to(getattr(torch, dtype))
    native.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def load(folder: StrPath) -> EngineTranslate:
    """Load an exported model as a function that translates sentences."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
    return translate_fn(model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


@torch.no_grad()
def native_model(model: RandomTransformerForConditionalGeneration) -> PreTrainedModel:
    """A model of transformers' own class with the same logits, on the CPU in float32 and evaluation mode.

    Raises:
        ValueError: no class computes the same; the message names the option.
    """
    native_class = choose_class(model.config)
    reference = reference_of(model)
    options = native_options(reference.config, native_class)
    config = native_class.model.config_class(**options)
    native = native_class.model(config)
    missing, unexpected = native.load_state_dict(native_weights(reference), strict=False)
    name = type(native).__name__
    assert not unexpected, f"{unexpected} are not weights of {name}"
    for weight in missing:
        assert "embed_positions" in weight, f"{weight} is missing for {name}"  # sinusoids are computed
    native.eval()
    ids, labels = compared_ids(model.config)
    inputs: dict[str, Any] = {"input_ids": ids[None], "decoder_input_ids": labels[None], "return_dict": True}
    check_equal(name, native(**inputs).logits, reference(**inputs).logits)
    return native


def choose_class(config: RandomTransformerConfig) -> NativeClass:
    """The class with the order of norms and the positions of a model.

    Raises:
        ValueError: there is none, or it does not compute an option of the model.
    """
    norms = config.norm_order
    positions = config.position_embedding
    by_positions = {native.position_embedding: native for native in CLASSES.values() if native.norm_order == norms}
    if positions not in by_positions:
        choices = " or ".join(map(repr, by_positions))
        raise ValueError(
            f"position_embedding must be {choices} for transformers with norm_order={norms!r}, got {positions!r}."
        )
    native = by_positions[positions]
    check_supported(config, native.model.__name__)
    return native


def check_supported(config: RandomTransformerConfig, name: str) -> None:
    """Raise a `ValueError` for an option that the classes of transformers do not have.

    Args:
        config: the configuration of a model.
        name: the class of transformers, for the message.
    """
    is_pre_norm = config.norm_order == "pre"
    width = config.d_model // config.num_heads
    has_sinusoids = config.position_embedding == "sinusoidal"
    requirements = [
        ("final_layer_norm", f"{is_pre_norm}", config.final_layer_norm == is_pre_norm),
        ("position_offset", "0", config.position_offset == 0 or not has_sinusoids),
        ("share_embeddings", "True", config.share_embeddings or not is_pre_norm),
        ("d_k", f"d_model / num_heads={width}", config.d_k == width),
        ("d_v", f"d_model / num_heads={width}", config.d_v == width),
        ("layer_norm_eps", f"at most {LAYER_NORM_EPS}", config.layer_norm_eps <= LAYER_NORM_EPS),
        ("decoder_start_token_id", "a token id", config.decoder_start_token_id is not None),
    ]
    for field, allowed, is_met in requirements:
        if not is_met:
            raise ValueError(f"{field} must be {allowed} for {name}, got {getattr(config, field)!r}.")


def native_options(config: RandomTransformerConfig, native: NativeClass) -> dict[str, Any]:
    """The options of a class of transformers, by the tables of the conversion in the opposite direction."""
    options: dict[str, Any] = {
        "max_position_embeddings": table_positions(config),
        # Defaults of these classes that are wrong here, and fields of their checkpoints that CTranslate2's converter
        # reads.
        "forced_eos_token_id": None,
        "encoder_no_repeat_ngram_size": 0,
        "normalize_before": native.norm_order == "pre",
        "normalize_embedding": False,
    }
    for option in FORMAT.options:
        if option.fields:
            options[option.name] = getattr(config, option.fields[0])
    for name in (*COMMON_FIELDS, "vocab_size", "tie_word_embeddings"):
        options[name] = getattr(config, name)
    for name, other in FORMAT.same.items():
        options[name] = options[other]
    if native.norm_order == "post":
        options["share_encoder_decoder_embeddings"] = config.share_embeddings
    prefix = getattr(config, "prefix", None)
    if prefix:
        options["prefix"] = prefix
    return options


def native_weights(model: RandomTransformerForConditionalGeneration) -> dict[str, Tensor]:
    """The weights in float32 by their names in the classes of transformers."""
    config = model.config
    weights = model.state_dict()
    bias = weights.pop("lm_head.bias", None)
    if bias is None:
        bias = torch.zeros(config.vocab_size)
    if not config.attention_bias:
        for name in [name for name in weights if name.endswith("_proj.weight")]:
            weights[name.replace("weight", "bias")] = torch.zeros(len(weights[name]))
    order = torch.arange(config.d_model)
    if config.position_embedding == "sinusoidal" and config.sinusoid_layout == "interleaved":
        sines_and_cosines = order.view(-1, 2)
        order = sines_and_cosines.T.flatten()
    factor = config.attention_scale * config.d_k**0.5  # the classes multiply q·k by d_k ** -0.5
    for name, weight in weights.items():
        if "embed_positions" in name:  # learned
            weights[name] = weight[config.position_offset :]
            continue
        weights[name] = permuted(name, weight, order)
        if "q_proj" in name:
            weights[name] = weights[name] * factor
    weights["final_logits_bias"] = bias[None]
    return weights


def permuted(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """A weight whose axis of `d_model` has another order."""
    *_, module, kind = name.rsplit(".", 2)
    if module in READING and kind == "weight":
        return weight[:, order]
    return weight[order] if module in WRITING else weight


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save the tokenizer as a class of transformers, with the template that adds special tokens."""
    if not isinstance(tokenizer, RandomTransformerTokenizer):
        tokenizer.save_pretrained(folder)
        return
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    settings = {name: value for name, value in tokenizer.init_kwargs.items() if name in TOKENIZER_SETTINGS}
    settings["model_max_length"] = tokenizer.model_max_length  # it may have been set after loading
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    fast.save_pretrained(folder)
    file = folder / TOKENIZER_CONFIG_FILE
    stored = read_json(file)
    # transformers 4 has these names for the class and special tokens. By default, it would also add segment ids.
    stored["tokenizer_class"] = "PreTrainedTokenizerFast"
    stored["model_input_names"] = RandomTransformerTokenizer.model_input_names
    tokens = stored.pop("extra_special_tokens", None)
    if tokens:
        stored["additional_special_tokens"] = tokens
    write_json(file, stored)

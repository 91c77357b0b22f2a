"""Exports a model to a class of transformers that computes the same: MarianMT, Pegasus or Blenderbot.

Nothing of this package is needed to load the folder, nor `trust_remote_code`. Only the layout of the residual stream
changes: the classes with sinusoids have all sines before all cosines, so an interleaved model is permuted.
"""

import copy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ...base import read_json, write_json
from ...configuration_random_transformer import RandomTransformerConfig
from ...inputs_random_transformer import check_choice, tokenizer_languages
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...tokenization_random_transformer import RandomTransformerTokenizer
from ..conversion.marian import CLASSES, COMMON_FIELDS, LAYER_NORM_EPS, OPTIONS, SAME, SETTINGS, NativeClass
from .compare import check_equal, compared_ids
from .engines import Translate, translate_fn
from .search import first_token, table_positions

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
    search = {name: value for name, value in model.generation_config.to_dict().items() if not name.startswith("_")}
    native.generation_config = transformers.GenerationConfig.from_dict(search | {"forced_bos_token_id": forced})
    native.to(getattr(torch, dtype)).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def load(folder: str | PathLike) -> Translate:
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
    reference = copy.deepcopy(model).to("cpu", torch.float32).eval()
    native = native_class.model(native_class.model.config_class(**native_options(reference.config, native_class)))
    weights = native_weights(reference)
    positions = {name for name in native.state_dict() if "embed_positions" in name}  # sinusoids, which are computed
    missing, unexpected = native.load_state_dict(weights, strict=False)
    assert not unexpected, f"{unexpected} are not weights of {type(native).__name__}"
    assert positions.issuperset(missing), f"{missing} are missing for {type(native).__name__}"
    native.eval()
    ids, labels = compared_ids(model.config)
    inputs: dict[str, Any] = {"input_ids": ids[None], "decoder_input_ids": labels[None], "return_dict": True}
    check_equal(type(native).__name__, native(**inputs).logits, reference(**inputs).logits)
    return native


def choose_class(config: RandomTransformerConfig) -> NativeClass:
    """The class with the order of norms and the positions of a model.

    Raises:
        ValueError: there is none, or it does not compute an option of the model.
    """
    norms, positions = config.norm_order, config.position_embedding
    classes = {(native.norm_order, native.position_embedding): native for native in CLASSES.values()}
    if (norms, positions) not in classes:
        allowed = " or ".join(repr(kind) for order, kind in classes if order == norms)
        reason = f"for transformers with norm_order={norms!r}"
        raise ValueError(f"position_embedding must be {allowed} {reason}, got {positions!r}.")
    native = classes[norms, positions]
    width, name = config.d_model // config.num_heads, native.model.__name__
    limits: dict[str, tuple[str, bool]] = {
        "final_layer_norm": (f"{norms == 'pre'}", config.final_layer_norm == (norms == "pre")),
        **{field: (f"d_model / num_heads={width}", getattr(config, field) == width) for field in ("d_k", "d_v")},
        "layer_norm_eps": (f"at most {LAYER_NORM_EPS}", config.layer_norm_eps <= LAYER_NORM_EPS),
        "position_offset": ("0", positions == "learned" or config.position_offset == 0),
        "share_embeddings": ("True", norms == "post" or config.share_embeddings),
        "decoder_start_token_id": ("a token id", config.decoder_start_token_id is not None),
    }
    for field, (allowed, is_valid) in limits.items():
        if not is_valid:
            raise ValueError(f"{field} must be {allowed} for {name}, got {getattr(config, field)!r}.")
    return native


def native_options(config: RandomTransformerConfig, native: NativeClass) -> dict[str, Any]:
    """The options of a class of transformers, by the tables of the conversion in the opposite direction."""
    options = {option.name: getattr(config, option.fields[0]) for option in OPTIONS if option.fields}
    options |= {name: getattr(config, name) for name in (*COMMON_FIELDS, "vocab_size", "tie_word_embeddings")}
    options |= {name: options[other] for name, other in SAME}
    options["max_position_embeddings"] = table_positions(config)
    if native.norm_order == "post":
        options["share_encoder_decoder_embeddings"] = config.share_embeddings
    if prefix := getattr(config, "prefix", None):
        options["prefix"] = prefix
    # Defaults of these classes that are wrong here, and fields of their checkpoints that CTranslate2's converter reads.
    options |= {"forced_eos_token_id": None, "encoder_no_repeat_ngram_size": 0}
    return options | {"normalize_before": native.norm_order == "pre", "normalize_embedding": False}


def native_weights(model: RandomTransformerForConditionalGeneration) -> dict[str, Tensor]:
    """The weights in float32 by their names in the classes of transformers."""
    config, weights = model.config, model.state_dict()
    bias = weights.pop("lm_head.bias", torch.zeros(config.vocab_size))
    if not config.attention_bias:
        zeros = {name: torch.zeros(len(weights[name])) for name in weights if name.endswith("_proj.weight")}
        weights |= {name.replace("weight", "bias"): zero for name, zero in zeros.items()}
    order = torch.arange(config.d_model)
    if config.position_embedding == "learned":
        tables = [name for name in weights if "embed_positions" in name]
        weights |= {name: weights[name][config.position_offset :] for name in tables}
    elif config.sinusoid_layout == "interleaved":
        order = order.view(-1, 2).T.flatten()  # sines, then cosines
    weights = {name: permuted(name, weight, order) for name, weight in weights.items()}
    factor = config.attention_scale * config.d_k**0.5  # the classes multiply q·k by d_k ** -0.5
    weights |= {name: weight * factor for name, weight in weights.items() if "q_proj" in name}
    return weights | {"final_logits_bias": bias[None]}


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
    settings = {name: value for name, value in tokenizer.init_kwargs.items() if name in SETTINGS}
    settings["model_max_length"] = tokenizer.model_max_length  # it may have been set later
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings).save_pretrained(folder)
    # As transformers 4 names the class and other special tokens. Its default would be segment ids too.
    file, inputs = folder / "tokenizer_config.json", RandomTransformerTokenizer.model_input_names
    stored = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    if tokens := stored.pop("extra_special_tokens", None):
        stored["additional_special_tokens"] = tokens
    write_json(file, stored)

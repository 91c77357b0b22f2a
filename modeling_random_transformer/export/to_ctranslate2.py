"""A model for CTranslate2, an engine in C++.

All configurations can be exported but those with an activation that CTranslate2 has not, or with several end tokens.
"""

from collections.abc import Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from ctranslate2.specs.common_spec import Activation
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..modeling_random_transformer import LearnedPositions, RandomTransformerForConditionalGeneration
from .search import LENGTH_PENALTY, MAX_BATCH_TOKENS, Translate

# transformers' names and CTranslate2's.
ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELUTanh,
    "gelu_fast": Activation.GELUTanh,
    "gelu_pytorch_tanh": Activation.GELUTanh,
    "gelu_python_tanh": Activation.GELUTanh,
    "gelu_accurate": Activation.GELUTanh,
    "quick_gelu": Activation.GELUSigmoid,
    "silu": Activation.SWISH,
    "swish": Activation.SWISH,
    "tanh": Activation.Tanh,
    "sigmoid": Activation.Sigmoid,
}
# Of sinusoids, which the model makes for any length: as many tokens as the engine reads at most.
FEWEST_POSITIONS = 1024
NEVER = -1e9  # added to the logits of tokens that generate() does not choose


def write(
    model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: str
) -> None:
    """Write what `ctranslate2.Translator` loads.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer, whose tokens become the engine's.
        folder: where to, an empty folder.
        dtype: that of the weights, `"float32"`, `"bfloat16"` or `"int8"`.

    Raises:
        ValueError: CTranslate2 cannot represent a choice of the configuration, or the tokenizer has more tokens than
            the model.
    """
    source, target = (names(vocabulary, model.config.vocab_size) for vocabulary in vocabularies(tokenizer))
    spec = specification(model, source, target, tokenizer.unk_token)
    spec.validate()
    spec.optimize(quantization=dtype)
    spec.save(str(folder))
    tokenizer.save_pretrained(folder)


def load(folder: str | PathLike) -> Translate:
    """The engine, on as many of the CPU's threads as torch uses, as a function of sentences."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    source, target = vocabularies(tokenizer)
    token_of = {i: token for token, i in source.items()}
    engine = ctranslate2.Translator(str(folder), intra_threads=torch.get_num_threads())

    def translate(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        sources = [[token_of[i] for i in ids] for ids in tokenizer(list(texts))["input_ids"]]
        results = engine.translate_batch(
            sources,
            max_batch_size=MAX_BATCH_TOKENS // num_beams,
            batch_type="tokens",
            beam_size=num_beams,
            length_penalty=LENGTH_PENALTY,
            max_input_length=0,  # any: it would cut the source without a word
            min_decoding_length=0,  # as generate() has it; the engine's default is 1
            max_decoding_length=max_new_tokens,
        )
        # An id behind the vocabulary has a name that says nothing.
        ids = [[target[token] for token in result.hypotheses[0] if token in target] for result in results]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return translate


def vocabularies(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], dict[str, int]]:
    """The tokens of source and target with their ids: the same, but for a `MarianTokenizer` that has two files."""
    source = tokenizer.get_vocab()
    return source, tokenizer.target_encoder if getattr(tokenizer, "separate_vocabs", False) else source


def names(vocabulary: dict[str, int], size: int) -> list[str]:
    """The model's `size` tokens in the order of their ids, with names for those that the vocabulary has not."""
    tokens = {i: token for token, i in vocabulary.items()}
    return [tokens.get(i, f"<no token {i}>") for i in range(size)]


def specification(
    model: RandomTransformerForConditionalGeneration,
    source: list[str],
    target: list[str],
    unk_token: str | None = None,
) -> TransformerSpec:
    """The model in CTranslate2's terms: float32 weights, the vocabularies and the special tokens.

    Args:
        model: on any device, in any dtype.
        source: names of the tokens that are read, as many as `vocab_size`.
        target: names of those that are generated, as many.
        unk_token: the token to read unknown ones as; the end token where there is none, as a tokenizer without one
            refuses unknown words.

    Raises:
        ValueError: CTranslate2 cannot represent a choice of the configuration; the message names it.
    """
    config = model.config
    encoder = stack_spec(TransformerEncoderSpec, config, config.encoder_layers)
    decoder = stack_spec(TransformerDecoderSpec, config, config.decoder_layers)
    spec = TransformerSpec(encoder, decoder)
    fill_stack(encoder, model.model.encoder, encoder.embeddings[0])
    fill_stack(decoder, model.model.decoder, decoder.embeddings)
    fill_linear(decoder.projection, model.lm_head.weight, output_bias(model))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    # Nothing is added to the source (add_source_bos, add_source_eos): its end token comes from the tokenizer.
    start, end = special_tokens(model)
    spec.config.decoder_start_token = spec.config.bos_token = target[start]
    spec.config.eos_token = target[end]
    spec.config.unk_token = unk_token or target[end]
    return spec


def output_bias(model: RandomTransformerForConditionalGeneration) -> Tensor | None:
    """The output layer's bias, with tokens that the generation config forbids far below all others, `[vocab_size]`."""
    options, bias, tokens = model.generation_config, model.lm_head.bias, range(model.config.vocab_size)
    words = [word for word in options.bad_words_ids or [] if len(word) == 1 and word[0] not in end_tokens(model)]
    forbidden = {*(options.suppress_tokens or []), *chain.from_iterable(words)}.intersection(tokens)
    if not forbidden:
        return bias
    logits = torch.zeros(len(tokens)) if bias is None else bias.detach().cpu().float()
    return logits.index_fill(0, torch.tensor(sorted(forbidden)), NEVER)


def end_tokens(model: RandomTransformerForConditionalGeneration) -> list[int | None]:
    end = model.generation_config.eos_token_id
    return end if isinstance(end, list) else [end]


def special_tokens(model: RandomTransformerForConditionalGeneration) -> tuple[int, int]:
    """Ids of the tokens that start and end a target in `generate()`."""
    options = model.generation_config
    start = options.bos_token_id if options.decoder_start_token_id is None else options.decoder_start_token_id
    end, *more = end_tokens(model)
    if not isinstance(start, int):
        raise ValueError(f"decoder_start_token_id must be a token's id for CTranslate2, got {start}.")
    if end is None or more:
        raise ValueError(f"eos_token_id must be one token's id for CTranslate2, got {options.eos_token_id}.")
    return start, end


def stack_spec(kind: type, config: Any, layers: int) -> Any:
    """An empty encoder or decoder of CTranslate2, with every choice made."""
    if config.activation_function not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(
            f"activation_function must be one of {names} for CTranslate2, got {config.activation_function!r}."
        )
    # Declared as pre-norm, it has a place for the final norm, whichever the order is then said to be.
    options = {"pre_norm": True, "no_final_norm": not config.final_layer_norm}
    activation = ACTIVATIONS[config.activation_function]
    spec = kind(layers, config.num_heads, activation=activation, head_dim=head_width(config), **options)
    spec.pre_norm = config.norm_order == "pre"
    spec.scale_embeddings = config.scale_embedding
    return spec


def head_width(config: Any) -> int:
    """The one width that CTranslate2 has for a head's queries, keys and values: zeros fill up the narrower of them."""
    return max(config.d_k, config.d_v)


def fill_stack(spec: Any, stack: Any, embeddings: Any) -> None:
    embeddings.weight = array(stack.embed_tokens.weight)
    spec.position_encodings.encodings = array(position_table(stack))
    if stack.config.final_layer_norm:
        fill_norm(spec.layer_norm, stack.layer_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        fill_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_layer_norm)
        if hasattr(layer, "encoder_attn"):
            fill_attention(layer_spec.attention, layer.encoder_attn, layer.encoder_attn_layer_norm)
        fill_linear(layer_spec.ffn.linear_0, layer.fc1.weight, layer.fc1.bias)
        fill_linear(layer_spec.ffn.linear_1, layer.fc2.weight, layer.fc2.bias)
        fill_norm(layer_spec.ffn.layer_norm, layer.final_layer_norm)


def longest_text(config: Any) -> int:
    """How many tokens the engine reads or writes."""
    learned = config.position_embedding == "learned"
    return config.max_position_embeddings if learned else max(config.max_position_embeddings, FEWEST_POSITIONS)


def position_table(stack: Any) -> Tensor:
    """What is added to the embeddings, `[positions, d_model]`."""
    config, positions = stack.config, stack.embed_positions
    if isinstance(positions, LearnedPositions):
        return positions.weight[config.position_offset :]
    count = longest_text(config)
    if positions is None:
        return torch.zeros(count, config.d_model)  # without a table the engine would add sinusoids
    return positions.encode(torch.arange(count))


def fill_attention(spec: Any, attention: Any, norm: nn.LayerNorm) -> None:
    """Self-attention has one product for queries, keys and values, cross-attention one for keys and values."""
    config = attention.config
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    weights = [widen(layer.weight, config) for layer in inputs]
    biases = [widen(layer.bias, config) for layer in inputs if layer.bias is not None]
    *products, output = spec.linear
    for product, parts in zip(
        products, [slice(0, 3)] if len(products) == 1 else [slice(0, 1), slice(1, 3)], strict=True
    ):
        fill_linear(product, torch.cat(weights[parts]), torch.cat(biases[parts]) if biases else None)
    fill_linear(output, widen(attention.out_proj.weight.T, config).T, attention.out_proj.bias)
    spec.queries_scale = attention.scaling
    fill_norm(spec.layer_norm, norm)


def widen(weight: Tensor, config: Any) -> Tensor:
    """Zeros at the end of each head, which change no product: `[heads · d_k or d_v, …]` → `[heads · width, …]`."""
    heads = weight.detach().unflatten(0, (config.num_heads, -1))
    missing = heads.new_zeros(len(heads), head_width(config) - heads.shape[1], *heads.shape[2:])
    return torch.cat([heads, missing], dim=1).flatten(0, 1)


def fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = array(weight)
    if bias is not None:
        spec.bias = array(bias)


def fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def array(tensor: Tensor) -> Any:
    """A copy in float32: quantization computes in place, and the model's own weights must stay as they are."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()

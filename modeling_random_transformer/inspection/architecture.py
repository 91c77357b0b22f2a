"""The module tree of a model as the blocks of the paper's Figure 1: names, shapes, parameter counts, tied weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import modeling_random_transformer as models
from ..configuration_random_transformer import MODEL_CLASSES, RandomTransformerConfig
from ..inference.loading import check_config

# Output layers of the task heads, and their results.
HEADS = {
    "lm_head": "logits",
    "score": "logits",
    "qa_outputs": "start and end logits",
}


@dataclass(frozen=True)
class Block:
    """A box of the figure.

    Attributes:
        kind: `"embedding"`, `"positions"`, `"attention"`, `"feed_forward"`, `"norm"` or `"output"`.
        title: what the block computes.
        name: its path in the stack or, in a layer, in the layer; empty for the feed-forward network, which has none.
        parts: names and shapes of its submodules.
        parameters: full names in the model; for a layer, those of the first one.
        count: how many numbers these parameters have, those of tied weights included.
        note: a formula or a property.
    """

    kind: str
    title: str
    name: str
    parts: tuple[tuple[str, str], ...] = ()
    parameters: tuple[str, ...] = ()
    count: int = 0
    note: str = ""


@dataclass(frozen=True)
class SubLayer:
    """Attention or the feed-forward network, with the layer norm of its residual connection."""

    block: Block
    norm: Block
    from_encoder: bool = False


@dataclass(frozen=True)
class Stack:
    """The encoder or the decoder. `layer_count` is the number of parameters of one of its `layers` layers."""

    name: str
    path: str
    class_name: str
    inputs: tuple[str, str]  # name and shape
    embedding: Block
    positions: Block | None
    layers: int
    layer_count: int
    sub_layers: tuple[SubLayer, ...]
    final_norm: Block | None


@dataclass(frozen=True)
class Architecture:
    """A model as the figure shows it.

    Attributes:
        title: the class of the model.
        count: number of parameters; tied weights count once.
        pre_norm: whether the layer norms precede the sub-layers.
        facts: sizes and options, one line each.
        stacks: encoder, decoder or both.
        shared: the embedding matrix that stacks share, if there is one.
        head: the output layer, if the model has one.
        pooled: whether the head's input is the mean over the tokens.
        output: name and shape of the result.
        tied: names of the embeddings and output layers that have the same weights.
    """

    title: str
    count: int
    pre_norm: bool
    facts: tuple[str, ...]
    stacks: tuple[Stack, ...]
    shared: Block | None
    head: Block | None
    pooled: bool
    output: tuple[str, str]
    tied: tuple[str, ...]


def load_architecture(folder: Path) -> Architecture:
    """The architecture of a saved model. Only its config.json is read.

    Raises:
        ValueError: the configuration is invalid or names no class of this package.
    """
    check_config(folder)
    config = RandomTransformerConfig.from_pretrained(folder)
    (name, *_) = config.architectures or [MODEL_CLASSES["AutoModelForSeq2SeqLM"]]
    if name not in MODEL_CLASSES.values():
        raise ValueError(f"architectures must contain one of {', '.join(MODEL_CLASSES.values())}, got {name!r}.")
    return build_architecture(config, name)


def build_architecture(config: RandomTransformerConfig, class_name: str) -> Architecture:
    """The architecture of a model of this class, built without weights (on the meta device)."""
    with torch.device("meta"):
        return describe(getattr(models, class_name)(config))


def describe(model: Any) -> Architecture:
    """The blocks of a model of this package, read from its modules."""
    base, config = model.base_model, model.config
    prefix = "" if base is model else f"{model.base_model_prefix}."
    stacks = tuple(
        describe_stack(stack, f"{prefix}{name}", config)
        for name, stack in base.named_children()
        if name in ("encoder", "decoder")
    )
    shared = getattr(base, "shared", None)
    head_name = next((name for name in HEADS if hasattr(model, name)), None)
    head = describe_head(model, head_name) if head_name else None
    length = "target_len" if len(stacks) == 2 else "length"
    pooled = type(model).__name__.endswith("ForSequenceClassification")
    if head_name is None:
        output = ("last_hidden_state", f"[batch, {length}, {config.d_model:,}]")
    elif head_name == "qa_outputs":
        output = (HEADS[head_name], f"[batch, {length}] each")
    else:
        width = getattr(model, head_name).out_features
        output = (HEADS[head_name], f"[batch, {width:,}]" if pooled else f"[batch, {length}, {width:,}]")
    return Architecture(
        title=type(model).__name__,
        count=sum(parameter.numel() for parameter in model.parameters()),
        pre_norm=config.norm_order == "pre",
        facts=facts(config),
        stacks=stacks,
        shared=None if shared is None else describe_embedding(shared, f"{prefix}shared", "Shared embedding"),
        head=head,
        pooled=pooled,
        output=output,
        tied=tied_names(model),
    )


def facts(config: RandomTransformerConfig) -> tuple[str, ...]:
    """Sizes and options, one line each."""
    order = {"post": "post-norm: LayerNorm(x + sublayer(x))", "pre": "pre-norm: x + sublayer(LayerNorm(x))"}
    rates = {"dropout": config.dropout, "attention": config.attention_dropout, "activation": config.activation_dropout}
    used = ", ".join(f"{name} {rate:g}" for name, rate in rates.items() if rate or name == "dropout")
    return (
        f"d_model {config.d_model:,}, d_ff {config.d_ff:,}",
        f"{config.num_heads} heads, d_k {config.d_k}, d_v {config.d_v}",
        f"vocabulary of {config.vocab_size:,} tokens",
        order[config.norm_order],
        used,
    )


def tied_names(model: nn.Module) -> tuple[str, ...]:
    """The modules whose weight is one tensor, as names in the model. At most one tensor is shared in this package."""
    modules: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        modules.setdefault(id(parameter), []).append(name.removesuffix(".weight"))
    return next((tuple(names) for names in modules.values() if len(names) > 1), ())


def describe_stack(stack: Any, path: str, config: RandomTransformerConfig) -> Stack:
    """The blocks of an encoder or a decoder, from input to output."""
    name = path.rpartition(".")[2]
    target = name == "decoder" and config.is_encoder_decoder
    length = "length" if not config.is_encoder_decoder else "target_len" if target else "source_len"
    first = stack.layers[0]
    embedding = describe_embedding(stack.embed_tokens, f"{path}.embed_tokens", "Token embedding")
    scaling = f"times √{config.d_model:,}" if config.scale_embedding else "not scaled"
    return Stack(
        name=name,
        path=path,
        class_name=type(stack).__name__,
        inputs=("decoder_input_ids" if target else "input_ids", f"[batch, {length}]"),
        embedding=Block(**{**vars(embedding), "name": "embed_tokens", "note": scaling}),
        positions=describe_positions(stack.embed_positions, path, config),
        layers=len(stack.layers),
        layer_count=sum(parameter.numel() for parameter in first.parameters()),
        sub_layers=tuple(describe_sub_layers(first, f"{path}.layers.0")),
        final_norm=None
        if isinstance(stack.layer_norm, nn.Identity)
        else describe_norm(stack.layer_norm, "layer_norm", f"{path}.layer_norm"),
    )


def describe_embedding(module: nn.Embedding, path: str, title: str) -> Block:
    shape = f"{module.num_embeddings:,} × {module.embedding_dim:,}"
    return Block("embedding", title, path, (("weight", shape),), *numbers({path: module}))


def describe_positions(module: nn.Module | None, path: str, config: RandomTransformerConfig) -> Block | None:
    if module is None:
        return None
    note = "sinusoidal"
    if isinstance(module, nn.Embedding):
        note = f"{module.num_embeddings:,} × {module.embedding_dim:,}"
    elif config.sinusoid_layout != "interleaved":
        note = f"{config.sinusoid_layout} sinusoids"
    parameters, count = numbers({f"{path}.embed_positions": module})
    return Block("positions", "Positions", "embed_positions", (), parameters, count, note)


def describe_sub_layers(layer: Any, path: str) -> Iterable[SubLayer]:
    """The sub-layers of a layer in the order of its `forward`."""
    for name in ("self_attn", "encoder_attn"):
        if hasattr(layer, name):
            norm_name = f"{name}_layer_norm"
            yield SubLayer(
                describe_attention(getattr(layer, name), name, f"{path}.{name}"),
                describe_norm(getattr(layer, norm_name), norm_name, f"{path}.{norm_name}"),
                from_encoder=name == "encoder_attn",
            )
    activation = type(layer.activation_fn).__name__
    feed_forward = Block(
        "feed_forward",
        "Feed-forward network",
        "",
        (("fc1", linear_shape(layer.fc1)), ("activation_fn", activation), ("fc2", linear_shape(layer.fc2))),
        *numbers({f"{path}.{name}": getattr(layer, name) for name in ("fc1", "activation_fn", "fc2")}),
    )
    norm = describe_norm(layer.final_layer_norm, "final_layer_norm", f"{path}.final_layer_norm")
    yield SubLayer(feed_forward, norm)


def describe_attention(attention: Any, name: str, path: str) -> Block:
    """Queries, keys and values of all heads; `8 × 64` is the width of eight heads of 64."""
    config = attention.config
    heads = {"q_proj": config.d_k, "k_proj": config.d_k, "v_proj": config.d_v}
    order = ("k_proj", "v_proj", "q_proj") if name == "encoder_attn" else tuple(heads)
    shapes = [
        (part, f"{getattr(attention, part).in_features:,} → {config.num_heads} × {heads[part]}") for part in order
    ]
    shapes.append(("out_proj", f"{config.num_heads} × {config.d_v} → {attention.out_proj.out_features:,}"))
    title = "Cross-attention" if name == "encoder_attn" else "Self-attention"
    if attention.is_causal:
        title = "Masked self-attention"
    default = attention.scaling == config.d_k**-0.5
    scale = f" / √{config.d_k}" if default else f" · {attention.scaling:.4g}"
    formula = f"softmax(Q·Kᵀ{scale})·V in {config.num_heads} head{'s' if config.num_heads > 1 else ''}"
    return Block("attention", title, name, tuple(shapes), *numbers({path: attention}), formula)


def describe_norm(module: Any, name: str, path: str) -> Block:
    return Block("norm", "LayerNorm", name, (), *numbers({path: module}))


def describe_head(model: Any, name: str) -> Block:
    """The output layer of a task head."""
    layer = getattr(model, name)
    return Block("output", "Linear", name, (("weight", linear_shape(layer)),), *numbers({name: layer}))


def linear_shape(layer: Any) -> str:
    return f"{layer.in_features:,} → {layer.out_features:,}"


def numbers(modules: dict[str, nn.Module]) -> tuple[tuple[str, ...], int]:
    """The full names of the parameters of some modules, and how many numbers they have."""
    found = {f"{path}.{name}": value for path, module in modules.items() for name, value in module.named_parameters()}
    return tuple(found), sum(value.numel() for value in found.values())

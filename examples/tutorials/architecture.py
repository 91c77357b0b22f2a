"""Figure 1 of the paper for a model of this package, as an SVG: names, shapes and parameter counts of its modules.

A stack is a column of boxes from its input at the bottom to its output. Coordinates are pixels; y grows downwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from textwrap import wrap
from typing import Any

import torch
from torch import nn

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer import modeling_random_transformer as models
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from modeling_random_transformer.inference.loading import read_model_config

WIDTH, ROW = 330, 17  # width of the boxes, height of a line of text
SIDE, GAP = 60, 90  # beside the boxes, for residual connections and frames; between two stacks
TEMPLATE = Path(__file__).with_suffix(".svg")
# The output layers of the task heads: name and shape of the result.
HEADS = {
    "lm_head": ("logits", "[batch, {length}, {width:,}]"),
    "score": ("logits", "[batch, {length}, {width:,}]"),
    "qa_outputs": ("start and end logits", "[batch, {length}] each"),
}

CROSS_ATTENTION = "Cross-attention"
Rows = list[tuple[str, str]]  # the text of a box: at its left and its right edge, by line


def model_without_weights(folder: Path) -> nn.Module:
    """A saved model on the meta device. Only its config.json is read.

    Raises:
        ValueError: the configuration is invalid or names no class of this package.
    """
    read_model_config(folder)
    config = RandomTransformerConfig.from_pretrained(folder)
    (name, *_) = config.architectures or [MODEL_CLASSES["AutoModelForSeq2SeqLM"]]
    if name not in MODEL_CLASSES.values():
        raise ValueError(f"architectures must contain one of {', '.join(MODEL_CLASSES.values())}, got {name!r}.")
    with torch.device("meta"):
        return getattr(models, name)(config)


def draw(model: Any) -> str:
    """The figure of a model of this package as the text of an SVG file. Its weights are not used."""
    base, tied = model.base_model, tied_names(model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    stacks = {f"{prefix}{name}": stack for name, stack in base.named_children() if name in ("encoder", "decoder")}
    elements: list[str] = []
    columns = [Column(elements, index * (WIDTH + 2 * SIDE + GAP), index == 1) for index in range(len(stacks))]
    for column, (path, stack) in zip(columns, stacks.items(), strict=True):
        draw_stack(column, path, stack, f"{path}.embed_tokens" in tied)
    if len(columns) == 2:
        connect(columns[0], columns[1], model.config.d_model)
    draw_head(columns[-1], model, tied)
    header = header_lines(model, tied)
    lines = [line for text in header for line in wrap(text, 60)]
    top = min(columns[0].y - 24 - 20 * len(lines), columns[-1].y - 20)
    for index, line in enumerate(lines):
        columns[0].text(20, top + 30 + 20 * index, line, "" if index else "heading")
    described = [f"{path}: {stack_text(stack)}" for path, stack in stacks.items()]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(header[0]),
        description=escape("; ".join([*described, *header])),
        top=f"{top:g}",
        width=f"{columns[-1].left + WIDTH + 2 * SIDE:g}",
        height=f"{64 - top:g}",
        elements="\n".join(elements),
    )


def header_lines(model: Any, tied: list[str]) -> list[str]:
    """The class, sizes and options of a model; tied weights count once."""
    config = model.config
    order = {"post": "post-norm: LayerNorm(x + sublayer(x))", "pre": "pre-norm: x + sublayer(LayerNorm(x))"}
    rates = {"dropout": config.dropout, "attention": config.attention_dropout, "activation": config.activation_dropout}
    return [
        type(model).__name__,
        f"{count(model)} parameters (in the boxes on the right)",
        f"d_model {config.d_model:,}, d_ff {config.d_ff:,}, vocabulary of {config.vocab_size:,} tokens",
        f"{config.num_heads} heads, d_k {config.d_k}, d_v {config.d_v}",
        order[config.norm_order],
        ", ".join(f"{name} {rate:g}" for name, rate in rates.items() if rate or name == "dropout"),
        *([f"tied weights: {', '.join(tied)}"] if tied else []),
    ]


def tied_names(model: nn.Module) -> list[str]:
    """The modules whose weight is one tensor, as names in the model. At most one tensor is shared in this package."""
    modules: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        modules.setdefault(id(parameter), []).append(name.removesuffix(".weight"))
    return next((names for names in modules.values() if len(names) > 1), [])


@dataclass
class Column:
    """Draws boxes upwards along the residual stream. `y` is the upper end of what is drawn.

    The decoder of an encoder-decoder is mirrored: the encoder's output enters it from the left.
    """

    elements: list[str]
    left: float
    mirrored: bool
    y: float = 0
    memory_y: float = 0  # height at which the encoder's keys and values enter cross-attention

    @property
    def x(self) -> float:
        return self.left + SIDE + WIDTH / 2

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Text at a baseline; `x` is relative to the column."""
        place = f'x="{self.left + x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.elements.append(f'<text {place} class="{style}">{escape(text)}</text>')

    def line(self, *points: tuple[float, float], arrow: bool = False) -> None:
        path = "L".join(f"{x:g},{y:g}" for x, y in points)
        self.elements.append(f'<path d="M{path}"' + (' marker-end="url(#arrow)"/>' if arrow else "/>"))

    def go_up(self, height: float, arrow: bool = False) -> None:
        self.line((self.x, self.y), (self.x, self.y - height), arrow=arrow)
        self.y -= height

    def box(self, style: str, rows: Rows) -> None:
        """A box of lines of text, of which the first is the title, with an arrow to it."""
        self.go_up(16, arrow=True)
        if rows[0][0] == CROSS_ATTENTION:
            self.memory_y = self.y - ROW - 4  # between the keys and the values
        self.y -= ROW * len(rows) + 8
        self.frame(style, self.y, ROW * len(rows) + 8, SIDE, len(self.elements), rows)

    def frame(self, style: str, top: float, height: float, left: float, position: int, rows: Rows) -> None:
        """A rectangle before the element at a position, and its text."""
        place = f'x="{self.left + left:g}" y="{top:g}" width="{WIDTH + 2 * (SIDE - left):g}" height="{height:g}"'
        self.elements.insert(position, f'<rect class="{style}" {place} rx="5"/>')
        for index, (name, value) in enumerate(rows):
            y = top + ROW * (index + 1)
            self.text(left + 10, y, name, "name" if index else "bold")
            self.text(WIDTH + 2 * SIDE - left - 10, y, value, "name" if index else "", "end")

    def sub_layer(self, style: str, rows: Rows, norm: Rows, pre_norm: bool) -> None:
        """A sub-layer with its residual connection, and its layer norm before it (pre-norm) or after the sum."""
        self.go_up(12)
        start = self.y
        if pre_norm:
            self.box("norm", norm)
        self.box(style, rows)
        self.go_up(14)
        self.y -= 9
        side = 1 if self.mirrored else -1
        outside = self.x + side * (WIDTH / 2 + 20)
        self.line((self.x, start), (outside, start), (outside, self.y), (self.x + side * 9, self.y), arrow=True)
        self.elements.append(f'<circle cx="{self.x:g}" cy="{self.y:g}" r="9"/>')
        self.line((self.x - 5, self.y), (self.x + 5, self.y))
        self.line((self.x, self.y - 5), (self.x, self.y + 5))
        self.y -= 9
        if not pre_norm:
            self.box("norm", norm)


def draw_stack(column: Column, path: str, stack: Any, tied: bool) -> None:
    """An encoder or a decoder, from its input to its output."""
    config, layer, position = stack.config, stack.layers[0], len(column.elements)
    target = path.endswith("decoder") and config.is_encoder_decoder
    length = "length" if not config.is_encoder_decoder else "target_len" if target else "source_len"
    column.text(SIDE + WIDTH / 2, 48, f"[batch, {length}]", "name", "middle")
    column.text(SIDE + WIDTH / 2, 32, "decoder_input_ids" if target else "input_ids", "bold", "middle")
    bottom = column.y = 16
    column.box("embedding", embedding_rows(stack, tied))
    if stack.embed_positions is not None:
        column.box("positions", position_rows(stack.embed_positions, config))
    inner = len(column.elements)
    column.go_up(24)
    start = column.y + 8
    for name, rows in sub_layers(layer):
        norm_name = "final_layer_norm" if name == "feed-forward" else f"{name}_layer_norm"
        style = "feed-forward" if name == "feed-forward" else "attention"
        column.sub_layer(style, rows, norm_rows(layer, norm_name), config.norm_order == "pre")
    column.go_up(30)
    numbers = "layers.0" if len(stack.layers) == 1 else f"layers.0 … {len(stack.layers) - 1}"
    title = [(f"{len(stack.layers)} × {numbers}", f"{count(layer)} each")]
    column.frame("layers", column.y, start - column.y, 26, inner, title)
    if isinstance(stack.layer_norm, nn.LayerNorm):
        column.box("norm", norm_rows(stack, "layer_norm"))
    column.go_up(36)
    column.frame("stack", column.y, bottom - 8 - column.y, 12, position, [(path, type(stack).__name__)])


def sub_layers(layer: Any) -> Iterator[tuple[str, Rows]]:
    """The name and the text of each sub-layer, in the order of `forward`."""
    for name in ("self_attn", "encoder_attn"):
        if hasattr(layer, name):
            yield name, attention_rows(getattr(layer, name), name)
    shapes = [
        ("fc2", shape(layer.fc2)),
        ("activation_fn", type(layer.activation_fn).__name__),
        ("fc1", shape(layer.fc1)),
    ]
    yield "feed-forward", [("Feed-forward network", count(layer.fc1, layer.activation_fn, layer.fc2)), *shapes]


def attention_rows(attention: Any, name: str) -> Rows:
    """Queries, keys and values of all heads; `8 × 64` is the width of eight heads of 64."""
    config = attention.config
    title = CROSS_ATTENTION if name == "encoder_attn" else "Self-attention"
    default = attention.scaling == config.d_k**-0.5
    scale = f" / √{config.d_k}" if default else f" · {attention.scaling:.4g}"
    heads = f"{config.num_heads} head{'s' if config.num_heads > 1 else ''}"
    widths = {"q_proj": config.d_k, "k_proj": config.d_k, "v_proj": config.d_v}
    return [
        ("Masked self-attention" if attention.is_causal else title, count(attention)),
        (name, f"softmax(Q·Kᵀ{scale})·V in {heads}"),
        ("out_proj", f"{config.num_heads} × {config.d_v} → {attention.out_proj.out_features:,}"),
        *((part, f"{config.d_model:,} → {config.num_heads} × {width}") for part, width in widths.items()),
    ]


def embedding_rows(stack: Any, tied: bool) -> Rows:
    table, config = stack.embed_tokens, stack.config
    scaling = f"times √{config.d_model:,}" if config.scale_embedding else "not scaled"
    title = ("Token embedding", count(table) + ", tied" * tied)
    return [title, ("embed_tokens", f"{table.num_embeddings:,} × {table.embedding_dim:,}, {scaling}")]


def position_rows(positions: nn.Module, config: RandomTransformerConfig) -> Rows:
    if isinstance(positions, nn.Embedding):
        kind = f"learned, {positions.num_embeddings:,} × {positions.embedding_dim:,}"
    else:
        kind = "sinusoidal" if config.sinusoid_layout == "interleaved" else f"{config.sinusoid_layout} sinusoids"
    return [("+ positions", count(positions)), ("embed_positions", kind)]


def norm_rows(parent: Any, name: str) -> Rows:
    return [(f"LayerNorm {name}", count(getattr(parent, name)))]


def shape(layer: Any) -> str:
    return f"{layer.in_features:,} → {layer.out_features:,}"


def count(*modules: nn.Module) -> str:
    """The number of parameters."""
    return f"{sum(parameter.numel() for module in modules for parameter in module.parameters()):,}"


def connect(encoder: Column, decoder: Column, d_model: int) -> None:
    """The encoder's output to the keys and values of the decoder's cross-attention."""
    lane = decoder.left - GAP / 2
    encoder.text(SIDE + WIDTH / 2 + 10, encoder.y - 8, f"last_hidden_state [batch, source_len, {d_model:,}]", "name")
    points = [(encoder.x, encoder.y), (lane, encoder.y), (lane, decoder.memory_y)]
    encoder.line(*points, (decoder.left + SIDE, decoder.memory_y), arrow=True)


def draw_head(column: Column, model: Any, tied: list[str]) -> None:
    """What follows the last stack: the mean over the tokens for classes of sequences, the output layer, the result."""
    length = "target_len" if model.config.is_encoder_decoder else "length"
    name = next((name for name in HEADS if hasattr(model, name)), None)
    result, size = "last_hidden_state", f"[batch, {length}, {model.config.d_model:,}]"
    if name is not None:
        layer, pooled = getattr(model, name), type(model).__name__.endswith("ForSequenceClassification")
        if pooled:
            column.box("positions", [("mean over tokens", "0")])
        column.box("output", [("Linear", count(layer) + ", tied" * (name in tied)), (name, shape(layer))])
        result, size = HEADS[name]
        size = ("[batch, {width:,}]" if pooled else size).format(length=length, width=layer.out_features)
    column.go_up(20, arrow=True)
    column.text(SIDE + WIDTH / 2, column.y - 24, result, "bold", "middle")
    column.text(SIDE + WIDTH / 2, column.y - 8, size, "name", "middle")
    column.y -= 36


def stack_text(stack: Any) -> str:
    """A stack in words."""
    titles = ", ".join(rows[0][0].lower() for _, rows in sub_layers(stack.layers[0]))
    return f"token embedding, positions, {len(stack.layers)} layers of {titles}"

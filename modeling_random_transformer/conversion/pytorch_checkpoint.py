"""Reads checkpoints with an `nn.Transformer`, and runs the original model for comparison."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..modeling_random_transformer import sinusoids
from ..utils.errors import format_names
from .pytorch_options import TorchOptions
from .safe_loading import is_state_dict, read_checkpoint
from .state_dict_mapper import StateDictMapper

POSITIONS = ("none", "sinusoidal", "concatenated")
# One weight, or two: for the source and for the target.
OneOrTwo = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TorchCheckpoint:
    """The weights of a checkpoint, in the form that `from_torch_transformer` expects."""

    transformer: dict[str, Tensor]
    embedding: OneOrTwo
    output: nn.Linear | None
    positions: str | OneOrTwo


def read_torch_checkpoint(
    checkpoint: str | Path,
    *,
    embedding: Sequence[str],
    output_layer: str | None = None,
    positions: Sequence[str] = ("none",),
    prefix: str = "",
    key: str | None = None,
    ignore: Sequence[str] = (),
) -> TorchCheckpoint:
    """Read a checkpoint whose weights have these names. Arguments are those of `convert_torch_transformer`.

    Raises:
        ValueError: the file cannot be read, a name is missing, or a weight in the file is not named.
    """
    content = read_checkpoint(checkpoint)
    weights: Any = content.get(key) if key and isinstance(content, dict) else content
    if not is_state_dict(weights):
        found = format_names(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"key must name the state dict in {checkpoint}, got {key!r}; the file contains {found}.")
    mapper = StateDictMapper(str(checkpoint), weights)
    mapper.ignore(ignore, "ignored on request")
    tables = () if positions[0] in POSITIONS else positions
    embeddings = one_or_two([mapper.peek(name, dims=2) for name in embedding])
    position_tables = one_or_two([mapper.peek(name) for name in tables]) if tables else positions[0]
    output = read_linear(mapper, output_layer) if output_layer else None
    named = {*embedding, *tables, f"{output_layer}.weight", f"{output_layer}.bias"}
    others = {name: weight for name, weight in mapper.remaining.items() if name not in named}
    unexpected = [name for name in others if not name.startswith(prefix)]
    if unexpected:
        raise ValueError(
            f"{checkpoint} must contain only weights under {prefix!r} and named ones, got {format_names(unexpected)}."
        )
    transformer = {name.removeprefix(prefix): weight for name, weight in others.items()}
    return TorchCheckpoint(transformer, embeddings, output, position_tables)


def read_linear(mapper: StateDictMapper, name: str) -> nn.Linear:
    weight = mapper.peek(f"{name}.weight", dims=2)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in mapper.remaining, device="meta")
    linear.weight = nn.Parameter(weight)
    if linear.bias is not None:
        linear.bias = nn.Parameter(mapper.peek(f"{name}.bias", dims=1))
    return linear


def one_or_two(values: list[Tensor]) -> OneOrTwo:
    if len(values) not in (1, 2):
        raise ValueError(f"embedding and positions must have one name or two (source, target), got {len(values)}.")
    return values[0] if len(values) == 1 else (values[0], values[1])


class TorchReference:
    """An `nn.Transformer` with the weights of a checkpoint, embeddings, positions and output layer.

    Computes the reference logits for a conversion.
    """

    def __init__(self, checkpoint: TorchCheckpoint, options: TorchOptions, scale_embedding: bool):
        self.checkpoint = checkpoint
        self.source, self.target = as_pair(checkpoint.embedding)
        d_model = self.source.shape[1]
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.transformer = build_transformer(checkpoint.transformer, d_model, options).eval()

    @property
    def vocabularies(self) -> tuple[int, int]:
        """The sizes of the source and the target vocabulary."""
        return len(self.source), len(self.target)

    def embed(self, table: Tensor, ids: Tensor, stack: int) -> Tensor:
        """Embed ids, `[batch, length]` → `[batch, length, d_model]`, for the encoder (stack 0) or the decoder (1)."""
        states, length, positions = table[ids] * self.scale, ids.shape[1], self.checkpoint.positions
        if not isinstance(positions, str):
            return states + as_pair(positions)[stack].squeeze()[:length]
        if positions == "none":
            return states
        layout = "interleaved" if positions == "sinusoidal" else positions
        return states + sinusoids(torch.arange(length), states.shape[-1], layout)

    def __call__(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Ids and padding mask, `[batch, source_len]`, and target ids → logits, `[batch, target_len, vocabulary]`."""
        states = self.transformer(
            self.embed(self.source, ids, 0),
            self.embed(self.target, target, 1),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0,
            src_key_padding_mask=mask == 0,
            memory_key_padding_mask=mask == 0,
        )
        output = self.checkpoint.output
        return states @ self.target.T if output is None else output(states)


def as_pair(value: OneOrTwo) -> tuple[Tensor, Tensor]:
    return value if isinstance(value, tuple) else (value, value)


def build_transformer(weights: dict[str, Tensor], d_model: int, options: TorchOptions) -> nn.Transformer:
    """Build an `nn.Transformer` with the sizes of these weights and load them."""
    mapper = StateDictMapper("nn.Transformer", weights)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor")  # warnings about an unused fast path
        transformer = nn.Transformer(
            d_model=d_model,
            nhead=options.num_heads,
            num_encoder_layers=mapper.count_layers("encoder"),
            num_decoder_layers=mapper.count_layers("decoder"),
            dim_feedforward=len(weights["encoder.layers.0.linear1.weight"]),
            activation=options.activation,
            layer_norm_eps=options.layer_norm_eps,
            batch_first=True,
            norm_first=options.norm_first,
            bias="encoder.layers.0.linear1.bias" in weights,
        )
    if "encoder.norm.weight" not in weights:
        transformer.encoder.norm = transformer.decoder.norm = None
    transformer.load_state_dict(weights)
    return transformer

"""Weights on their way from another implementation's names to ours, each taken once and none forgotten."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..configuration_random_transformer import RandomTransformerConfig
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration, sinusoids
from .report import DerivedField, MappedWeight, Report

LAYOUTS = ("interleaved", "concatenated")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SAME_SINUSOIDS = 1e-6  # the same formula, computed in another order


class Transfer:
    """A state dict of ours in the making.

    Args:
        origin: what the weights come from, as error messages name it.
        source: the original's weights by their names there.
        kind: the same for the report, in words; `origin` when `None`.
    """

    def __init__(self, origin: str, source: Mapping[str, Tensor], kind: str | None = None):
        self.origin = origin
        self.left = dict(source)
        self.state: dict[str, Tensor] = {}
        self.sources: dict[str, str] = {}
        self.fields: dict[str, Any] = {}
        self.report = Report(kind or origin)

    def look(self, name: str, dims: int | None = None) -> Tensor:
        """The original's weight of this name.

        Raises:
            ValueError: there is none, it is not a plain tensor of floating-point numbers, or it has not so many
                dimensions.
        """
        if name not in self.left:
            raise ValueError(f"{self.origin} must hold the weight {name!r}, which is missing.")
        weight = self.left[name].detach()
        check_plain(f"{name} of {self.origin}", weight)
        if dims is not None and weight.dim() != dims:
            raise ValueError(f"{name} of {self.origin} must have {dims} dimensions, got {list(weight.shape)}.")
        return weight

    def take(self, name: str, dims: int | None = None) -> Tensor:
        """As `look`, and the weight is no longer left."""
        weight = self.look(name, dims)
        del self.left[name]
        return weight

    def move(self, name: str, *targets: str) -> None:
        """Take over a weight; with several targets each gets an equal part of its rows, in this order.

        Raises:
            ValueError: the weight is missing, or its rows cannot be divided.
        """
        weight = self.take(name)
        if not weight.dim() or len(weight) % len(targets):
            raise ValueError(
                f"{name} of {self.origin} must have a multiple of {len(targets)} rows, got {list(weight.shape)}."
            )
        how = "as it is" if len(targets) == 1 else "split"
        for part, target in zip(weight.chunk(len(targets)), targets, strict=True):
            self.put(name, target, part, how)

    def put(self, name: str, target: str, weight: Tensor, how: str) -> None:
        """Have `weight`, made from the original's `name`, become our `target`."""
        # A copy, so that training one model does not change the other.
        self.state[target] = weight.clone(memory_format=torch.contiguous_format)
        self.sources[target] = name
        self.report.mapped.append(MappedWeight(name, target, tuple(weight.shape), how))

    def fill(self, target: str, weight: Tensor, what: str) -> None:
        """Give our `target` a value that the original implies without storing it."""
        self.state[target] = weight
        self.report.filled[target] = what

    def leave(self, names: Iterable[str], why: str) -> None:
        """Do without these weights, where they are there."""
        for name in list(names):
            if self.left.pop(name, None) is not None:
                self.report.unused[name] = why

    def derive(self, source: str, **fields: Any) -> None:
        """Set config fields, which follow from `source`."""
        self.fields.update(fields)
        self.report.config.update({name: DerivedField(value, source) for name, value in fields.items()})

    def move_positions(self, encoder: str, decoder: str) -> None:
        """Take over position tables, `[length, d_model]`: as sinusoids where they are ours, else as learned ones.

        The names may be the same, for a table that both stacks use.

        Raises:
            ValueError: a table is missing.
        """
        tables = [self.look(name, dims=2) for name in (encoder, decoder)]
        self.left = {name: weight for name, weight in self.left.items() if name not in (encoder, decoder)}
        for layout in LAYOUTS:
            if all(are_sinusoids(table, layout) for table in tables):
                names = f"the tables {encoder} and {decoder}, computed again"
                self.derive(names, position_embedding="sinusoidal", sinusoid_layout=layout)
                self.derive("their length", max_position_embeddings=max(map(len, tables)))
                self.report.unused.update(dict.fromkeys((encoder, decoder), "sinusoids, which are computed"))
                return
        length = min(map(len, tables))
        self.derive(f"the tables {encoder} and {decoder}, which are not our sinusoids", position_embedding="learned")
        self.derive("the length of the shorter of them", max_position_embeddings=length)
        for name, table, stack in zip((encoder, decoder), tables, ("encoder", "decoder"), strict=True):
            self.put(name, f"model.{stack}.embed_positions.weight", table[:length], "as it is")

    def finish(self, **fields: Any) -> RandomTransformerForConditionalGeneration:
        """The model, in evaluation mode, of the widest of the weights' dtypes: none of them is rounded.

        Raises:
            ValueError: a weight of the original is left over, one of ours has none, or one has another shape.
        """
        if self.left:
            raise ValueError(f"{self.origin} must hold no weights that this model has not, got {some(self.left)}.")
        config = RandomTransformerConfig(**self.fields, **fields)
        self.check_shapes(config)
        dtypes = dict.fromkeys(weight.dtype for weight in self.state.values())
        dtype = reduce(torch.promote_types, dtypes)
        if len(dtypes) > 1:
            self.report.notes.append(f"Weights of {some(map(str, dtypes))} became {dtype}, in which all are exact.")
        state = {name: weight.to(dtype) for name, weight in self.state.items()}
        return RandomTransformerForConditionalGeneration.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype
        )

    def check_shapes(self, config: RandomTransformerConfig) -> None:
        with torch.device("meta"):
            wanted = dict(RandomTransformerForConditionalGeneration(config).named_parameters())
        lacking, unknown = wanted.keys() - self.state.keys(), self.state.keys() - wanted.keys()
        if lacking or unknown:
            raise ValueError(f"{self.origin} must hold all weights of this model, got none for {some(lacking)}.")
        for name, weight in self.state.items():
            if weight.shape != wanted[name].shape:
                raise ValueError(
                    f"{self.sources.get(name, name)} of {self.origin} must have the shape of {name}, "
                    f"{list(wanted[name].shape)}, got {list(weight.shape)}."
                )


def check_plain(name: str, weight: Tensor) -> None:
    """Raise a `ValueError` unless a tensor holds floating-point numbers, each of them stored.

    An expanded tensor is a few numbers in a file and may be of any size in memory.
    """
    kind = None
    if weight.is_nested or weight.layout != torch.strided:
        kind = "a nested tensor" if weight.is_nested else f"one of layout {weight.layout}"
    elif weight.dtype not in DTYPES:  # such as those of quantized weights
        kind = f"one of {weight.dtype}"
    elif weight.is_meta:
        kind = "one on the meta device, without values"
    elif weight.untyped_storage().nbytes() < weight.numel() * weight.element_size():
        kind = f"one expanded to {list(weight.shape)}"
    if kind is not None:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"{name} must be a dense tensor of {allowed}, got {kind}.")


def are_sinusoids(table: Tensor, layout: str) -> bool:
    """Whether a position table, `[length, d_model]`, is what our formula gives."""
    length, d_model = table.shape
    if d_model % 2:
        return False
    ours = sinusoids(torch.arange(length), d_model, layout).to(table.dtype)
    return torch.allclose(ours.float(), table.float().cpu(), rtol=0, atol=SAME_SINUSOIDS)


def some(names: Iterable[str], shown: int = 5) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - shown} more" if len(ordered) > shown else ""
    return ", ".join(map(repr, ordered[:shown])) + more


def count_layers(transfer: Transfer, stack: str) -> int:
    """How many layers have weights under `<stack>.layers.`.

    Raises:
        ValueError: there are none.
    """
    prefix = f"{stack}.layers."
    numbers = [name.removeprefix(prefix).split(".")[0] for name in transfer.left if name.startswith(prefix)]
    count = max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)
    if not count:
        raise ValueError(f"{transfer.origin} must hold weights under {prefix!r}, got none.")
    return count

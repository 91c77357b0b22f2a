"""The report of a conversion: the use of each weight, the origin of each config field, and the difference of logits."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.errors import format_value, printable

# The index of a layer in the name of a weight: of this model and most others, or of Marian.
LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)|(?<=coder_l)\d+(?=_)")
SOURCE_LENGTHS = (9, 5, 1)  # of the sources of a batch; two of three are padded

# Maps source ids and their padding mask, [batch, source_len], and target ids, [batch, target_len], to logits,
# [batch, target_len, target_vocabulary].
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class MappedWeight:
    """A source weight and the parameter that it was mapped to. A split source weight has several entries."""

    source: str
    target: str
    shape: tuple[int, ...]
    how: str = "copied"


@dataclass(frozen=True)
class DerivedField:
    """A field of `RandomTransformerConfig` and what it was derived from."""

    value: Any
    source: str


@dataclass
class ConversionReport:
    """The result of a conversion, weight by weight and field by field.

    Attributes:
        origin: the converted model.
        mapped: converted weights, in the order of the source's state dict.
        defaults: parameters without a source weight, and how their values were chosen.
        unused: source weights that were dropped, and why the outputs do not depend on them.
        config: the derived config fields.
        notes: additional remarks.
    """

    origin: str
    mapped: list[MappedWeight] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    config: dict[str, DerivedField] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for each weight, field and note."""
        lines = [f"{self.origin}: {len(self.mapped)} weights"]
        lines += [f"  {m.source} -> {m.target} {list(m.shape)} ({m.how})" for m in self.mapped]
        lines += [f"  default -> {name} ({reason})" for name, reason in self.defaults.items()]
        lines += [f"  {name} -> unused ({reason})" for name, reason in self.unused.items()]
        lines += [f"  config.{name} = {derived.value!r} ({derived.source})" for name, derived in self.config.items()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def report_tables(report: ConversionReport) -> Any:
    """The report as rich tables of weights and config fields, then the notes.

    Layers that were converted alike share one row.
    """
    from rich.console import Group  # an optional dependency
    from rich.table import Column, Table

    def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        # Columns that wrap long names instead of truncating them.
        found = Table(*(Column(header, overflow="fold") for header in headers), title=title, title_justify="left")
        for row in rows:
            found.add_row(*row)
        return found

    weights = [
        *group_layers(report.mapped),
        *(("—", name, "", reason) for name, reason in report.defaults.items()),
        *((name, "—", "", reason) for name, reason in report.unused.items()),
    ]
    fields = [(name, format_value(derived.value), derived.source) for name, derived in report.config.items()]
    return Group(
        table(f"{report.origin}: weights", ("source", "target", "shape", "how"), weights),
        table("config", ("field", "value", "derived from"), fields),
        *(f"• {printable(note)}" for note in report.notes),
    )


def group_layers(mapped: list[MappedWeight]) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table of weights. Rows that differ only in the layer index are merged into a range, as `0–5`."""
    layers: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for weight in mapped:
        names = (weight.source, weight.target)
        source, target = (LAYER.sub("{}", name, count=1) for name in names)
        source_index, target_index = (match[0] if (match := LAYER.search(name)) else "" for name in names)
        row = (source, target, " × ".join(map(str, weight.shape)), weight.how)
        layers.setdefault(row, []).append((source_index, target_index))
    for (source, target, shape, how), indices in layers.items():
        ordered = sorted(indices, key=lambda pair: int(pair[0] or 0))
        spans = [
            first if first == last else f"{first}–{last}" for first, last in zip(ordered[0], ordered[-1], strict=True)
        ]
        yield source.replace("{}", spans[0]), target.replace("{}", spans[1]), shape, how


@torch.no_grad()
def largest_difference(
    model: RandomTransformerForConditionalGeneration,
    original: Logits,
    batches: int = 3,
    target_len: int = 7,
    vocabularies: tuple[int, int] | None = None,
    seed: int = 0,
) -> float:
    """The largest absolute difference between the logits of two models on random batches with padding.

    Args:
        model: the converted model, in evaluation mode.
        original: computes the logits of the original model.
        batches: number of batches, of three sources each.
        target_len: length of each target.
        vocabularies: sizes of the original's source and target vocabulary; `vocab_size` of the model when `None`.
        seed: random seed of the ids.
    """
    config = model.config
    pad = config.pad_token_id or 0
    sources, targets = vocabularies or (config.vocab_size, config.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    length = min(max(SOURCE_LENGTHS), config.max_position_embeddings)
    mask = (torch.arange(length) < torch.tensor(SOURCE_LENGTHS)[:, None]).long()
    differences = []
    for _ in range(batches):
        ids = random_tokens(sources, pad, mask.shape, generator).where(mask.bool(), torch.tensor(pad))
        target = random_tokens(targets, pad, (len(SOURCE_LENGTHS), min(target_len, length)), generator)
        ours = model(ids, mask, target).logits[..., :targets]
        differences.append((ours - original(ids, mask, target)).abs().max().item())
    return max(differences)


def random_tokens(vocabulary: int, pad: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random ids without padding. Models treat padding between tokens differently, but real inputs never have it."""
    ids = torch.randint(vocabulary, tuple(shape), generator=generator)
    return ids.where(ids != pad, torch.tensor((pad + 1) % vocabulary))

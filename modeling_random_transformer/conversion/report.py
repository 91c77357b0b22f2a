"""Conversion report: the use of each weight and the origin of each config field."""

from dataclasses import dataclass, field
from typing import Any


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

"""What a conversion did: which weight became which, what was left out, and where each config field came from."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MappedWeight:
    """A weight of the original and what it became here. Several rows have one `source` where it was split."""

    source: str
    target: str
    shape: tuple[int, ...]
    how: str = "as it is"


@dataclass(frozen=True)
class DerivedField:
    """A field of `RandomTransformerConfig` and what of the original it follows from."""

    value: Any
    source: str


@dataclass
class Report:
    """Everything that a conversion decided.

    Attributes:
        origin: what was converted, in words.
        mapped: the weights that were taken over, in the order of the original.
        filled: weights of ours that the original has not, and what was put there.
        unused: weights of the original that were not taken over, and why that changes nothing.
        config: the config fields that were derived, and from what.
        notes: what else to know before using the model.
    """

    origin: str
    mapped: list[MappedWeight] = field(default_factory=list)
    filled: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    config: dict[str, DerivedField] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for each weight, field and note."""
        lines = [f"{self.origin}: {len(self.mapped)} weights"]
        lines += [f"  {m.source} -> {m.target} {list(m.shape)} ({m.how})" for m in self.mapped]
        lines += [f"  nothing -> {name} ({why})" for name, why in self.filled.items()]
        lines += [f"  {name} -> nothing ({why})" for name, why in self.unused.items()]
        lines += [f"  config.{name} = {derived.value!r} ({derived.source})" for name, derived in self.config.items()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

"""The report of a cleaning run: counts and examples of what was dropped."""

from dataclasses import asdict, dataclass, field
from typing import Any

from .sources import Line

EXAMPLES = 3  # for each reason
SHOWN_CHARACTERS = 40  # of each text of the example in a table
CONTROL_CHARACTERS = dict.fromkeys(range(32), " ")


@dataclass
class CleaningReport:
    """The pairs that were kept and dropped.

    Args:
        name: name of the corpus.
        pairs: number of pairs that were read, valid or not.
        dropped: number of dropped pairs by reason.
        examples: the first dropped pairs by reason, with `line`, `source` and `target`; see `InvalidLine`.
        scripts: the scripts that were accepted, for source and target.
    """

    name: str
    pairs: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scripts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Number of pairs that were kept."""
        return self.pairs - sum(self.dropped.values())

    def add(self, line: Line, reason: str | None) -> None:
        """Count a line, which is dropped if there is a reason."""
        self.pairs += 1
        if reason is None:
            return
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append({"line": line.number, "source": line.source, "target": line.target})

    def to_dict(self) -> dict[str, Any]:
        """The report for a JSON file."""
        return {**asdict(self), "kept": self.kept}

    def __str__(self) -> str:
        """A table with a line for each reason."""
        title = f"{self.name}: kept {self.kept:,} of {self.pairs:,} pairs ({self._percent(self.kept)})"
        width = max(map(len, self.dropped), default=0)
        rows = [
            f"  {reason:{width}}  {count:>11,}  {self._percent(count):>7}  {_shown(self.examples[reason][0])}"
            for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
        ]
        return "\n".join([title, *rows])

    def _percent(self, count: int) -> str:
        return f"{count / max(1, self.pairs):.2%}"


def _shown(example: dict[str, Any]) -> str:
    texts = (text.translate(CONTROL_CHARACTERS) for text in (example["source"], example["target"]) if text)
    shown = [f"{text[:SHOWN_CHARACTERS]}…" if len(text) > SHOWN_CHARACTERS else text for text in texts]
    return f"line {example['line']}" + (f": {' ||| '.join(shown)}" if shown else "")

"""What is wrong with a corpus, told by line numbers."""

from dataclasses import dataclass, field

SHOWN = 10


@dataclass
class Report:
    """What is wrong with a corpus: how many lines of each kind, and the numbers of the first of them."""

    name: str
    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[int]] = field(default_factory=dict)

    def add(self, kind: str, line: int) -> None:
        """Note one more broken line, counted from 1."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        numbers = self.first.setdefault(kind, [])
        if len(numbers) < SHOWN:
            numbers.append(line)

    @property
    def broken(self) -> int:
        """How many lines are broken."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.name}: {self.lines:,} lines, none broken"
        kinds = [
            f"{count:,} {kind} (line {', '.join(map(str, self.first[kind]))}{', …' if count > SHOWN else ''})"
            for kind, count in self.counts.items()
        ]
        return f"{self.name}: {self.broken:,} of {self.lines:,} lines are broken: {'; '.join(kinds)}"

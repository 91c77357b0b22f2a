"""Whether an engine translates as the model does, and how fast each of them is."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..translation import longest_target
from .search import Translate, generating

BEAMS = (1, 4)
# For a model of whatever language: what it makes of them matters less than that the engine makes the same.
SENTENCES = (
    "Hello world.",
    "The boy sees the girl.",
    "We do not read these two books.",
    "Where does the tired waiter buy his red apples?",
    "She has written a long letter to her brother, who lives in the old house by the river.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young people are playing football in front of a crowd.",
    "I would like to know, before it is too late, whether the last train to the city has left.",
)


@dataclass(frozen=True)
class Comparison:
    """A model and an engine, side by side on the same sentences with so many beams."""

    num_beams: int
    sentences: int
    identical: int  # translations
    model_speed: float  # sentences a second, median
    engine_speed: float

    def __str__(self) -> str:
        return (
            f"{self.num_beams} beam{'s' if self.num_beams > 1 else ''}: {self.identical} of {self.sentences} "
            f"translations identical ({self.identical / self.sentences:.1%}); {self.engine_speed:.1f} sentences/s, "
            f"the model {self.model_speed:.1f}"
        )


def compare(
    model: Any,
    tokenizer: Any,
    engine: Translate,
    sentences: Sequence[str] = SENTENCES,
    *,
    beams: Sequence[int] = BEAMS,
    max_new_tokens: int = 128,
    rounds: int = 3,
) -> list[Comparison]:
    """Translate with the model and with an engine, in turn.

    Both search alike: without sampling, with a length penalty of 0.6, and until there are as many hypotheses as beams
    (`early_stopping=True`), which is CTranslate2's way to end.

    Args:
        model: any model that `translate` takes.
        tokenizer: its tokenizer.
        engine: what `load_engine` returns.
        sentences: what to translate. Blank ones are left out.
        beams: numbers of beams, each of which gives one result.
        max_new_tokens: limit on a translation's tokens. Where the model's positions end before, they are the limit.
        rounds: how often either translates everything for the median, after a first time that does not count.

    Raises:
        ValueError: there is nothing to translate.
    """
    written = [sentence for sentence in sentences if sentence.strip()]
    if not written:
        raise ValueError(f"sentences must have at least one that is not blank, got {len(sentences)} that are.")
    limit = longest_target(0, model.config, max_new_tokens)
    model_side = generating(model, tokenizer)

    def compared(num_beams: int) -> Comparison:
        sides = [lambda side=side: side(written, num_beams, limit) for side in (model_side, engine)]
        own, other = (side() for side in sides)
        identical = sum(a == b for a, b in zip(own, other, strict=True))
        seconds = [statistics.median(times) for times in in_turn(sides, rounds)]
        return Comparison(num_beams, len(written), identical, *(len(written) / median for median in seconds))

    return [compared(num_beams) for num_beams in beams]


def folder_size(folder: str | PathLike, pattern: str = "*") -> float:
    """Megabytes (of 10⁶ bytes) that the files in a folder have, those whose names match."""
    return sum(file.stat().st_size for file in Path(folder).rglob(pattern) if file.is_file()) / 1e6


def in_turn(sides: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds that each side takes in each round. Side by side in time, they meet the machine in the same mood."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, of_side in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            of_side.append(time.perf_counter() - start)
    return times

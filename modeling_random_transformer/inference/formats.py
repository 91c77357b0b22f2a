"""How candidates are written as lines of text."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from .translation import Candidate

FORMATS = ("text", "jsonl")


def candidate_format(output_format: str, n_best: int | None) -> Callable[[int, Sequence[Candidate]], list[str]]:
    """The function that writes the candidates of a text, with its index from 0, one per line.

    `"text"`: the translation; with `n_best` as in Moses, `index ||| translation ||| score`. `"jsonl"`: an object with
    `index`, `translation` and, with `n_best`, `score`.

    Raises:
        ValueError: there is no such format.
    """
    if output_format not in FORMATS:
        raise ValueError(f"output_format must be one of {', '.join(FORMATS)}, got {output_format!r}.")
    if output_format == "jsonl":
        return lambda index, candidates: [json_line(index, candidate, n_best is not None) for candidate in candidates]
    if n_best is None:
        return lambda _, candidates: [candidate.translation for candidate in candidates]
    return lambda index, candidates: [moses_line(index, candidate) for candidate in candidates]


def json_line(index: int, candidate: Candidate, scored: bool) -> str:
    fields = {"index": index, "translation": candidate.translation} | ({"score": candidate.score} if scored else {})
    return json.dumps(fields, ensure_ascii=False)


def moses_line(index: int, candidate: Candidate) -> str:
    return f"{index} ||| {candidate.translation} ||| {candidate.score:.6f}"


def format_all(
    candidates: Iterable[Sequence[Candidate]], write: Callable[[int, Sequence[Candidate]], list[str]], first: int = 0
) -> Iterator[str]:
    """The lines of the candidates of consecutive texts."""
    for index, alternatives in enumerate(candidates, start=first):
        yield from write(index, alternatives)

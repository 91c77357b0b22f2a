"""Sentences in many scripts, of `tests/texts/scripts.tsv`."""

from pathlib import Path

FILE = Path(__file__).parents[1] / "texts" / "scripts.tsv"


def sentences_by_language() -> dict[str, list[str]]:
    """The sentences of each language, by its code. Composed and decomposed letters are kept as they are."""
    rows = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines()]
    return {code: sentences for code, _, *sentences in rows}

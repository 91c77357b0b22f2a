"""Normalizes texts in cleaning as new tokenizers do, unquotes cells of CSV files, and reports the changes."""

from collections.abc import Callable

from tokenizers import normalizers

from ...data.readers import unquoted
from ...tokenization_random_transformer import REPLACEMENTS, normalize, replacing


def fully_unquoted(text: str) -> str:
    """A cell of a CSV file that was read as a line, also repeatedly: `"the ""red"" car"` becomes `the "red" car`."""
    while (inside := unquoted(text)) != text:
        text = inside
    return text


# Each kind of change, in order.
NORMALIZING_CHANGES: dict[str, Callable[[str], str]] = {
    **{f"normalized: {kind}": replacing(steps).normalize_str for kind, steps in REPLACEMENTS.items()},
    "normalized: quotes of CSV": fully_unquoted,
    "normalized: Unicode form NFC": normalizers.NFC().normalize_str,
}


def normalized(text: str) -> tuple[str, list[str]]:
    """A text without line breaks and tabs in normal form, and the kinds of changes."""
    kinds: list[str] = []
    if normalize(text) == text and not text.startswith('"'):
        return text, kinds
    for kind, change in NORMALIZING_CHANGES.items():
        if (changed := change(text)) != text:
            kinds.append(kind)
            text = changed
    return text, kinds

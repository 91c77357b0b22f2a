"""Normalization of texts in cleaning: what looks alike becomes equal, and what is invisible by mistake is removed."""

from collections.abc import Callable
from unicodedata import is_normalized, normalize

import regex

from .readers import unquoted

CONTROL = regex.compile(r"\p{Cc}")  # some of them are spaces, such as a form feed
# Soft hyphen, zero-width space, joiners, word joiner and byte order mark.
ZERO_WIDTH = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
# A zero-width space marks words in scripts without spaces. A joiner changes the forms of letters, except in scripts
# without joined letters, and makes one emoji of two.
WITHOUT_SPACES = "".join(rf"\p{{Script={name}}}" for name in ("Thai", "Lao", "Khmer", "Myanmar", "Tibetan"))
NOT_JOINED = "".join(
    rf"\p{{Script={name}}}"
    for name in ("Latin", "Greek", "Cyrillic", "Armenian", "Georgian", "Hebrew", "Ethiopic", "Hangul", "Han")
)
JOINED = rf"[[\p{{L}}]--[{NOT_JOINED}]]\p{{M}}*"
EMOJI = r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]"
NEEDED = (
    rf"(?<=[{WITHOUT_SPACES}])\u200b|\u200b(?=[{WITHOUT_SPACES}])"
    rf"|(?<={JOINED})[\u200c\u200d]|(?<={EMOJI})\u200d(?=\p{{Extended_Pictographic}})"
)
INVISIBLE = regex.compile(rf"(?:{NEEDED})(*SKIP)(*FAIL)|[{ZERO_WIDTH}]", regex.V1)


def fully_unquoted(text: str) -> str:
    """A cell of a CSV file that was read as a line, also repeatedly: `"the ""red"" car"` becomes `the "red" car`."""
    while (inside := unquoted(text)) != text:
        text = inside
    return text


# Each kind of change, in order.
CHANGES: dict[str, Callable[[str], str]] = {
    "normalized: control characters": lambda text: CONTROL.sub(lambda match: " " if match[0].isspace() else "", text),
    "normalized: zero-width characters": lambda text: INVISIBLE.sub("", text),
    "normalized: quotes of CSV": fully_unquoted,
    "normalized: Unicode form NFC": lambda text: text if is_normalized("NFC", text) else normalize("NFC", text),
}


def normalized(text: str) -> tuple[str, list[str]]:
    """A text without line breaks and tabs in normal form, and the kinds of changes."""
    kinds: list[str] = []
    if text.isascii() and text.isprintable() and not text.startswith('"'):
        return text, kinds
    for kind, change in CHANGES.items():
        if (changed := change(text)) != text:
            kinds.append(kind)
            text = changed
    return text, kinds

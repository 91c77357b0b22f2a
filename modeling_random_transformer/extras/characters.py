"""Properties of characters, for documents and wrappers of translations."""

from unicodedata import category, east_asian_width


def is_wide(character: str) -> bool:
    """Whether a character is as wide as Chinese characters. No space follows it at the end of a sentence."""
    return bool(character) and east_asian_width(character) in "WF"


def is_mark(character: str) -> bool:
    """Whether a character is a combining mark."""
    return category(character).startswith("M")

"""MarianMT models, such as those of OPUS-MT."""

from .convert import convert_marian, from_marian

__all__ = ["convert_marian", "from_marian"]

"""Model files of Marian (`.npz`), with vocabularies in `.yml` files or SentencePiece models."""

from .convert import convert_marian_npz, from_marian_npz

__all__ = ["convert_marian_npz", "from_marian_npz"]

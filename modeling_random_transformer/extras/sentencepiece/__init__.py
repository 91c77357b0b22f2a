"""Tokenizers from models of SentencePiece, which tokenize in the same way.

tokenizer = from_sentencepiece("spm.model")
"""

from .conversion import from_sentencepiece

__all__ = ["from_sentencepiece"]

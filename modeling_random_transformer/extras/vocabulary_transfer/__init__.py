"""A model whose weights start with those of a parent with another vocabulary.

child = with_vocabulary(parent, parent_tokenizer, tokenizer)
"""

from .parent import with_vocabulary

__all__ = ["with_vocabulary"]

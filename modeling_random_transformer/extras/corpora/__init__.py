"""Formats of parallel corpora other than plain text and tables: translation memories, and archives of OPUS.

`data/readers.py` reads `.tmx` and `.zip` files by them.
"""

from .moses import open_members
from .tmx import read_tmx

__all__ = ["open_members", "read_tmx"]

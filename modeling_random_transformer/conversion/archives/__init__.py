"""Archives that models are published in, such as those of OPUS-MT (zip) and of fairseq (tar)."""

from .convert import convert_archive

__all__ = ["convert_archive"]

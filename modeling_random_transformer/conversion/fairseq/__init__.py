"""Checkpoints of fairseq's `transformer`, with dictionaries and BPE codes."""

from .convert import convert_fairseq, from_fairseq
from .tokenizer import FairseqTokenizer, fairseq_tokenizer

__all__ = ["FairseqTokenizer", "convert_fairseq", "fairseq_tokenizer", "from_fairseq"]

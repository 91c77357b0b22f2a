"""Weights from elsewhere in a Random Transformer, with the same numbers afterwards and a report of what became what.

model, report = from_marian("opus-mt-en-de")           # or a MarianMTModel
model, report = from_torch_transformer(transformer, embedding, output)
model, report = from_fairseq("checkpoint_best.pt")

`convert_marian`, `convert_torch_transformer` and `convert_fairseq` write a folder, with the tokenizer where there is
one. What ours cannot equal is refused by name. Checkpoints are read without running anything in them.
"""

from .check import largest_difference
from .fairseq import convert_fairseq, from_fairseq
from .fairseq_tokenizer import FairseqTokenizer, fairseq_tokenizer
from .files import read_checkpoint
from .marian import convert_marian, from_marian
from .report import DerivedField, MappedWeight, Report
from .torch_transformer import convert_torch_transformer, from_torch_transformer

__all__ = [
    "DerivedField",
    "FairseqTokenizer",
    "MappedWeight",
    "Report",
    "convert_fairseq",
    "convert_marian",
    "convert_torch_transformer",
    "fairseq_tokenizer",
    "from_fairseq",
    "from_marian",
    "from_torch_transformer",
    "largest_difference",
    "read_checkpoint",
]

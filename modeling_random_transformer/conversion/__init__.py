"""Converts checkpoints of Marian, MarianMT, `nn.Transformer` and fairseq, with identical logits, and tokenizers.

    model, report = from_marian("opus-mt-en-de")           # or a MarianMTModel
    model, report = from_marian_npz("model.npz")           # Marian's own format
    model, report = from_torch_transformer(transformer, embedding, output)
    model, report = from_fairseq("checkpoint_best.pt")

    tokenizer = from_sentencepiece("source.spm")           # a tokenizer without a model

`convert_marian`, `convert_marian_npz`, `convert_torch_transformer` and `convert_fairseq` write a folder, with a
tokenizer if available. An option or a weight without a counterpart in this model raises a `ValueError` that names it.
No code in a checkpoint is executed.
"""

from .archives import convert_archive
from .fairseq import convert_fairseq, from_fairseq
from .fairseq_tokenizer import FairseqTokenizer, fairseq_tokenizer
from .marian import convert_marian, from_marian
from .marian_npz import convert_marian_npz, from_marian_npz
from .pytorch import convert_torch_transformer, from_torch_transformer
from .sentencepiece import from_sentencepiece
from .weights import ConversionReport

__all__ = [
    "ConversionReport",
    "FairseqTokenizer",
    "convert_archive",
    "convert_fairseq",
    "convert_marian",
    "convert_marian_npz",
    "convert_torch_transformer",
    "fairseq_tokenizer",
    "from_fairseq",
    "from_marian",
    "from_marian_npz",
    "from_sentencepiece",
    "from_torch_transformer",
]

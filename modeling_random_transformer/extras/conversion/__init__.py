"""Converts models of Marian, MarianMT, `nn.Transformer`, fairseq, JoeyNMT, OpenNMT-py and eole, with identical logits.

    model, report = from_marian("opus-mt-en-de")           # or a MarianMTModel
    model, report = from_marian_npz("model.npz")           # Marian's own format
    model, report = from_torch_transformer(transformer, embedding, output)
    model, report = from_fairseq("checkpoint_best.pt")
    model, report = from_joeynmt("model_dir")              # or a checkpoint in it
    model, report = from_opennmt("model_step_100000.pt")   # OpenNMT-py 2 or 3
    model, report = from_eole("model_path")                # the successor of OpenNMT-py

Each `from_<format>` has a `convert_<format>`, which writes a folder, with a tokenizer if available. An option or a
weight without a counterpart in this model raises a `ValueError` that names it. No code in a checkpoint is executed.
"""

from .archives import convert_archive
from .eole import convert_eole, from_eole
from .fairseq import convert_fairseq, fairseq_tokenizer, from_fairseq
from .joeynmt import convert_joeynmt, from_joeynmt
from .joined_tokenizer import JoinedTokenizer
from .marian import convert_marian, from_marian
from .marian_npz import convert_marian_npz, from_marian_npz
from .opennmt import convert_opennmt, from_opennmt
from .pytorch import convert_torch_transformer, from_torch_transformer
from .weights import ConversionReport

__all__ = [
    "ConversionReport",
    "JoinedTokenizer",
    "convert_archive",
    "convert_eole",
    "convert_fairseq",
    "convert_joeynmt",
    "convert_marian",
    "convert_marian_npz",
    "convert_opennmt",
    "convert_torch_transformer",
    "fairseq_tokenizer",
    "from_eole",
    "from_fairseq",
    "from_joeynmt",
    "from_marian",
    "from_marian_npz",
    "from_opennmt",
    "from_torch_transformer",
]

"""Convert a checkpoint of another implementation to a Random Transformer.

    random-transformer convert opus-2020-02-26.zip outputs/en-de
    random-transformer convert marian opus-mt-en-de --output outputs/en-de
    random-transformer convert marian-npz model.npz --output outputs/en-de
    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --embedding embedding.weight
    random-transformer convert fairseq checkpoint_best.pt --output outputs/de-en --source_dict dict.de.txt
    random-transformer convert joeynmt models/wmt14_ende --output outputs/en-de
    random-transformer convert eole models/wmt17 --output outputs/en-de

The first argument is a format or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) with a model of Marian
or fairseq. `random-transformer convert FORMAT --help` lists the arguments of a format. The command prints how each
weight was converted. Exit status: 0 on success; 2 if the checkpoint cannot be converted. No code in a file is executed.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from .. import conversion
from ..inputs_random_transformer import drop_none
from .command_line import Parser

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
POSITIONAL = {"positional": True}
NAME, NAMES, FILES = ({"metavar": "NAME"}, {"nargs": "+", "metavar": "NAME"}, {"nargs": "+", "metavar": "FILE"})
ID = {"type": int, "metavar": "ID"}


def run(program: str, argv: Sequence[str]) -> None:
    """Convert a checkpoint whose format is the first argument, or an archive, and print the report."""
    options: type
    if argv and argv[0].lower().endswith(ARCHIVE_SUFFIXES):
        convert, options = conversion.convert_archive, ArchiveArguments
    elif argv and argv[0] in FORMATS:
        convert, options = FORMATS[argv[0]]
        program, argv = f"{program} {argv[0]}", argv[1:]
    else:  # help, or an error
        parser = Parser(program, __doc__)
        parser.add_argument("format", choices=FORMATS, help="the format of the checkpoint")
        parser.parse_args(argv[:1])
    description = inspect.cleandoc(options.__doc__ or "").partition("\n\nArgs:")[0]
    arguments: Any = Parser(program, description).parse(options, argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(convert(**drop_none(**vars(arguments))))


@dataclass(frozen=True)
class ArchiveArguments:
    """Convert the model in an archive of OPUS-MT (.npz) or fairseq (.pt), with its vocabularies.

    Args:
        archive: a zip or tar archive
        output: a new or empty folder
        model: name of the model in the archive (default: the first in alphabetical order)
    """

    archive: Path = field(metadata=POSITIONAL)
    output: Path = field(metadata=POSITIONAL)
    model: str | None = field(default=None, metadata=NAME)


@dataclass(frozen=True, kw_only=True)
class FormatArguments:
    """The arguments of all formats.

    Args:
        output: a new or empty folder
    """

    output: Path = field(metadata={"metavar": "FOLDER"})


@dataclass(frozen=True, kw_only=True)
class MarianArguments(FormatArguments):
    """Convert a folder of MarianMT, such as a model of OPUS-MT, or of Pegasus or Blenderbot.

    Args:
        folder: config.json, weights and the tokenizer's files
    """

    folder: Path = field(metadata=POSITIONAL)


@dataclass(frozen=True, kw_only=True)
class MarianNpzArguments(FormatArguments):
    """Convert a model of Marian in its own format, with its vocabularies and SentencePiece models.

    Files that are not given are found next to the model.

    Args:
        model: a .npz file, or a folder with one
        vocabs: vocabulary, or those of source and target: .yml files or SentencePiece models (.spm)
        spm: SentencePiece models of source and target, or one for both, for vocabularies in .yml files
    """

    model: Path = field(metadata=POSITIONAL)
    vocabs: list[Path] | None = field(default=None, metadata=FILES)
    spm: list[Path] | None = field(default=None, metadata=FILES)


@dataclass(frozen=True, kw_only=True)
class TorchArguments(FormatArguments):
    """Convert a checkpoint that contains an nn.Transformer.

        random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
            --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
            --positions positional_encoding.pos_embedding --scale_embedding \\
            --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

    These are the names of PyTorch's translation tutorial.

    Args:
        checkpoint: a .pt or .safetensors file with a state dict
        num_heads: number of attention heads
        embedding: name of the shared embedding, or of the source and target embeddings
        output_layer: name of the output layer (default: tied to the target's embedding)
        positions: none (the default), sinusoidal, concatenated, or the names of one or two tables
        prefix: prefix of the nn.Transformer's names, such as transformer.
        key: key of the state dict, if the file contains other objects too
        ignore: weights that are not converted
        scale_embedding: multiply embeddings by sqrt(d_model)
        norm_first: the model uses pre-norm
        activation: activation (default: relu)
        layer_norm_eps: epsilon of the layer norms (default: 1e-05)
        pad_token_id: id of the padding
        bos_token_id: id of the token that starts a text
        eos_token_id: id of the token that ends a text
        decoder_start_token_id: id of the decoder's first input
    """

    checkpoint: Path = field(metadata=POSITIONAL)
    num_heads: int
    embedding: list[str] = field(metadata=NAMES)
    output_layer: str | None = field(default=None, metadata=NAME)
    positions: list[str] | None = field(default=None, metadata=NAMES)
    prefix: str | None = None
    key: str | None = None
    ignore: list[str] | None = field(default=None, metadata=NAMES)
    scale_embedding: bool = False
    norm_first: bool = False
    activation: str | None = field(default=None, metadata={"choices": ("relu", "gelu")})
    layer_norm_eps: float | None = None
    pad_token_id: int | None = field(default=None, metadata=ID)
    bos_token_id: int | None = field(default=None, metadata=ID)
    eos_token_id: int | None = field(default=None, metadata=ID)
    decoder_start_token_id: int | None = field(default=None, metadata=ID)


@dataclass(frozen=True, kw_only=True)
class FairseqArguments(FormatArguments):
    """Convert a checkpoint of fairseq's `transformer`, with its dictionaries and BPE codes.

    If no file is given, those next to the checkpoint are used.

    Args:
        checkpoint: checkpoint, a .pt file
        source_dict: dictionary of the source, dict.<language>.txt
        target_dict: dictionary of the target (default: that of the source)
        source_codes: BPE codes of subword-nmt or fastBPE
        target_codes: BPE codes of the target (default: those of the source)
        num_heads: number of attention heads, if the checkpoint does not store it
    """

    checkpoint: Path = field(metadata=POSITIONAL)
    source_dict: Path | None = None
    target_dict: Path | None = None
    source_codes: Path | None = None
    target_codes: Path | None = None
    num_heads: int | None = None


@dataclass(frozen=True, kw_only=True)
class JoeyNMTArguments(FormatArguments):
    """Convert a model of JoeyNMT 2, with the vocabularies and the SentencePiece model or BPE codes in its folder.

    Args:
        checkpoint: JoeyNMT's model_dir, whose best checkpoint is converted, or a .ckpt file in it
    """

    checkpoint: Path = field(metadata=POSITIONAL)


@dataclass(frozen=True, kw_only=True)
class EoleArguments(FormatArguments):
    """Convert a model of eole, the successor of OpenNMT-py, with its tokenizer.

    Args:
        folder: eole's model_path: config.json, vocab.json, weights, and the SentencePiece model or BPE codes
    """

    folder: Path = field(metadata=POSITIONAL)


FORMATS: dict[str, tuple[Callable[..., Any], type]] = {
    "marian": (conversion.convert_marian, MarianArguments),
    "marian-npz": (conversion.convert_marian_npz, MarianNpzArguments),
    "torch": (conversion.convert_torch_transformer, TorchArguments),
    "fairseq": (conversion.convert_fairseq, FairseqArguments),
    "joeynmt": (conversion.convert_joeynmt, JoeyNMTArguments),
    "eole": (conversion.convert_eole, EoleArguments),
}

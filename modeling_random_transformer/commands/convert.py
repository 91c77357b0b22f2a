"""Convert a checkpoint of another implementation to a Random Transformer.

    random-transformer convert opus-2020-02-26.zip outputs/en-de
    random-transformer convert marian opus-mt-en-de --output outputs/en-de
    random-transformer convert marian-npz model.npz --output outputs/en-de
    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --embedding embedding.weight
    random-transformer convert fairseq checkpoint_best.pt --output outputs/de-en --source_dict dict.de.txt

The first argument is a format or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) with a model of Marian
or fairseq. `random-transformer convert FORMAT --help` lists the arguments of a format. The command prints how each
weight was converted. Exit status: 0 on success; 2 if the checkpoint cannot be converted. No code in a file is executed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import transformers

from ..conversion import (
    convert_archive,
    convert_fairseq,
    convert_marian,
    convert_marian_npz,
    convert_torch_transformer,
)
from ..conversion.pytorch import TOKEN_IDS
from .command_line import Parser, run_command

PROGRAM = "random-transformer convert"
MARIAN_HELP = "Convert a folder of MarianMT, such as a model of OPUS-MT."
MARIAN_NPZ_HELP = """Convert a model of Marian in its own format, with its vocabularies and SentencePiece models.

Files that are not given are found next to the model.
"""
ARCHIVE_HELP = "Convert the model in an archive of OPUS-MT (.npz) or fairseq (.pt), with its vocabularies."
ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TORCH_HELP = """Convert a checkpoint that contains an nn.Transformer.

    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
        --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
        --positions positional_encoding.pos_embedding --scale_embedding \\
        --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

These are the names of PyTorch's translation tutorial.
"""
FAIRSEQ_HELP = """Convert a checkpoint of fairseq's `transformer`, with its dictionaries and BPE codes.

If no file is given, those next to the checkpoint are used.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Convert a checkpoint whose format is the first argument, or an archive. Returns the exit status."""
    args = vars(parse_arguments(sys.argv[1:] if argv is None else argv))
    program, convert = args.pop("program"), args.pop("convert")
    args.pop("format", None)
    return run_command(lambda: run(convert, args), program)


def run(convert: Callable[..., Any], args: dict[str, Any]) -> None:
    """Convert, and print the report."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(convert(**args))


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line: the function `convert` and its arguments; those that are not given are absent."""
    if argv and argv[0].lower().endswith(ARCHIVE_SUFFIXES):
        parser = Parser(PROGRAM, ARCHIVE_HELP, argument_default=argparse.SUPPRESS)
        parser.add_argument("archive", type=Path, help="a zip or tar archive")
        parser.add_argument("output", type=Path, help="a new or empty folder")
        text = "name of the model in the archive (default: the first in alphabetical order)"
        parser.add_argument("--model", metavar="NAME", help=text)
        parser.set_defaults(convert=convert_archive, program=PROGRAM)
        return parser.parse_args(argv)
    parser = Parser(PROGRAM, __doc__)
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    for name, (convert, text, add_arguments) in FORMATS.items():
        of_format = formats.add_parser(name, description=text, argument_default=argparse.SUPPRESS)
        of_format.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new or empty folder")
        of_format.set_defaults(convert=convert, program=of_format.prog)
        add_arguments(of_format)
    return parser.parse_args(argv)


def add_marian_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="config.json, weights and the tokenizer's files")


def add_marian_npz_arguments(parser: Parser) -> None:
    parser.add_argument("model", type=Path, help="a .npz file, or a folder with one")
    for name, text in (
        ("vocabs", "vocabulary, or those of source and target: .yml files or SentencePiece models (.spm)"),
        ("spm", "SentencePiece models of source and target, or one for both, for vocabularies in .yml files"),
    ):
        parser.add_argument(f"--{name}", type=Path, nargs="+", metavar="FILE", help=text)


def add_torch_arguments(parser: Parser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a .pt or .safetensors file with a state dict")
    parser.add_argument("--num_heads", type=int, required=True, metavar="N", help="number of attention heads")
    text = "name of the shared embedding, or of the source and target embeddings"
    parser.add_argument("--embedding", nargs="+", required=True, metavar="NAME", help=text)
    text = "name of the output layer (default: tied to the target's embedding)"
    parser.add_argument("--output_layer", metavar="NAME", help=text)
    text = "none (the default), sinusoidal, concatenated, or the names of one or two tables"
    parser.add_argument("--positions", nargs="+", metavar="NAME", help=text)
    parser.add_argument("--prefix", help="prefix of the nn.Transformer's names, such as transformer.")
    parser.add_argument("--key", help="key of the state dict, if the file contains other objects too")
    parser.add_argument("--ignore", nargs="+", metavar="NAME", help="weights that are not converted")
    parser.add_argument("--scale_embedding", action="store_true", help="multiply embeddings by sqrt(d_model)")
    parser.add_argument("--norm_first", action="store_true", help="the model uses pre-norm")
    parser.add_argument("--activation", choices=("relu", "gelu"), help="activation (default: relu)")
    text = "epsilon of the layer norms (default: 1e-05)"
    parser.add_argument("--layer_norm_eps", type=float, metavar="EPS", help=text)
    for name in TOKEN_IDS:
        parser.add_argument(f"--{name}", type=int, metavar="ID")


def add_fairseq_arguments(parser: Parser) -> None:
    parser.add_argument("checkpoint", type=Path, help="checkpoint, a .pt file")
    for name, text in {
        "source_dict": "dictionary of the source, dict.<language>.txt",
        "target_dict": "dictionary of the target (default: that of the source)",
        "source_codes": "BPE codes of subword-nmt or fastBPE",
        "target_codes": "BPE codes of the target (default: those of the source)",
    }.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    text = "number of attention heads, if the checkpoint does not store it"
    parser.add_argument("--num_heads", type=int, metavar="N", help=text)


FORMATS: dict[str, tuple[Callable[..., Any], str, Callable[[Parser], None]]] = {
    "marian": (convert_marian, MARIAN_HELP, add_marian_arguments),
    "marian-npz": (convert_marian_npz, MARIAN_NPZ_HELP, add_marian_npz_arguments),
    "torch": (convert_torch_transformer, TORCH_HELP, add_torch_arguments),
    "fairseq": (convert_fairseq, FAIRSEQ_HELP, add_fairseq_arguments),
}

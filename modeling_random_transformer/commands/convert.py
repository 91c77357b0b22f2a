"""Convert a checkpoint of another implementation to a Random Transformer.

    random-transformer convert opus-2020-02-26.zip outputs/en-de
    random-transformer convert marian opus-mt-en-de --output outputs/en-de
    random-transformer convert marian-npz model.npz --output outputs/en-de
    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --embedding embedding.weight
    random-transformer convert fairseq checkpoint_best.pt --output outputs/de-en --source_dict dict.de.txt

The first argument is a format or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) with a model of Marian
or fairseq. `random-transformer convert FORMAT --help` lists the arguments of a format. The command prints how each
weight was converted. Exit status: 0 on success; 1 if the logits differ by more than the tolerance; 2 if the checkpoint
cannot be converted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import transformers
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from ..conversion import (
    ConversionReport,
    convert_archive,
    convert_fairseq,
    convert_marian,
    convert_marian_npz,
    convert_torch_transformer,
    largest_difference,
)
from ..conversion.pytorch import TOKEN_IDS, TorchReference, read_torch_checkpoint
from ..conversion.report import Logits, report_tables
from .command_line import Parser, given, run_command

PROGRAM = "random-transformer convert"
TOLERANCE = 1e-4
MARIAN_HELP = """Convert a folder of MarianMT, such as a model of OPUS-MT, and compare the logits of the two models.

Exit status: 0 on success; 1 if the logits differ by more than the tolerance; 2 if the folder cannot be converted.
"""
MARIAN_NPZ_HELP = """Convert a model of Marian in its own format, with its vocabularies and SentencePiece models.

Files that are not given are found next to the model. Exit status: 0 on success; 2 if the model cannot be converted. The
logits are not compared, because that would require Marian.
"""
ARCHIVE_HELP = """Convert the model in an archive of OPUS-MT (.npz) or fairseq (.pt), with its vocabularies.

Exit status: 0 on success; 2 if the archive cannot be read or the model cannot be converted. No code in the archive is
executed.
"""
ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TORCH_HELP = """Convert a checkpoint that contains an nn.Transformer, and compare the logits of the two models.

    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
        --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
        --positions positional_encoding.pos_embedding --scale_embedding \\
        --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

These are the names of PyTorch's translation tutorial.

Exit status: 0 on success; 1 if the logits differ by more than the tolerance; 2 if the checkpoint cannot be converted.
No code in the checkpoint is executed.
"""
FAIRSEQ_HELP = """Convert a checkpoint of fairseq's `transformer`, with its dictionaries and BPE codes.

Exit status: 0 on success; 2 if the checkpoint cannot be converted. No code in the checkpoint is executed. The logits
are not compared, because that would require fairseq.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Convert a checkpoint whose format is the first argument, or an archive. Returns the exit status."""
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: run(args), args.program)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. The result has the functions `convert` and, to compare logits, `compare`."""
    if argv and argv[0].lower().endswith(ARCHIVE_SUFFIXES):
        parser = Parser(PROGRAM, ARCHIVE_HELP)
        add_archive_arguments(parser)
    else:
        parser = Parser(PROGRAM, __doc__)
        formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
        for name, (text, add_arguments) in FORMATS.items():
            of_format = formats.add_parser(name, description=text)
            of_format.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new or empty folder")
            of_format.set_defaults(compare=None, tolerance=TOLERANCE, program=of_format.prog)
            add_arguments(of_format)
    return parser.parse_args(argv)


def add_marian_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="config.json, weights and the tokenizer's files")
    add_tolerance(parser)

    def compare(args: argparse.Namespace) -> float:
        original = MarianMTModel.from_pretrained(args.folder, dtype="float32").eval()
        return logit_difference(
            args.output,
            lambda ids, mask, target: original(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits,
        )

    parser.set_defaults(convert=lambda args: convert_marian(args.folder, args.output), compare=compare)


def add_marian_npz_arguments(parser: Parser) -> None:
    parser.add_argument("model", type=Path, help="a .npz file, or a folder with one")
    for name, text in (
        ("vocabs", "vocabulary, or those of source and target: .yml files or SentencePiece models (.spm)"),
        ("spm", "SentencePiece models of source and target, or one for both, for vocabularies in .yml files"),
    ):
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    parser.set_defaults(
        convert=lambda args: convert_marian_npz(args.model, args.output, vocabs=args.vocabs, spm=args.spm)
    )


def add_archive_arguments(parser: Parser) -> None:
    parser.add_argument("archive", type=Path, help="a zip or tar archive")
    parser.add_argument("output", type=Path, help="a new or empty folder")
    parser.add_argument(
        "--model", metavar="NAME", help="name of the model in the archive (default: the first in alphabetical order)"
    )
    parser.set_defaults(
        convert=lambda args: convert_archive(args.archive, args.output, model=args.model),
        compare=None,
        program=PROGRAM,
    )


def add_torch_arguments(parser: Parser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a .pt or .safetensors file with a state dict")
    parser.add_argument("--num_heads", type=int, required=True, metavar="N", help="number of attention heads")
    parser.add_argument(
        "--embedding",
        nargs="+",
        required=True,
        metavar="NAME",
        help="name of the shared embedding, or of the source and target embeddings",
    )
    parser.add_argument(
        "--output_layer", metavar="NAME", help="name of the output layer (default: tied to the target's embedding)"
    )
    parser.add_argument(
        "--positions",
        nargs="+",
        default=["none"],
        metavar="NAME",
        help="none (the default), sinusoidal, concatenated, or the names of one or two tables",
    )
    parser.add_argument("--prefix", default="", help="prefix of the nn.Transformer's names, such as transformer.")
    parser.add_argument("--key", help="key of the state dict, if the file contains other objects too")
    parser.add_argument("--ignore", nargs="+", default=[], metavar="NAME", help="weights that are not converted")
    parser.add_argument("--scale_embedding", action="store_true", help="multiply embeddings by sqrt(d_model)")
    parser.add_argument("--norm_first", action="store_true", help="the model uses pre-norm")
    parser.add_argument("--activation", choices=("relu", "gelu"), default="relu", help="activation")
    parser.add_argument("--layer_norm_eps", type=float, default=1e-5, metavar="EPS", help="epsilon of the layer norms")
    for name in TOKEN_IDS:
        parser.add_argument(f"--{name}", type=int, metavar="ID")
    add_tolerance(parser)
    parser.set_defaults(convert=convert_torch, compare=compare_torch)


TORCH_NAMES = ("embedding", "output_layer", "positions", "prefix", "key", "ignore")
TORCH_OPTIONS = ("num_heads", "norm_first", "activation", "layer_norm_eps")


def convert_torch(args: argparse.Namespace) -> ConversionReport:
    """Convert a checkpoint with an `nn.Transformer`."""
    options = {name: getattr(args, name) for name in (*TORCH_NAMES, *TORCH_OPTIONS, "scale_embedding")}
    return convert_torch_transformer(args.checkpoint, args.output, **options, **given(args, TOKEN_IDS))


def compare_torch(args: argparse.Namespace) -> float:
    """The largest difference between the logits of a converted `nn.Transformer` and its original."""
    checkpoint = read_torch_checkpoint(args.checkpoint, **{name: getattr(args, name) for name in TORCH_NAMES})
    options = {name: getattr(args, name) for name in TORCH_OPTIONS}
    original = TorchReference(checkpoint, options, args.scale_embedding)
    return logit_difference(args.output, original, original.vocabularies)


FAIRSEQ_OPTIONS = ("source_dict", "target_dict", "source_codes", "target_codes", "num_heads")


def add_fairseq_arguments(parser: Parser) -> None:
    parser.add_argument("checkpoint", type=Path, help="checkpoint, a .pt file")
    helps = (
        "dictionary of the source, dict.<language>.txt",
        "dictionary of the target (default: that of the source)",
        "BPE codes of subword-nmt or fastBPE",
        "BPE codes of the target (default: those of the source)",
    )
    for name, text in zip(FAIRSEQ_OPTIONS, helps, strict=False):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--num_heads", type=int, metavar="N", help="number of attention heads, if the checkpoint does not store it"
    )
    parser.set_defaults(
        convert=lambda args: convert_fairseq(
            args.checkpoint, args.output, **{name: getattr(args, name) for name in FAIRSEQ_OPTIONS}
        )
    )


FORMATS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "marian": (MARIAN_HELP, add_marian_arguments),
    "marian-npz": (MARIAN_NPZ_HELP, add_marian_npz_arguments),
    "torch": (TORCH_HELP, add_torch_arguments),
    "fairseq": (FAIRSEQ_HELP, add_fairseq_arguments),
}


def add_tolerance(parser: Parser) -> None:
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="X", help="maximum difference of the logits"
    )


def run(args: argparse.Namespace) -> int:
    """Convert, print the report, compare the logits if possible, and return the exit status."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    report = args.convert(args)
    console = Console(markup=False)
    console.print(report_tables(report))
    if args.compare is None:
        console.print("The logits were not compared with the original model.")
        return 0
    difference = args.compare(args)
    console.print(f"Largest difference of the logits on random batches: {difference:.1e}")
    return 0 if difference <= args.tolerance else 1


def logit_difference(output: Path, original: Logits, vocabularies: tuple[int, int] | None = None) -> float:
    """The largest difference between the logits of a converted folder and its original, in float32."""
    model = AutoModelForSeq2SeqLM.from_pretrained(output, dtype="float32").eval()
    return largest_difference(model, original, vocabularies=vocabularies)

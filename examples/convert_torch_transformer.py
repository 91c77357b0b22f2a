"""Make a Random Transformer of a checkpoint with an `nn.Transformer` in it, and check that it says the same.

    python examples/convert_torch_transformer.py model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
        --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
        --positions positional_encoding.pos_embedding --scale_embedding \\
        --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

(the names of PyTorch's tutorial on translation). Prints what became what, and the largest difference between the logits
of the two models on random batches. Exits with 0; with 1 if that difference is larger than it should be; with 2 if the
checkpoint cannot be converted. Nothing in the checkpoint is run.
"""

import argparse
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer.conversion import convert_torch_transformer, largest_difference
from modeling_random_transformer.conversion.tables import report_tables
from modeling_random_transformer.conversion.torch_transformer import read_pieces
from modeling_random_transformer.modeling_random_transformer import sinusoids
from modeling_random_transformer.utils.command_line import Parser, print_error, run_script

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    where = {
        name: getattr(args, name) for name in ("embedding", "output_layer", "positions", "prefix", "key", "ignore")
    }
    options = {name: getattr(args, name) for name in ("num_heads", "norm_first", "activation", "layer_norm_eps")}
    tokens = {name: getattr(args, name) for name in TOKENS if getattr(args, name) is not None}
    try:
        report = convert_torch_transformer(
            args.checkpoint, args.output, **where, **options, **tokens, scale_embedding=args.scale_embedding
        )
    except (ValueError, OSError) as error:
        print_error("convert_torch_transformer.py", str(error))
        return 2
    console = Console(markup=False)
    console.print(report_tables(report))
    original = Original(args)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.output).eval()
    difference = largest_difference(model, original, vocabularies=original.vocabularies)
    console.print(f"Largest difference of the logits on random batches: {difference:.1e}")
    return 0 if difference <= args.tolerance else 1


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("convert_torch_transformer.py", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a .pt or .safetensors file with a state dict")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new or an empty folder")
    parser.add_argument("--num_heads", type=int, required=True)
    parser.add_argument("--embedding", nargs="+", required=True, metavar="NAME", help="one for both, or the two")
    parser.add_argument("--output_layer", metavar="NAME", help="default: the target's embedding")
    parser.add_argument(
        "--positions",
        nargs="+",
        default=["none"],
        metavar="NAME",
        help="of a table or two; or none, sinusoidal, concatenated; default: none",
    )
    parser.add_argument("--prefix", default="", help="of the nn.Transformer's names, such as transformer.")
    parser.add_argument("--key", help="where the state dict lies in the file, if it is not all of it")
    parser.add_argument("--ignore", nargs="+", default=[], metavar="NAME", help="weights to leave out")
    parser.add_argument("--scale_embedding", action="store_true", help="embeddings are multiplied by sqrt(d_model)")
    parser.add_argument("--norm_first", action="store_true")
    parser.add_argument("--activation", choices=("relu", "gelu"), default="relu", help="default: %(default)s")
    parser.add_argument("--layer_norm_eps", type=float, default=1e-5, help="default: %(default)s")
    for name in TOKENS:
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="for the difference; default: %(default)s")
    return parser.parse_args(arguments)


class Original:
    """The checkpoint in an `nn.Transformer`, with its embeddings, positions and output layer around it."""

    def __init__(self, args: argparse.Namespace):
        pieces = read_pieces(
            args.checkpoint, args.key, args.prefix, args.embedding, args.output_layer, args.positions, args.ignore
        )
        self.source, self.target = pair(pieces["embedding"])
        self.positions, self.output = pieces["positions"], pieces.get("output")
        self.scale = math.sqrt(self.source.shape[1]) if args.scale_embedding else 1.0
        self.transformer = build(pieces["transformer"], self.source.shape[1], args).eval()

    @property
    def vocabularies(self) -> tuple[int, int]:
        return len(self.source), len(self.target)

    def embed(self, table: Tensor, ids: Tensor, stack: int) -> Tensor:
        """Ids `[batch, length]` → what the `nn.Transformer` gets, `[batch, length, d_model]`."""
        states, length = table[ids] * self.scale, ids.shape[1]
        if not isinstance(self.positions, str):
            return states + pair(self.positions)[stack].squeeze()[:length]
        if self.positions == "none":
            return states
        layout = "interleaved" if self.positions == "sinusoidal" else self.positions
        return states + sinusoids(torch.arange(length), states.shape[-1], layout)

    def __call__(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        states = self.transformer(
            self.embed(self.source, ids, 0),
            self.embed(self.target, target, 1),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0,
            src_key_padding_mask=mask == 0,
            memory_key_padding_mask=mask == 0,
        )
        return states @ self.target.T if self.output is None else self.output(states)


def pair(value: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return value if isinstance(value, tuple) else (value, value)


def build(weights: dict[str, Tensor], width: int, args: argparse.Namespace) -> nn.Transformer:
    """An `nn.Transformer` of the size of these weights, holding them."""
    layers = [len({n.split(".")[2] for n in weights if n.startswith(f"{s}.layers.")}) for s in ("encoder", "decoder")]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor")  # a fast path that it will not take
        transformer = nn.Transformer(
            d_model=width,
            nhead=args.num_heads,
            num_encoder_layers=layers[0],
            num_decoder_layers=layers[1],
            dim_feedforward=len(weights["encoder.layers.0.linear1.weight"]),
            activation=args.activation,
            layer_norm_eps=args.layer_norm_eps,
            batch_first=True,
            norm_first=args.norm_first,
            bias="encoder.layers.0.linear1.bias" in weights,
        )
    if "encoder.norm.weight" not in weights:
        transformer.encoder.norm = transformer.decoder.norm = None
    transformer.load_state_dict(weights)
    return transformer


if __name__ == "__main__":
    run_script(main)

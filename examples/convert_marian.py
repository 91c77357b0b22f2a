"""Make a Random Transformer of a MarianMT folder, such as one of the OPUS-MT models, and check that it says the same.

    python examples/convert_marian.py opus-mt-en-de --output outputs/en-de

Prints what became what, and the largest difference between the logits of the two models on random batches. Exits with
0; with 1 if that difference is larger than it should be; with 2 if the folder cannot be converted.
"""

from collections.abc import Sequence
from pathlib import Path

import transformers
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from modeling_random_transformer.conversion import convert_marian, largest_difference
from modeling_random_transformer.conversion.tables import report_tables
from modeling_random_transformer.utils.command_line import Parser, print_error, run_script


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("convert_marian.py", __doc__)
    parser.add_argument("folder", type=Path, help="config.json, weights and the tokenizer's files")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new or an empty folder")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="for the difference; default: %(default)s")
    args = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        report = convert_marian(args.folder, args.output)
    except (ValueError, OSError) as error:
        print_error("convert_marian.py", str(error))
        return 2
    console = Console(markup=False)
    console.print(report_tables(report))
    difference = check(args.folder, args.output)
    console.print(f"Largest difference of the logits on random batches: {difference:.1e}")
    return 0 if difference <= args.tolerance else 1


def check(folder: Path, output: Path) -> float:
    """The largest difference, computed in float32 whatever the weights are stored in."""
    marian = MarianMTModel.from_pretrained(folder, dtype="float32").eval()
    model = AutoModelForSeq2SeqLM.from_pretrained(output, dtype="float32").eval()
    return largest_difference(
        model,
        lambda ids, mask, target: marian(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits,
    )


if __name__ == "__main__":
    run_script(main)

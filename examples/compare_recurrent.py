"""Compare the Transformer with its predecessors: train it, an LSTM and a GRU with attention on the same data.

    python examples/compare_recurrent.py                            # all three: a few minutes on a CPU
    python examples/compare_recurrent.py --models transformer gru   # only these
    python examples/compare_recurrent.py --epochs 2 --train_size 400

The paper (sections 1 and 4) names two weaknesses of recurrence: its computation is sequential, and dependencies
between distant positions are hard to learn. The models translate texts of one to four English sentences into Spanish;
exact match by length and training throughput are measured. All models have nearly the same number of parameters, and
the same batches, epochs, optimizer and schedule. Only the peak learning rates differ.

Limitations: Unlike a GPU, one CPU core gains little from parallel computation. The recurrent decoders have attention,
which was introduced for long sentences. A few thousand texts do not show which model would benefit more from millions.

Exit status: 0 on success; 2 if an argument is invalid.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.parser import positive_integer
from tutorials.recurrent_comparison import (
    CANDIDATES,
    LENGTHS,
    as_pair,
    mean_source_tokens,
    sample_texts,
    train_and_evaluate,
)
from tutorials.recurrent_report import draw, show_results, summarize, uncertainty
from tutorials.report import console, save_plot
from tutorials.scripts import exit_status, script_parser
from tutorials.training_helpers import MAX_TOKENS, VOCAB_SIZE, add_seed, check_writable, configure_libraries


def main(argv: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(argv)), "compare_recurrent.py")


def run(args: argparse.Namespace) -> None:
    configure_libraries(args.seed)
    train, test = sample_texts(args.train_size, args.test_size, args.seed)
    tokenizer = RandomTransformerTokenizer.train(chain(*map(as_pair, train)), VOCAB_SIZE, model_max_length=MAX_TOKENS)

    results = []
    for name in dict.fromkeys(args.models):
        console.rule(name)
        results.append(train_and_evaluate(name, train, test, tokenizer, args))

    console.rule("Results")
    show_results(results)
    for line in [*summarize(results), uncertainty(len(test))]:
        console.print(line)
    save_plot(draw(results, mean_source_tokens(test, tokenizer)), args.output_dir / "comparison.png")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raises ValueError if an argument is invalid."""
    parser = script_parser("compare_recurrent.py", __doc__)
    parser.add_argument("--models", nargs="+", choices=CANDIDATES, default=[*CANDIDATES], help="models")
    parser.add_argument("--epochs", type=positive_integer, default=10, help="number of epochs")
    parser.add_argument("--train_size", type=int, default=3000, help="training texts")
    parser.add_argument("--test_size", type=int, default=400, help="held-out texts")
    add_seed(parser)
    folder = Path("outputs/compare_recurrent")
    parser.add_argument("--output_dir", type=Path, default=folder, help="folder of the plot")
    args = parser.parse_args(argv)
    for name in ("train_size", "test_size"):
        if (size := getattr(args, name)) < len(LENGTHS):
            raise ValueError(f"--{name} must be at least {len(LENGTHS)}, one text of each length, got {size}.")
    check_writable(args.output_dir)
    return args


if __name__ == "__main__":
    sys.exit(main())

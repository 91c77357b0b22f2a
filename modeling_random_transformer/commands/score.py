"""Score given translations with a saved model: the log-probability of each, for filtering and reranking.

    random-transformer score --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer score --model outputs/quickstart --source_file train.tsv --output scores.txt
    random-transformer score --model outputs/quickstart --source_file train.tsv --source_key en --target_key de
    paste test.en test.es | random-transformer score --model outputs/quickstart --output_format jsonl

Line n of the output belongs to pair n: the sum of the natural logarithms of the target tokens' probabilities and the
number of these tokens, including the end token. The line of a pair with a blank side is empty. With --output and files,
the same command resumes after an interruption, and `accelerate launch` distributes the pairs over processes.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import ParallelText
from ..inference.alignments import Aligner, pharaoh_line
from ..inference.loading import load_models
from ..inference.scoring import Scorer
from ..inference.scoring_files import align_file, score_file, score_format, valid_pairs
from ..inference.translation import process_stream, progress_bar
from ..inputs_random_transformer import name_lines_in_errors
from ..utils.compressed_files import STANDARD_STREAM
from ..utils.distributed import exit_with_launcher, start_processes
from ..utils.text import encode_lines
from .command_line import (
    Parser,
    add_job_arguments,
    add_key_arguments,
    add_language_arguments,
    add_model_argument,
    add_output_argument,
    check_differs_from_output,
    existing_file,
    run_command,
    write_output,
)

PROGRAM = "random-transformer score"


def main(argv: Sequence[str] | None = None) -> int:
    """Score according to the command line. Returns the exit status, see `run_command`."""
    exit_with_launcher()
    arguments = parse_arguments(argv)
    return run_command(lambda: run(arguments), PROGRAM)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(PROGRAM, __doc__)
    add_model_argument(parser)
    parser.add_argument(
        "--source_file",
        type=existing_file,
        metavar="FILE",
        help="sources, one per line; or both sides in a .tsv, .jsonl or .parquet file (default: TSV from standard "
        "input)",
    )
    parser.add_argument("--target_file", type=existing_file, metavar="FILE", help="targets, line by line")
    add_key_arguments(parser, ("source", "target"), "a file with both sides")
    add_language_arguments(parser)
    add_output_argument(parser)
    parser.add_argument(
        "--output_format",
        choices=("text", "jsonl"),
        default="text",
        help="text: log-probability and number of tokens, separated by a tab",
    )
    parser.add_argument("--token_scores", action="store_true", help="write the log-probability of each token too")
    parser.add_argument(
        "--alignments",
        action="store_true",
        help="write word alignments from cross-attention instead of scores, such as '0-0 1-2' (source-target)",
    )
    parser.add_argument(
        "--truncation", action="store_true", help="truncate texts that are too long (default: they are an error)"
    )
    add_job_arguments(parser, "pairs × tokens of the longest source and target", unit="pairs")
    arguments = parser.parse_args(argv)
    if arguments.alignments and (arguments.token_scores or arguments.output_format != "text"):
        parser.error("--alignments must be given without --token_scores and --output_format.")
    source, target = arguments.source_file, arguments.target_file
    if target and not source:
        parser.error(f"--target_file must be given with --source_file, got {target} without it.")
    check_differs_from_output(parser, arguments.output, source_file=source, target_file=target)
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Load the model and score."""
    source = arguments.source_file or Path(STANDARD_STREAM)
    corpus = ParallelText(source, arguments.target_file, arguments.source_key, arguments.target_key)
    state = start_processes(arguments.device)
    from_file_to_file = bool(arguments.source_file and arguments.output)
    if from_file_to_file:
        corpus.require_files()
    if state.num_processes > 1 and not from_file_to_file:
        raise ValueError(f"--source_file and --output must be given with {state.num_processes} processes.")
    model, tokenizer = load_models(arguments.model, arguments.dtype, arguments.device or state.device, "--model")
    names = ("src_lang", "tgt_lang", "max_batch_tokens", "truncation")
    options = {name: getattr(arguments, name) for name in names}
    if from_file_to_file:
        write_file(corpus, arguments, model, tokenizer, options)
    else:
        lines = lines_of_pairs(corpus, arguments, model, tokenizer, options)
        write_output(arguments.output, encode_lines(lines))
    state.destroy_process_group()


def write_file(
    corpus: ParallelText,
    arguments: argparse.Namespace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: dict[str, Any],
) -> None:
    """Score or align from file to file; resumable."""
    options |= {"chunk_size": arguments.chunk_size, "restart": arguments.restart}
    if arguments.alignments:
        align_file(corpus, arguments.output, model, tokenizer, **options)
    else:
        options |= {"output_format": arguments.output_format, "token_scores": arguments.token_scores}
        score_file(corpus, arguments.output, model, tokenizer, **options)


def lines_of_pairs(
    corpus: ParallelText,
    arguments: argparse.Namespace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: dict[str, Any],
) -> Iterator[str]:
    """One line per pair, in a single pass."""
    write: Callable[[Any], str] = score_format(arguments.output_format)
    process: Aligner | Scorer
    if arguments.alignments:
        process, write = Aligner(model, tokenizer, **options), pharaoh_line
    else:
        process = Scorer(model, tokenizer, token_scores=arguments.token_scores, **options)
    bar = partial(progress_bar, None, unit="pair")
    with name_lines_in_errors(str(arguments.source_file or "stdin")):
        yield from map(write, process_stream(valid_pairs(corpus), process, arguments.chunk_size, bar))

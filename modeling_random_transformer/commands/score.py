"""Score given translations with a saved model: the log-probability of each, for filtering and reranking.

    random-transformer score --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer score --model outputs/quickstart --source_file train.tsv --output scores.txt
    random-transformer score --model outputs/quickstart --source_file train.tsv --source_key en --target_key de
    paste test.en test.es | random-transformer score --model outputs/quickstart --output_format jsonl

Line n of the output belongs to pair n: the sum of the natural logarithms of the target tokens' probabilities and the
number of these tokens, including the end token. The line of a pair with a blank side is empty. With --output and files,
the same command resumes after an interruption, and `accelerate launch` distributes the pairs over processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import ParallelText
from ..inference.alignments import alignments, pharaoh_line
from ..inference.scoring import score_pairs
from ..inference.scoring_files import score_file, score_line, valid_pairs
from ..inference.translation_files import FORMATS
from ..inputs_random_transformer import name_lines_in_errors
from ..utils.compressed_files import check_output, stream_name
from ..utils.text import encode_lines
from .command_line import STANDARD, InferenceArguments, Parser, existing_file, write_output


@dataclass(frozen=True, kw_only=True)
class Arguments(InferenceArguments):
    """Arguments of `score`.

    Args:
        source_file: sources, one per line; or both sides in a .tsv, .jsonl or .parquet file; - is
            standard input: TSV, or sources with --target_file
        target_file: targets, line by line
        source_key: column of the source in a file with both sides: a name, or a number from 1
        target_key: column of the target in a file with both sides: a name, or a number from 1
        output: file to write, compressed if its name ends with .gz or .zst; - is standard output (the default)
        output_format: text: log-probability and number of tokens, separated by a tab
        token_scores: write the log-probability of each token too
        alignments: write word alignments from cross-attention instead of scores, such as '0-0 1-2' (source-target)
        truncation: truncate texts that are too long (default: they are an error)

    Raises:
        ValueError: arguments contradict each other.
    """

    source_file: Path = field(default=STANDARD, metadata={"type": existing_file})
    target_file: Path | None = field(default=None, metadata={"type": existing_file})
    source_key: str = "source"
    target_key: str = "target"
    output: Path = STANDARD
    output_format: str = field(default="text", metadata={"choices": FORMATS})
    token_scores: bool = False
    alignments: bool = False
    truncation: bool = False

    def __post_init__(self) -> None:
        if self.alignments and (self.token_scores or self.output_format != "text"):
            raise ValueError("--alignments must be given without --token_scores and --output_format.")
        check_output("--output", self.output, source_file=self.source_file, target_file=self.target_file)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `score_pairs` and `alignments`."""
        options: dict[str, Any] = {"src_lang": self.source_lang, "tgt_lang": self.target_lang}
        options |= {"max_batch_tokens": self.max_tokens_per_batch, "truncation": self.truncation}
        return options if self.alignments else {**options, "token_scores": self.token_scores}


def run(program: str, argv: Sequence[str]) -> None:
    """Load the model and score."""
    arguments = Parser(program, __doc__).parse(Arguments, argv)
    files = arguments.source_file, arguments.target_file
    corpus = ParallelText(*files, source_key=arguments.source_key, target_key=arguments.target_key)
    from_file_to_file = STANDARD not in (arguments.source_file, arguments.output)
    if from_file_to_file:
        corpus.require_files()
    with arguments.load(from_file_to_file) as (model, tokenizer):
        if not from_file_to_file:
            write_output(arguments.output, encode_lines(lines_of_pairs(corpus, arguments, model, tokenizer)))
            return
        names = ("alignments", "output_format", "chunk_size", "restart")
        options = {name: getattr(arguments, name) for name in names} | arguments.options
        score_file(corpus, arguments.output, model, tokenizer, **options)


def lines_of_pairs(
    corpus: ParallelText, arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Iterator[str]:
    """One line per pair, in a single pass."""
    process: Callable[..., Iterator[Any]] = alignments if arguments.alignments else score_pairs
    write = pharaoh_line if arguments.alignments else partial(score_line, output_format=arguments.output_format)
    with name_lines_in_errors(stream_name(arguments.source_file)):
        results = process(model, tokenizer, valid_pairs(corpus), chunk_size=arguments.chunk_size, **arguments.options)
        yield from map(write, results)

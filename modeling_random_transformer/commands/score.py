"""Compute the log-probabilities of given translations with a saved model, for filtering and reranking.

    random-transformer score --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer score --model outputs/quickstart --source_file train.tsv --output scores.txt
    random-transformer score --model outputs/quickstart --source_file train.tsv --source_key en --target_key de
    paste test.en test.es | random-transformer score --model outputs/quickstart --output_format jsonl

Line n of the output contains the sum of the natural logarithms of the target tokens' probabilities of pair n, and the
number of these tokens, including the end token. The line of a pair with a blank side is empty. With --output and files,
the same command resumes after an interruption, and `accelerate launch` distributes the pairs over processes.
"""

from dataclasses import dataclass, field

from ..extras.pairs.scoring_files import score_line
from ..inference.scoring import Scorer
from ..inference.translation_files import OUTPUT_FORMATS
from .corpus_arguments import PairArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(PairArguments):
    """Arguments of `score`.

    Args:
        output_format: text: log-probability and number of tokens, separated by a tab
        token_scores: also write the log-probability of each token
    """

    output_format: str = field(default="text", metadata={"choices": OUTPUT_FORMATS})
    token_scores: bool = False


def run(arguments: Arguments) -> None:
    """Load the model and score."""
    line_options = {"output_format": arguments.output_format}
    arguments.write_lines(Scorer, score_line, line_options, token_scores=arguments.token_scores)

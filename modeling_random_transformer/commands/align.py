"""Align the words of given translations by the cross-attention of a saved model.

    random-transformer align --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer align --model outputs/quickstart --source_file train.tsv --output links.txt

Line n of the output has the links of pair n, such as '0-0 1-2': the indices of a source word and a target word. Words
are separated by white space. The line of a pair with a blank side is empty. With --output and files, the same command
resumes after an interruption, and `accelerate launch` distributes the pairs over processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.flags import Parser
from ..extras.pairs.alignments import Aligner
from .corpus_arguments import PairArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(PairArguments):
    """Arguments of `align`.

    Args:
        truncation: truncate texts that are too long, whose other words have no links (default: they are an error)
    """

    truncation: bool = False


def run(program: str, argv: Sequence[str]) -> None:
    """Load the model and align."""
    arguments = Parser(program, __doc__, [Arguments]).parse(argv)
    arguments.write_lines(Aligner, truncation=arguments.truncation)

"""Align the words of given translations by the cross-attention of a saved model.

    random-transformer align --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer align --model outputs/quickstart --source_file train.tsv --output links.txt

Line n of the output contains the links of pair n, such as '0-0 1-2'. A link consists of the indices of a source word
and a target word. Words are separated by white space. The line of a pair with a blank side is empty. With --truncation,
the words beyond the limit have no links. With --output and files, the same command resumes after an interruption, and
`accelerate launch` distributes the pairs over processes.
"""

from ..extras.pairs.alignments import Aligner, links_line
from .corpus_arguments import PairArguments as Arguments


def run(arguments: Arguments) -> None:
    """Load the model and align."""
    arguments.write_lines(Aligner, links_line, {})

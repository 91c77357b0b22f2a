"""Log-probabilities of given translations, for filtering and reranking, and their word alignments.

    for score in score_pairs(model, tokenizer, [("a dog", "ein Hund"), ...]):
        score.log_probability / score.tokens
    score_file(ParallelText("train.en", "train.de"), "scores.txt", model, tokenizer)     # the same call resumes
    for links in alignments(model, tokenizer, pairs): ...                                # [(0, 0), (2, 1)]

All take any model of `AutoModelForSeq2SeqLM`. `score_file` and `align_file` require the extra `train`,
which reads the corpus.
"""

from typing import TYPE_CHECKING, Any

from .alignments import alignments
from .pairs import PairScore, score_pairs

if TYPE_CHECKING:
    from .files import align_file, score_file

__all__ = ["PairScore", "align_file", "alignments", "score_file", "score_pairs"]


def __getattr__(name: str) -> Any:
    """Import the functions for files on first use, because scoring pairs does not require the reader of corpora."""
    if name in ("align_file", "score_file"):
        from . import files

        return getattr(files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

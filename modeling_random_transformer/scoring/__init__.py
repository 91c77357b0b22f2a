"""Log-probabilities of translations under a model, for filtering and reranking.

    for score in score_pairs(model, tokenizer, [("a dog", "ein Hund"), ...]):
        score.log_probability / score.tokens
    score_file(ParallelText("train.en", "train.de"), "scores.txt", model, tokenizer)     # the same call resumes

All take any model of `AutoModelForSeq2SeqLM`. `score_file` requires the extra `train`, which reads the corpus.
"""

from typing import Any

from .pairs import PairScore, score_pairs

__all__ = ["PairScore", "score_file", "score_pairs"]


def __getattr__(name: str) -> Any:
    """Import `score_file` on first use, because scoring pairs does not require the reader of corpora."""
    if name == "score_file":
        from .files import score_file

        return score_file
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Chooses the length penalty and the patience of a trained model on the validation sets (`length_penalty="auto"`).

The best values depend on the corpus and on the model. A model that was trained on little data gives translations that
are too short with the paper's length penalty, and too long with a length penalty that is too large. With a patience of
2, the search finds longer hypotheses before it ends.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

from ...base.markdown import markdown_table
from ...inference.evaluation import decode_rows
from ...training.trainer import TranslationTrainer

logger = logging.getLogger(__name__)

PATIENCES = (1, 2)  # the search ends when this many hypotheses per beam have finished
LENGTH_PENALTIES = (0.6, 1.0, 1.5, 2.0, 2.5, 3.0)  # ascending: the translations become longer
MAX_LENGTH_RATIO = 1.1
SENTENCES = 300  # evenly spaced sentences of each validation set


class SearchScore(NamedTuple):
    """The mean score of validation sets, and the characters of the translations per character of the references."""

    patience: int
    length_penalty: float
    score: float
    length_ratio: float


def choose_search(trainer: TranslationTrainer) -> dict[str, Any]:
    """The best length penalty and patience of a trained model, and all scores with a description in Markdown.

    All processes must call this function. The first one logs the description.
    """
    searches = [*search_scores(trainer)]
    best = best_search(searches)
    description = describe_choice(best, searches, trainer.args.translation_metric)
    if trainer.args.process_index == 0:
        # A warning, so that the choice is shown by default.
        logger.warning("%s", description)
    return {
        "length_penalty": best.length_penalty,
        "patience": best.patience,
        "searches": searches,
        "description": description,
    }


def search_scores(trainer: TranslationTrainer) -> Iterator[SearchScore]:
    """The scores of each patience and its length penalties, up to the first one with translations that are too long."""
    sets = trainer.eval_dataset
    samples = []
    for rows in sets.values() if isinstance(sets, dict) else [sets]:
        parts = math.ceil(len(rows) / SENTENCES)
        samples.append(rows.shard(parts, 0, contiguous=False))  # evenly spaced pairs
    for patience in PATIENCES:
        for penalty in LENGTH_PENALTIES:
            outputs = [trainer.predict(rows, length_penalty=penalty, patience=patience) for rows in samples]
            score = fmean(output.metrics[f"test_{trainer.args.translation_metric}"] for output in outputs)
            ratio = fmean(length_ratio(trainer.processing_class, output) for output in outputs)
            yield SearchScore(patience, penalty, round(score, 2), round(ratio, 2))
            if ratio > MAX_LENGTH_RATIO:
                break


def length_ratio(tokenizer: PreTrainedTokenizerBase, output: PredictionOutput) -> float:
    """The characters of translations per character of the references.

    Tokens are not used, since references that are spelled differently from the training set have many short tokens.
    """
    generated = sum(map(len, decode_rows(tokenizer, output.predictions)))
    expected = sum(map(len, decode_rows(tokenizer, output.label_ids)))
    return generated / max(expected, 1)


def best_search(searches: Sequence[SearchScore]) -> SearchScore:
    """The first of the highest scores among searches whose translations are not too long."""
    short_enough = [search for search in searches if search.length_ratio <= MAX_LENGTH_RATIO]
    return max(short_enough or searches[:1], key=attrgetter("score"))


def describe_choice(best: SearchScore, searches: Sequence[SearchScore], metric: str) -> str:
    """Markdown with the chosen length penalty and patience and a table of the scores."""
    table = markdown_table(("patience", "length penalty", "score", "length ratio"), searches)
    return (
        f"The length penalty {best.length_penalty} and the patience {best.patience} were chosen on at most "
        f"{SENTENCES} validation pairs, by {metric} with at most {MAX_LENGTH_RATIO} characters per character of the "
        f"references:\n\n{table}"
    )

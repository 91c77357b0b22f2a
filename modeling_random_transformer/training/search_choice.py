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

from ..base.distributed import call_on_main_process
from ..base.markdown import markdown_table
from ..inference.evaluation import decode_rows
from .model_init import set_generation_config
from .run_record import final_search, validation_fingerprints
from .run_state import SEARCH_STAGE, Run
from .trainer import TranslationTrainer

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


def search_inputs(run: Run) -> dict[str, Any]:
    """The values that determine the choice."""
    return {
        "weights": run.training_stage.files,
        "num_beams": run.args.num_beams,
        "metric": run.args.translation_metric,
        "patiences": PATIENCES,
        **validation_fingerprints(run),
    }


def is_search_chosen(run: Run) -> bool:
    """Whether the options of the search are given, or were chosen for the trained model."""
    return not run.args.chooses_length_penalty or run.job.has_finished(SEARCH_STAGE, search_inputs(run))


def choose_search(run: Run, trainer: TranslationTrainer) -> None:
    """Choose the length penalty and the patience of the trained model, and save them with it, unless they are given."""

    def choose() -> dict[str, Any]:
        searches = [*search_scores(trainer)]
        best = best_search(searches)
        return {"length_penalty": best.length_penalty, "patience": best.patience, "searches": searches}

    if not call_on_main_process(lambda: is_search_chosen(run)):
        run.job.run(SEARCH_STAGE, search_inputs(run), choose, everywhere=True, may_change=True)
        if run.args.process_index == 0:
            # A warning, so that the choice is shown by default.
            logger.warning("%s", describe_choice(run))
    set_generation_config(trainer.model, **final_search(run.args, run.job))
    if run.model_args.lora_rank is None:  # an adapter has that of its base model
        call_on_main_process(lambda: trainer.model.generation_config.save_pretrained(run.folder))


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


def describe_choice(run: Run) -> str:
    """Markdown with the chosen length penalty and patience and a table of the scores; empty if they were given."""
    if not run.args.chooses_length_penalty:
        return ""
    facts = run.job.stages[SEARCH_STAGE].facts
    table = markdown_table(("patience", "length penalty", "score", "length ratio"), facts["searches"])
    return (
        f"The length penalty {facts['length_penalty']} and the patience {facts['patience']} were chosen on at most "
        f"{SENTENCES} validation pairs, by {run.args.translation_metric} with at most {MAX_LENGTH_RATIO} characters "
        f"per character of the references:\n\n{table}"
    )

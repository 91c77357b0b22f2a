"""Compares an engine with the model: identical translations, and throughput."""

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from timeit import timeit
from typing import Any

import torch
from torch import Tensor

from ...configuration_random_transformer import RandomTransformerConfig
from ...inputs_random_transformer import longest_target
from ...tokenization_random_transformer import is_blank
from ...verification_random_transformer import difference_reason
from .engines import EngineTranslate, translate_fn

COMPARED_BEAMS = (1, 4)
COMPARED_TOKENS = 128  # tokens of the source and the target for which every export is compared with the modules
ENGINE_ROUNDING = 1e-2  # the largest relative difference of scores that an engine's order of operations explains
# Used for models of any language, because only the agreement of model and engine matters.
EXAMPLE_SENTENCES = (
    "Hello world.",
    "The boy sees the girl.",
    "We do not read these two books.",
    "Where does the tired waiter buy his red apples?",
    "She has written a long letter to her brother, who lives in the old house by the river.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young people are playing football in front of a crowd.",
    "I would like to know, before it is too late, whether the last train to the city has left.",
)


@dataclass(frozen=True)
class Comparison:
    """A model and an engine on the same sentences, with one number of beams."""

    num_beams: int
    sentences: int
    identical: int  # number of identical translations
    model_speed: float  # median throughput, sentences per second
    engine_speed: float

    def __str__(self) -> str:
        return (
            f"{self.num_beams} beam{'s' if self.num_beams > 1 else ''}: {self.identical} of {self.sentences} "
            f"translations identical ({self.identical / self.sentences:.1%}); {self.engine_speed:.1f} sentences/s, "
            f"the model {self.model_speed:.1f}"
        )


def compare(
    model: Any,
    tokenizer: Any,
    engine: EngineTranslate,
    sentences: Sequence[str] = EXAMPLE_SENTENCES,
    *,
    beams: Sequence[int] = COMPARED_BEAMS,
    max_new_tokens: int = 128,
    rounds: int = 3,
) -> list[Comparison]:
    """Compare the translations and the throughput of a model and an engine.

    Both use the same search: no sampling, a length penalty of 0.6, and two properties of beam search in CTranslate2:
    `early_stopping=True` and, if tokens are forbidden, `renormalize_logits=True`.

    Args:
        model: a model that `translate` supports.
        tokenizer: its tokenizer.
        engine: the result of `load_engine`.
        sentences: texts to translate. Blank ones are skipped.
        beams: numbers of beams. There is one result for each.
        max_new_tokens: maximum length of a translation, lowered to the model's number of positions.
        rounds: number of timed repetitions after one warm-up.

    Raises:
        ValueError: all sentences are blank.
    """
    texts = [sentence for sentence in sentences if not is_blank(sentence)]
    if not texts:
        raise ValueError(f"sentences must include a text that is not blank, got {len(sentences)} blank ones.")
    limit = longest_target(0, model.config, max_new_tokens)
    model_translate = translate_fn(model, tokenizer)

    comparisons = []
    for num_beams in beams:
        calls = [partial(translate, texts, num_beams, limit) for translate in (model_translate, engine)]
        expected, actual = (call() for call in calls)
        identical = sum(a == b for a, b in zip(expected, actual, strict=True))
        speeds = [len(texts) / statistics.median(times) for times in time_interleaved(calls, rounds)]
        comparisons.append(Comparison(num_beams, len(texts), identical, *speeds))
    return comparisons


def reference_of(model: Any) -> Any:
    """A copy of a model with which an export is compared: on the CPU, in float32 and in evaluation mode."""
    return copy.deepcopy(model).to("cpu", torch.float32).eval()


def compared_ids(config: RandomTransformerConfig, excluded: Sequence[int] = ()) -> Tensor:
    """Random ids of a source and of a target, for the comparison of an export with the modules: `[2, length]`.

    Args:
        config: the model's configuration.
        excluded: tokens that do not occur.
    """
    length = min(config.max_position_embeddings - 1, COMPARED_TOKENS)
    unusable = {config.pad_token_id, *excluded}
    usable = [token for token in range(config.vocab_size) if token not in unusable]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(usable), (2, length), generator=generator)
    return torch.tensor(usable)[drawn]


def check_equal(engine: str, actual: Tensor, expected: Tensor) -> None:
    """Raise a ValueError if an engine does not compute what the modules compute, whose code may have been edited.

    Args:
        engine: its name in the message.
        actual: logits or scores by the engine, from weights in float32.
        expected: those of the modules.
    """
    if reason := difference_reason(actual, expected, ENGINE_ROUNDING):
        raise ValueError(f"model must compute what {engine} computes, but {reason}.")


def time_interleaved(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Time each call once per round, in seconds. Calls are interleaved, so that all see the same load."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, times, strict=True):
            seconds.append(timeit(call, number=1))
    return times

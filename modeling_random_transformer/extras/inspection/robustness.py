"""Disturbed test sets: capitals, typing errors, other spaces, invisible characters, numbers and placeholders."""

import re
import unicodedata
from collections.abc import Callable
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...training.methods.augmentation import Augmentation, Random, typing_errors

PairList = list[tuple[str, str]]
INVISIBLE_CHARACTERS = ("\u00ad", "\u200b", "\ufeff")  # soft hyphen, zero width space, byte order mark
# Changes of `Augmentation`
CHANGES = {
    "capitals": "upper",
    "title case": "title",
    "lower case": "lower",
    "no final punctuation": "no_punctuation",
    "with a number": "numbers",
    "with a placeholder": "placeholders",
}


def disturbances(pairs: PairList, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> dict[str, PairList]:
    """Pairs with each disturbance of all sources, and of references that follow their source.

    Args:
        pairs: sources and references.
        tokenizer: its special tokens do not change.
        seed: random seed of the disturbances.
    """

    def of_sources(disturb: Callable[..., str]) -> PairList:
        random = np.random.default_rng(seed)
        return [(disturb(source, random=random), target) for source, target in pairs]

    augmentation = Augmentation(tokenizer)
    disturbed = {}
    for name, change in CHANGES.items():
        random = np.random.default_rng(seed)
        disturbed[name] = [augmentation.change(change, *pair, random) for pair in pairs]
    for percent in (2, 5):
        disturbed[f"{percent}% typing errors"] = of_sources(partial(typing_errors, rate=percent / 100))
    disturbed["10% doubled or missing spaces"] = of_sources(with_other_spaces)
    disturbed["NFD"] = of_sources(lambda text, **_: unicodedata.normalize("NFD", text))
    disturbed["invisible characters"] = of_sources(with_invisible_characters)
    return disturbed


def with_other_spaces(text: str, random: Random) -> str:
    """A text in which a tenth of the spaces is doubled or missing."""
    return re.sub(" ", lambda _: random.choice(["", "  ", " "], p=[0.05, 0.05, 0.9]), text)


def with_invisible_characters(text: str, random: Random) -> str:
    """A text with an invisible character at three places."""
    for index in random.integers(len(text), size=3):
        text = text[:index] + random.choice(INVISIBLE_CHARACTERS) + text[index:]
    return text

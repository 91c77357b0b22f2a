"""Augmentation of training pairs: capitals, missing punctuation, typing errors, and other numbers and placeholders.

The method is that of OpusTrainer (Bogoychev et al. 2023, https://arxiv.org/abs/2311.14838). Models that are trained on
clean text only translate texts in capitals badly and lose numbers and placeholders.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_lowercase, capwords, digits

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...base.placeholders import PLACEHOLDER
from ...data.retokenization import Seeds, TokenIds
from ...data.sources import SIDES, Pair
from ...data.tokenization import ID_COLUMNS, WORD_COLUMNS, tokenize_batch
from ...inputs_random_transformer import Languages, tokenizer_languages
from .bpe_dropout import BPEDropout

Random = np.random.Generator
# The shares of pairs with each change, in the order in which they are applied.
SHARES = {
    "numbers": 0.05,
    "placeholders": 0.05,
    "no_punctuation": 0.05,
    "upper": 0.1,
    "title": 0.02,
    "lower": 0.05,
    "typos": 0.15,
}
CASES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "title": partial(capwords, sep=" "),
    "lower": str.lower,
}
SOURCE_CHANGES = ("lower", "typos")  # the other changes are made on both sides
CHANGEABLE_NUMBER = re.compile(r"\b(?!1\b)\d+\b")  # the number 1 is excluded, since its noun is in the singular
FINAL_PUNCTUATION = re.compile(r"\s*[.!?…。！？]*\s*$")
EXAMPLE_PLACEHOLDERS = (
    "{name}",
    "{{name}}",
    "${name}",
    "%(name)s",
    "%s",
    "%d",
    "{0}",
    "https://name.org",
    "name@name.org",
)
TYPED = re.compile(r"([^\W\d_]| )(.?)")  # a letter or space, and the next character
NEXT_KEY = str.maketrans("qwertyuiopasdfghjklzxcvbnm", "wertyuiop[sdfghjkl;xcvbnm,")


def typing_errors(text: str, rate: float, random: Random) -> str:
    """A text with missing, doubled, transposed and wrong letters and spaces, with a number of errors per letter."""

    def mistyped(match: re.Match[str]) -> str:
        typed, following = match.groups()
        if random.random() >= rate * len(match[0]):
            return match[0]
        wrong = typed.translate(NEXT_KEY) + following
        return random.choice([following, typed + match[0], following + typed, wrong])

    return TYPED.sub(mistyped, text)


@dataclass(eq=False)
class Augmentation:
    """Changes shares of training pairs at random, and tokenizes them.

    Each change is drawn independently. Placeholders and special tokens in texts do not change. A target is changed only
    if its source is changed.

    Args:
        tokenizer: a fast tokenizer.
        bpe_dropout: segments all pairs afterwards; `None` for ordinary segmentations.
    """

    tokenizer: PreTrainedTokenizerBase
    bpe_dropout: BPEDropout | None = None

    def __post_init__(self) -> None:
        patterns = [*map(re.escape, self.tokenizer.all_special_tokens), PLACEHOLDER.pattern]
        alternatives = "|".join(patterns)
        self.unchanged = re.compile(f"({alternatives})", re.VERBOSE)

    def __call__(self, source: str, target: str, random: Random) -> Pair:
        """A pair with the changes that are drawn for it."""
        for name, share in SHARES.items():
            if random.random() < share:
                source, target = self.change(name, source, target, random)
        return source, target

    def change(self, name: str, source: str, target: str, random: Random) -> Pair:
        """A pair with one change."""
        if name in ("numbers", "placeholders"):
            edit = self._copying(name, source, target, random)
        elif name == "no_punctuation":
            edit = partial(FINAL_PUNCTUATION.sub, "")
        else:
            errors = partial(typing_errors, rate=random.uniform(0, 0.1), random=random)
            edit = partial(self._edited, CASES.get(name, errors))
        changed = edit(source)
        if name in SOURCE_CHANGES or changed == source:
            return changed, target
        return changed, edit(target)

    def _edited(self, edit: Callable[[str], str], text: str) -> str:
        """A text that is edited outside placeholders and special tokens."""
        parts = self.unchanged.split(text)
        parts[::2] = map(edit, parts[::2])
        return "".join(parts)

    def _copying(self, name: str, source: str, target: str, random: Random) -> Callable[[str], str]:
        """A function that replaces a number of both sides, or inserts a copied word if they share no number."""
        numbers = {*CHANGEABLE_NUMBER.findall(source)}
        number = min(numbers.intersection(CHANGEABLE_NUMBER.findall(target)), default="")
        length = len(number) or random.integers(1, 7)
        if name == "numbers":
            copy = "".join(random.choice([*digits], length))
        else:
            word = "".join(random.choice([*ascii_lowercase], length))
            copy = random.choice(EXAMPLE_PLACEHOLDERS).replace("name", word)
        if number:
            replace = partial(re.sub, rf"\b{number}\b", copy)
            return partial(self._edited, replace)
        can_begin = not self.unchanged.match(source)
        if can_begin and random.random() < 0.5:
            return partial(re.sub, "^", f"{copy} ")
        return partial(FINAL_PUNCTUATION.sub, rf" {copy}\g<0>", count=1)

    def texts(self, texts: Iterable[str], seed: int) -> Iterator[str]:
        """Augmented texts to train a vocabulary on, from an iterable in which each source is followed by its target."""
        alternating = iter(texts)
        for number, (source, target) in enumerate(zip(alternating, alternating, strict=True)):
            yield from self(source, target, np.random.default_rng((seed, number)))

    def retokenize(self, rows: dict[str, list], seeds: Seeds) -> TokenIds:
        """Tokens of changed pairs, as columns; see `BPEDropout.retokenize`."""
        pairs = []
        for seed, source, target in zip(seeds, rows["source"], rows["target"], strict=True):
            random = np.random.default_rng((*seed, 1))  # the 1 makes the random numbers independent of BPE-dropout
            pairs.append(self(source, target, random))
        texts = {name: [pair[side] for pair in pairs] for side, name in enumerate(SIDES)}
        language = tokenizer_languages(self.tokenizer)[:1]  # any one: its tags are replaced
        languages = Languages(*language, *language)
        columns = tokenize_batch(texts, self.tokenizer, languages, with_words=True)
        for ids, words in zip(ID_COLUMNS, WORD_COLUMNS, strict=True):
            columns[ids] = [*map(with_special_tokens, rows[ids], rows[words], columns[ids], columns[words])]
        if self.bpe_dropout is not None:
            columns |= self.bpe_dropout.retokenize(columns, seeds)
        return {name: columns[name] for name in ID_COLUMNS}


def with_special_tokens(*columns: Sequence[int]) -> list[int]:
    """The tokens of a new text with the special tokens of a row, such as that of its language.

    Args:
        *columns: tokens and words of the row, and tokens and words of the new text.
    """
    ids, words, new_ids, new_words = map(np.array, columns)
    new_ids[new_words < 0] = ids[words < 0]
    return new_ids.tolist()

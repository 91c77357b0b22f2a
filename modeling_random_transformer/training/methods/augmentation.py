"""Augmentation of training pairs: capitals, missing punctuation, typing errors, and other numbers and placeholders.

After OpusTrainer (Bogoychev et al. 2023, https://arxiv.org/abs/2311.14838). Models that are trained on clean text only
fail on capitals, and lose numbers and placeholders.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from string import ascii_lowercase, capwords, digits

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...data.tokenization import TEXTS, WORDS, tokenize_batch
from ...inference.placement import PLACEHOLDER
from ...inputs_random_transformer import LanguageTags, tokenizer_languages
from .bpe_dropout import BPEDropout

# The shares of pairs of `--augment true`, in the order in which the changes are applied.
SHARES = {
    "numbers": 0.05,
    "placeholders": 0.05,
    "no_punctuation": 0.05,
    "upper": 0.1,
    "title": 0.02,
    "lower": 0.05,
    "typos": 0.15,
}
SHARE = rf"({'|'.join(SHARES)})=(1|1\.0*|0?\.\d+|0)"
CASES = {"upper": str.upper, "title": partial(capwords, sep=" "), "lower": str.lower}
OF_SOURCES = ("lower", "typos")  # the other changes are made on both sides
NUMBER = re.compile(r"\b(?!1\b)\d+\b")  # not the number 1, whose noun is in the singular
FINAL_PUNCTUATION = re.compile(r"\s*[.!?…。！？]*\s*$")
PLACEHOLDERS = ("{name}", "{{name}}", "${name}", "%(name)s", "%s", "%d", "{0}", "https://name.org", "name@name.org")
TYPED = re.compile(r"([^\W\d_]| )(.?)")  # a letter or space, and the next character
NEXT_KEY = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wertyuiop[sdfghjkl;xcvbnm,", strict=True))
MAX_ERROR_RATE = 0.1
STREAM = 1  # of random numbers, so that they differ from those of BPE-dropout


def augmentation_shares(text: str) -> dict[str, float]:
    """The shares of pairs in `"upper=0.05,typos=0.1"`, by the name of the change; for `"true"`, `SHARES`.

    Raises:
        ValueError: a name is unknown, or a share is not a number from 0 to 1.
    """
    if text == "true":
        return SHARES
    if not re.fullmatch(f"{SHARE}(,{SHARE})*", text):
        raise ValueError(
            f"augment must be true, or shares from 0 to 1 of {', '.join(SHARES)}, such as 'upper=0.05,typos=0.1', "
            f"got {text!r}."
        )
    return {name: float(share) for name, share in re.findall(SHARE, text)}


def typing_errors(text: str, rate: float, random: np.random.Generator) -> str:
    """A text with missing, doubled, transposed and wrong letters and spaces, with a number of errors per letter."""

    def mistyped(match: re.Match[str]) -> str:
        typed, following = match.groups()
        if random.random() >= rate * len(match[0]):
            return match[0]
        wrong = NEXT_KEY.get(typed, typed)
        return str(random.choice([following, typed + match[0], following + typed, wrong + following]))

    return TYPED.sub(mistyped, text)


class Augmentation:
    """Changes shares of training pairs at random, and tokenizes them.

    Each change is drawn independently. Placeholders and special tokens in texts stay as they are. A target is changed
    only if its source is.

    Args:
        tokenizer: a fast tokenizer.
        shares: the shares of pairs, see `augmentation_shares`.
        bpe_dropout: segments all pairs afterwards; `None` for ordinary segmentations.
        max_length: a pair with a text of more tokens stays as it is.

    Raises:
        ValueError: the shares are invalid.
    """

    columns = (*WORDS, *TEXTS, "attention_mask")  # that the pairs have, beside `input_ids` and `labels`

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        shares: str = "true",
        bpe_dropout: BPEDropout | None = None,
        max_length: int | None = None,
    ):
        self.tokenizer = tokenizer
        self.shares = augmentation_shares(shares)
        self.bpe_dropout = bpe_dropout
        self.max_length = max_length
        self.languages = LanguageTags(*tokenizer_languages(tokenizer)[:1] * 2)  # their tags are replaced
        special = map(re.escape, tokenizer.all_special_tokens)
        self.unchanged = re.compile(f"({'|'.join([*special, PLACEHOLDER.pattern])})", re.VERBOSE)

    def __call__(self, source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
        """A pair with the changes that are drawn for it."""
        for name, share in self.shares.items():
            if random.random() < share:
                source, target = self.change(name, source, target, random)
        return source, target

    def change(self, name: str, source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
        """A pair with one change."""
        if name in ("numbers", "placeholders"):
            edit = self._copying(name, source, target, random)
        elif name == "no_punctuation":
            edit = partial(FINAL_PUNCTUATION.sub, "")
        else:
            errors = partial(typing_errors, rate=random.uniform(0, MAX_ERROR_RATE), random=random)
            edit = partial(self._edited, CASES.get(name, errors))
        changed = edit(source)
        return changed, target if name in OF_SOURCES or changed == source else edit(target)

    def _edited(self, edit: Callable[[str], str], text: str) -> str:
        """A text that is edited outside placeholders and special tokens."""
        parts = self.unchanged.split(text)
        parts[::2] = map(edit, parts[::2])
        return "".join(parts)

    def _copying(self, name: str, source: str, target: str, random: np.random.Generator) -> Callable[[str], str]:
        """The replacement of a common number of a pair; without one, an insertion at the beginning or the end."""
        common = {*NUMBER.findall(source)} & {*NUMBER.findall(target)}
        number = min(common, default="0" * random.integers(1, 7))
        copy = "".join(random.choice([*(digits if name == "numbers" else ascii_lowercase)], len(number)))
        if name == "placeholders":
            copy = random.choice(PLACEHOLDERS).replace("name", copy)
        if common:
            return partial(self._edited, partial(re.sub, rf"\b{number}\b", copy))
        if random.random() < 0.5 and not self.unchanged.match(source):
            return partial(re.sub, "^", f"{copy} ")
        return partial(FINAL_PUNCTUATION.sub, rf" {copy}\g<0>", count=1)

    def texts(self, texts: Iterable[str], seed: int) -> Iterator[str]:
        """Changed texts for a vocabulary with words in capitals, from sources that are each followed by a target."""
        alternating = iter(texts)
        for number, pair in enumerate(zip(alternating, alternating, strict=True)):
            yield from self(*pair, np.random.default_rng((seed, number)))

    def segment_columns(self, rows: dict[str, list], seeds: Sequence[tuple[int, ...]]) -> dict[str, list[list[int]]]:
        """Tokens of changed pairs, as columns; see `BPEDropout.segment_columns`."""
        pairs = []
        for seed, source, target in zip(seeds, rows["source"], rows["target"], strict=True):
            pairs.append(self(source, target, np.random.default_rng((*seed, STREAM))))
        sources, targets = zip(*pairs, strict=True)
        columns = tokenize_batch({"source": sources, "target": targets}, self.tokenizer, self.languages, words=True)
        for ids, words in zip(("input_ids", "labels"), WORDS, strict=True):
            columns[ids] = list(map(with_special_tokens, rows[ids], rows[words], columns[ids], columns[words]))
        names = ("input_ids", "labels", *self.columns)
        for row, lengths in enumerate(zip(columns["source_length"], columns["target_length"], strict=True)):
            if max(lengths) > (self.max_length or inf):
                for name in names:
                    columns[name][row] = rows[name][row]
        if self.bpe_dropout is not None:
            self.bpe_dropout.max_length = self.max_length
            columns |= self.bpe_dropout.segment_columns(columns, seeds)
        return {name: columns[name] for name in ("input_ids", "attention_mask", "labels")}


def with_special_tokens(
    ids: Sequence[int], words: Sequence[int], new_ids: Sequence[int], new_words: Sequence[int]
) -> list[int]:
    """The token ids of a new text with the special tokens of the original one, such as its language."""
    changed = np.array(new_ids)
    changed[np.less(new_words, 0)] = np.array(ids)[np.less(words, 0)]
    return changed.tolist()

"""Prints the size of a run when it starts, and a warning about each setting that rarely trains a good model.

A warning does not stop the run, since a test may have five pairs. The progress bar shows the remaining time.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from unicodedata import category

from datasets import Dataset
from tqdm import tqdm
from transformers import TrainerCallback

from ..data.sources import SIDES, Pair
from ..data.tokenization import ID_COLUMNS, lengths_of
from ..data.words import APOSTROPHES
from ..inference.calibration import MIN_PAIRS
from ..tokenization_random_transformer import normalize
from .arguments import split_and_label
from .preparation import PreparedData
from .training_arguments import TranslationTrainingArguments

MAX_EPOCHS = 300
FEW_PAIRS = 1000
MIN_OCCURRENCES = 20  # mean occurrences of a vocabulary entry in the training set
MAX_POST_NORM_RATE = 1.0  # peak rate times d_model; the paper's models have 0.36 (base) and 0.5 (big)
MAX_EVALUATED = 1000  # tokens of a text that is translated in an evaluation
SAMPLED_PAIRS = 1000  # pairs of each set whose sides are compared
MIN_CROSSED_RATIO = 1.2  # sides in one language are about equally similar
COUNTED_PAIRS = 100_000  # pairs of each corpus whose letters are counted
MIN_COUNT = 20  # observed and expected occurrences of a letter, so that a difference is not due to chance
MIN_FACTOR = 20  # ratio of the frequencies of a letter in two orthographies
MAX_FOREIGN = 0.005  # share of foreign letters in texts of one orthography
SHOWN_LETTERS = 8


class AdviceCallback(TrainerCallback):
    """Prints the size of a run and its warnings when training begins.

    Args:
        data: the data of the run.
    """

    def __init__(self, data: PreparedData):
        self.data = data

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        if not state.is_world_process_zero:
            return
        if "train" in self.data.tokens:  # a stream has no known length
            pairs = len(self.data.tokens["train"])
            print_lines([f"pairs: {pairs:,}, steps: {state.max_steps:,}, epochs: {state.num_train_epochs:,}"])
            print_lines(data_advice(self.data, state.num_train_epochs, is_new=not model.name_or_path))
            print_lines(copy_advice(self.data.pairs["train"]))
            if len(self.data.pairs) > 1 and len({corpus.direction for corpus in self.data.corpora}) == 1:
                print_lines(spelling_advice(self.data.pairs))
        print_lines(evaluation_advice(self.data.tokens))
        print_lines(schedule_advice(args, model.config, state.max_steps))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stderr, not into a progress bar."""
    for line in lines:
        tqdm.write(line, file=sys.stderr)


def schedule_advice(args: TranslationTrainingArguments, config: Any, steps: int) -> Iterator[str]:
    """The warnings about the learning rate for a model with a configuration and a number of steps."""
    warmup = args.get_warmup_steps(steps)
    if warmup >= steps:
        yield f"Warning: warmup_steps={warmup:,} does not end within {steps:,} steps; a tenth of the steps is enough."
    rate = args.peak_rate(config.d_model)
    highest = MAX_POST_NORM_RATE / config.d_model
    if rate > highest and config.norm_order == "post" and not args.muon:
        yield (
            f"Warning: the peak learning rate {rate:.1e} is too high for most post-norm models of width "
            f"{config.d_model}: set it to at most {highest:.1e}, or set norm_order=pre in config_overrides."
        )


def data_advice(data: PreparedData, epochs: int, is_new: bool) -> Iterator[str]:
    """The warnings about the data. Its size and its vocabulary are checked for a new model only."""
    if epochs > MAX_EPOCHS:
        yield f"Warning: {epochs:,} epochs of the training set; more than {MAX_EPOCHS} rarely help: reduce max_steps."
    lengths = lengths_of(data.tokens["train"])
    if is_new and len(lengths) < FEW_PAIRS:
        yield f"Warning: {len(lengths):,} pairs are too few to translate new sentences: a model needs some thousands."
    occurrences = lengths.sum() / len(data.tokenizer)
    if is_new and occurrences < MIN_OCCURRENCES:
        yield f"Warning: {occurrences:.1f} tokens per vocabulary entry are too few to learn it: reduce vocab_size."
    if len(data.corpora) == 1 and len(data.tokens) > 1:  # several corpora may be of several directions
        yield from swapped_sets(data)


def evaluation_advice(sets: Mapping[str, Dataset]) -> Iterator[str]:
    """The warnings about the validation and test sets, whose texts are neither skipped nor truncated."""
    for name, rows in sets.items():
        if name == "train":
            continue
        longest = int(lengths_of(rows).max())
        if longest > MAX_EVALUATED:
            yield (
                f"Warning: the longest text of the {name} set has {longest:,} tokens, so that its translation takes "
                "longer than that of many others. Remove it, or set generation_max_length."
            )
        if split_and_label(name)[0] == "validation" and len(rows) < MIN_PAIRS:
            yield (
                f"Warning: {len(rows):,} pairs of the {name} set are too few to calibrate the confidence of "
                f"translations: it needs {MIN_PAIRS}."
            )


def copy_advice(corpora: Iterable[Dataset]) -> Iterator[str]:
    """Warn if sources equal targets, for example because a file was given twice."""
    pairs: list[Pair] = []
    for corpus in corpora:
        sample = corpus[:SAMPLED_PAIRS]
        pairs += zip(sample["source"], sample["target"], strict=True)
    copies = sum(normalize(source) == normalize(target) for source, target in pairs)
    if copies > len(pairs) / 2:
        yield f"Warning: source and target are equal in {copies:,} of {len(pairs):,} pairs: the model learns to copy."


def swapped_sets(data: PreparedData) -> Iterator[str]:
    """Warn of each set whose sources share more tokens with the training targets than with the training sources."""
    sides = {}
    for name, rows in data.tokens.items():
        sample = rows[:SAMPLED_PAIRS]
        sides[name] = [{*chain.from_iterable(sample[column])} for column in ID_COLUMNS]
    train_source, train_target = sides["train"]
    for name, (source, target) in sides.items():
        straight = len(source & train_source) + len(target & train_target)
        crossed = len(source & train_target) + len(target & train_source)
        if crossed > MIN_CROSSED_RATIO * straight:
            yield f"Warning: source and target of the {name} set seem to be swapped."


def spelling_advice(texts: Mapping[str, Sequence[Dataset]]) -> Iterator[str]:
    """Warn of each set whose letters show another orthography than the training set's.

    Args:
        texts: the pairs of each corpus, with the columns `source` and `target`, by the name of the set.
    """
    held_out_sets = [name for name in texts if name != "train"]
    for side in SIDES:
        train = count_characters(texts["train"], side)
        for name in held_out_sets:
            held_out = count_characters(texts[name], side)
            more = foreign_letters(held_out, train)
            less = foreign_letters(train, held_out)
            if more.total() / held_out.total() + less.total() / train.total() > MAX_FOREIGN:
                yield (
                    f"Warning: the {side}s of the {name} set are spelled unlike those of the training set. More "
                    f"frequent letters: {format_letters(more)}; less frequent: {format_letters(less)}. Unify the "
                    "spelling, or expect lower scores."
                )


def count_characters(corpora: Iterable[Dataset], side: str) -> Counter[str]:
    """The characters of the first pairs of each corpus."""
    counts: Counter[str] = Counter()
    for pairs in corpora:
        for text in pairs[side][:COUNTED_PAIRS]:
            counts.update(normalize(text))
    return counts


def foreign_letters(counts: Counter[str], other_counts: Counter[str]) -> Counter[str]:
    """The letters, marks and apostrophes that are at least `MIN_FACTOR` times as frequent as in other texts."""
    scale = other_counts.total() / counts.total()
    letters: Counter[str] = Counter()
    for character, count in counts.items():
        expected = count * scale
        is_letter = category(character)[0] in "LM" or character in APOSTROPHES
        is_frequent = min(count, expected) >= MIN_COUNT
        if is_letter and is_frequent and expected > MIN_FACTOR * other_counts[character]:
            letters[character] = count
    return letters


def format_letters(letters: Counter[str]) -> str:
    """The most frequent letters, separated by spaces; `none` if there is none."""
    return " ".join(letter for letter, _ in letters.most_common(SHOWN_LETTERS)) or "none"

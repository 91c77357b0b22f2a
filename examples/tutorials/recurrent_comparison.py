"""Train the Transformer, an LSTM and a GRU on the same sentences, and measure throughput and exact match."""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, Trainer, set_seed

from modeling_random_transformer import RandomTransformerTokenizer

from .recurrent_model import RecurrentConfig, RecurrentForConditionalGeneration
from .report import BLUE, GREEN, ORANGE
from .sample_data import sample
from .training_helpers import (
    MAX_TOKENS,
    build_translator,
    encode_pairs,
    short_trainer,
    short_training_arguments,
    translate,
)

LENGTHS = (1, 2, 3, 4)  # sentences per text, equally frequent


class TextPair(NamedTuple):
    source: str
    target: str
    length: int  # number of sentences


class Candidate(NamedTuple):
    """A model to compare: how to build it for a tokenizer, its peak learning rate, and its color in the plot."""

    build: Callable[[RandomTransformerTokenizer], PreTrainedModel]
    learning_rate: float
    color: str


@dataclass
class Result:
    """The measurements of one model.

    Attributes:
        tokens_per_second: training throughput in source and target tokens, without padding.
        exact_match: in percent, by text length.
    """

    name: str
    parameters: int
    tokens_per_second: float
    exact_match: dict[int, float]

    @property
    def overall(self) -> float:
        """Exact match over all lengths."""
        return sum(self.exact_match.values()) / len(self.exact_match)


def build_recurrent(tokenizer: RandomTransformerTokenizer, cell: str, hidden_size: int) -> PreTrainedModel:
    config = RecurrentConfig(cell=cell, vocab_size=len(tokenizer), hidden_size=hidden_size)
    model = RecurrentForConditionalGeneration(config)
    model.generation_config.max_new_tokens = MAX_TOKENS
    return model


# The hidden sizes give the recurrent models the parameter count of the quickstart's Transformer. The learning rates
# were tuned in factors of two: with the Transformer's rate, the LSTM's exact match is less than half; with twice the
# rate, the Transformer converges later. The GRU uses the rate of the LSTM.
CANDIDATES = {
    "transformer": Candidate(build_translator, 2e-3, BLUE),
    "lstm": Candidate(partial(build_recurrent, cell="lstm", hidden_size=178), 8e-3, ORANGE),
    "gru": Candidate(partial(build_recurrent, cell="gru", hidden_size=206), 8e-3, GREEN),
}


def sample_texts(train_size: int, test_size: int, seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """Training texts and held-out texts. No sentence occurs twice."""
    size = train_size + test_size
    sentences = iter(sample(math.ceil(size / len(LENGTHS)) * sum(LENGTHS), seed))
    texts = []
    for index in range(size):
        length = LENGTHS[index % len(LENGTHS)]
        sources, targets = zip(*islice(sentences, length), strict=True)
        texts.append(TextPair(" ".join(sources), " ".join(targets), length))
    return texts[test_size:], texts[:test_size]


def as_pair(text: TextPair) -> tuple[str, str]:
    return text.source, text.target


def train_and_evaluate(
    name: str,
    train: list[TextPair],
    test: list[TextPair],
    tokenizer: RandomTransformerTokenizer,
    args: argparse.Namespace,
) -> Result:
    """Train a model from scratch and measure it."""
    set_seed(args.seed)
    model = CANDIDATES[name].build(tokenizer)
    data = encode_pairs(list(map(as_pair, train)), tokenizer)
    settings = short_training_arguments(
        args.output_dir,
        args.epochs,
        args.seed,
        per_device_train_batch_size=16,
        learning_rate=CANDIDATES[name].learning_rate,  # the other settings are the same for all models
        adam_epsilon=1e-9,
        label_smoothing_factor=0.1,
    )
    trainer = short_trainer(model, tokenizer, data, settings)
    seconds = training_seconds(trainer)
    tokens = args.epochs * sum(map(len, chain(data["input_ids"], data["labels"])))
    return Result(name, model.num_parameters(), tokens / seconds, exact_match(model.eval(), tokenizer, test))


def training_seconds(trainer: Trainer) -> float:
    """Train; return the wall time on a GPU, the process time on a CPU, which excludes the load of other processes."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    trainer.train()
    return clock() - start


def exact_match(
    model: PreTrainedModel, tokenizer: RandomTransformerTokenizer, test: list[TextPair]
) -> dict[int, float]:
    """The percentage of exact greedy translations, by text length."""
    translations = translate(model, tokenizer, [text.source for text in test], do_sample=False)
    hits: dict[int, list[bool]] = {length: [] for length in LENGTHS}
    for text, translation in zip(test, translations, strict=True):
        hits[text.length].append(translation == text.target)
    return {length: 100 * sum(exact) / len(exact) for length, exact in hits.items()}


def mean_source_tokens(texts: list[TextPair], tokenizer: RandomTransformerTokenizer) -> dict[int, float]:
    """The mean number of source tokens, by text length."""
    counts: dict[int, list[int]] = {length: [] for length in LENGTHS}
    for text in texts:
        counts[text.length].append(len(tokenizer(text.source)["input_ids"]))
    return {length: sum(tokens) / len(tokens) for length, tokens in counts.items()}

"""Train the Transformer and what it replaced, an LSTM and a GRU with attention, on the same data, and compare them.

    python examples/compare_recurrent.py                            # all three: a few minutes on a CPU
    python examples/compare_recurrent.py --models transformer gru   # only these
    python examples/compare_recurrent.py --epochs 2 --train_size 400

Seed 004 names two weaknesses of recurrence: it cannot work in parallel, and it struggles with what lies far apart. So
texts of one to four English sentences from the sample are to be translated into Spanish, and what counts is how many of
each length come out exactly right, and how fast training goes. The models have nearly the same number of parameters,
and batches, epochs, optimizer and schedule are the same. Only the peak of the learning rate is each model's own.

Three things to keep in mind. On one core there is little to gain from working in parallel, other than on a GPU.
Attention shows a recurrent decoder every word of the source directly, near or far: it was made for long sentences. And
some thousand texts do not tell which model would learn more from millions.

Exits with 0, or with 2 if an argument is not as it should be.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import torch
from datasets import Dataset
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from quickstart import LossOnTheBar, check_writable, encode, prepare_libraries, random_model, translate
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    ProgressCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from tutorials.quickstart_report import BLUE, ORANGE, console, show_table
from tutorials.recurrent_model import RecurrentConfig, RecurrentForConditionalGeneration
from tutorials.sample_data import sample

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.utils.command_line import Parser

VOCAB_SIZE, MAX_TOKENS = 4000, 128
LENGTHS = (1, 2, 3, 4)  # sentences in a text, equally often


class Text(NamedTuple):
    source: str
    target: str
    length: int  # in sentences


class Contestant(NamedTuple):
    """What makes the model for a tokenizer, the peak of its learning rate, and its colour in the picture."""

    make: Callable[[RandomTransformerTokenizer], PreTrainedModel]
    learning_rate: float
    color: str


@dataclass
class Result:
    """What was measured of one model."""

    name: str
    parameters: int
    tokens_per_second: float  # of source and target, padding not counted
    exact_match: dict[int, float]  # in percent, by length

    @property
    def overall(self) -> float:
        return sum(self.exact_match.values()) / len(self.exact_match)


def recurrent_model(tokenizer: RandomTransformerTokenizer, cell: str, hidden_size: int) -> PreTrainedModel:
    config = RecurrentConfig(cell=cell, vocab_size=len(tokenizer), hidden_size=hidden_size)
    model = RecurrentForConditionalGeneration(config)
    model.generation_config.max_new_tokens = MAX_TOKENS
    return model


# The hidden sizes bring the recurrent models to the number of parameters of the quickstart's Transformer. The learning
# rates were tuned in steps of two: at the Transformer's, the LSTM gets less than half of the texts right; at twice its
# own, the Transformer learns later. The GRU takes the LSTM's.
CONTESTANTS = {
    "transformer": Contestant(random_model, 2e-3, BLUE),
    "lstm": Contestant(partial(recurrent_model, cell="lstm", hidden_size=178), 8e-3, ORANGE),
    "gru": Contestant(partial(recurrent_model, cell="gru", hidden_size=206), 8e-3, "#4c9a6a"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    prepare_libraries(args.seed)
    train, test = make_texts(args.train_size, args.test_size, args.seed)
    tokenizer = RandomTransformerTokenizer.train(chain(*map(pair, train)), VOCAB_SIZE, model_max_length=MAX_TOKENS)

    results = [compete(name, train, test, tokenizer, args) for name in dict.fromkeys(args.models)]

    console.rule("Results")
    show_results(results)
    for line in [*conclusions(results), chance(len(test))]:
        console.print(line)
    path = args.output_dir / "comparison.png"
    draw(results, mean_tokens(test, tokenizer), path)
    console.print(f"Picture: {path}", soft_wrap=True)
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Exits with 2 where something is wrong."""
    parser = Parser("compare_recurrent.py", __doc__)
    parser.add_argument("--models", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="default: all")
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--train_size", type=int, default=3000, help="texts to learn from; default: %(default)s")
    parser.add_argument("--test_size", type=int, default=400, help="texts held out; default: %(default)s")
    parser.add_argument("--seed", type=int, default=17, help="default: %(default)s")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("outputs/compare_recurrent"), help="default: %(default)s"
    )
    args = parser.parse_args(arguments)
    try:
        check_arguments(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def check_arguments(args: argparse.Namespace) -> None:
    """Raises ValueError where an argument is not allowed."""
    if args.epochs < 1:
        raise ValueError(f"--epochs must be a positive integer, got {args.epochs}.")
    for name in ("train_size", "test_size"):
        if (size := getattr(args, name)) < len(LENGTHS):
            raise ValueError(f"--{name} must be at least {len(LENGTHS)}, one text of each length, got {size}.")
    if not 0 <= args.seed < 2**32:
        raise ValueError(f"--seed must be an integer from 0 to {2**32 - 1}, got {args.seed}.")
    if args.output_dir.exists() and not args.output_dir.is_dir():
        raise ValueError(f"--output_dir must be a folder, got the file {args.output_dir}.")
    check_writable(args.output_dir)


def make_texts(train_size: int, test_size: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Texts to learn from, and texts held out. No sentence occurs twice."""
    size = train_size + test_size
    sentences = iter(sample(math.ceil(size / len(LENGTHS)) * sum(LENGTHS), seed))
    texts = []
    for index in range(size):
        length = LENGTHS[index % len(LENGTHS)]
        sources, targets = zip(*islice(sentences, length), strict=True)
        texts.append(Text(" ".join(sources), " ".join(targets), length))
    return texts[test_size:], texts[:test_size]


def pair(text: Text) -> tuple[str, str]:
    return text.source, text.target


def compete(
    name: str, train: list[Text], test: list[Text], tokenizer: RandomTransformerTokenizer, args: argparse.Namespace
) -> Result:
    """Make a model, train it, and measure it."""
    console.rule(name)
    set_seed(args.seed)
    model = CONTESTANTS[name].make(tokenizer)
    data = encode(list(map(pair, train)), tokenizer)
    trainer = make_trainer(model, data, tokenizer, CONTESTANTS[name].learning_rate, args)
    seconds = training_seconds(trainer)
    tokens = args.epochs * sum(map(len, chain(data["input_ids"], data["labels"])))
    return Result(name, model.num_parameters(), tokens / seconds, score(model.eval(), tokenizer, test))


def make_trainer(
    model: PreTrainedModel,
    data: Dataset,
    tokenizer: RandomTransformerTokenizer,
    learning_rate: float,
    args: argparse.Namespace,
) -> Seq2SeqTrainer:
    """The quickstart's choices for every model, but for the learning rate, and for texts that are longer."""
    training_args = Seq2SeqTrainingArguments(
        output_dir=str(args.output_dir),
        num_train_epochs=args.epochs,
        seed=args.seed,
        per_device_train_batch_size=16,
        train_sampling_strategy="group_by_length",
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.2,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        label_smoothing_factor=0.1,
        logging_steps=0.04,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=False,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, training_args, train_dataset=data, data_collator=collator)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(LossOnTheBar)
    return trainer


def training_seconds(trainer: Seq2SeqTrainer) -> float:
    """Train. On a CPU it is processor time that counts: waiting while other programs run is no model's fault."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    trainer.train()
    return clock() - start


def score(model: PreTrainedModel, tokenizer: RandomTransformerTokenizer, test: list[Text]) -> dict[int, float]:
    """How many texts of each length are translated exactly, greedily, in percent."""
    translations = translate(model, tokenizer, [text.source for text in test], do_sample=False)
    hits: dict[int, list[bool]] = {length: [] for length in LENGTHS}
    for text, translation in zip(test, translations, strict=True):
        hits[text.length].append(translation == text.target)
    return {length: 100 * sum(found) / len(found) for length, found in hits.items()}


def mean_tokens(texts: list[Text], tokenizer: RandomTransformerTokenizer) -> dict[int, float]:
    """How many tokens the sources of each length have."""
    counts: dict[int, list[int]] = {length: [] for length in LENGTHS}
    for text in texts:
        counts[text.length].append(len(tokenizer(text.source)["input_ids"]))
    return {length: sum(found) / len(found) for length, found in counts.items()}


def show_results(results: Sequence[Result]) -> None:
    rows = [
        (
            result.name,
            f"{result.parameters:,}",
            f"{result.tokens_per_second:,.0f}",
            *(f"{percent:.1f}%" for percent in (result.overall, *result.exact_match.values())),
        )
        for result in results
    ]
    columns = ("model", "parameters", "tokens/s", "all", *map(str, LENGTHS))
    show_table("Size, training speed, and exact match by the number of sentences", columns, rows)


def conclusions(results: Sequence[Result]) -> list[str]:
    """What the figures say of speed, of all texts, and of the longest."""
    fastest, *slower = sorted(results, key=lambda result: -result.tokens_per_second)
    speed = [f"{other.name} {other.tokens_per_second / fastest.tokens_per_second:.2f} of that" for other in slower]
    ranks = [f"{result.name} {result.overall:.1f}%" for result in sorted(results, key=lambda result: -result.overall)]
    first, longest = LENGTHS[0], LENGTHS[-1]
    harm = [
        f"{result.name} {result.exact_match[longest]:.0f}% "
        f"({100 * (result.exact_match[first] / 100) ** longest:.0f}% if length did no harm)"
        for result in results
    ]
    return [
        f"Training speed: {', '.join([f'{fastest.name} {fastest.tokens_per_second:,.0f} tokens/s', *speed])}.",
        f"Exact match: {', '.join(ranks)}.",
        f"All {longest} sentences right: {', '.join(harm)}.",
    ]


def chance(test_size: int) -> str:
    texts = test_size // len(LENGTHS)
    points = min(100, 2 * 100 * math.sqrt(2 * 0.25 / texts))  # twice the standard error of a difference, at worst
    return f"One run, {texts} texts of each length: differences of up to {points:.0f} points at a length may be chance."


def draw(results: Sequence[Result], source_tokens: dict[int, float], path: Path) -> None:
    """Both measurements side by side, as a PNG."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_exact_match(left, results, source_tokens)
    draw_speed(right, results)
    for axes in (left, right):
        axes.grid(axis="y", color="#e6e6e6")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def draw_exact_match(axes: Axes, results: Sequence[Result], source_tokens: dict[int, float]) -> None:
    for result in results:
        color = CONTESTANTS[result.name].color
        axes.plot(LENGTHS, list(result.exact_match.values()), label=result.name, color=color, linewidth=2, marker="o")
    axes.set_title("Translated exactly, by length", loc="left", fontweight="bold")
    axes.set(xlabel="sentences in the text (mean source tokens)", ylabel="exact match (%)", ylim=(0, 104))
    axes.set_xticks(LENGTHS, [f"{length}\n({source_tokens[length]:.0f})" for length in LENGTHS])
    axes.legend(frameon=False)


def draw_speed(axes: Axes, results: Sequence[Result]) -> None:
    names = [result.name for result in results]
    speeds = [result.tokens_per_second for result in results]
    bars = axes.bar(names, speeds, width=0.6, color=[CONTESTANTS[name].color for name in names])
    axes.bar_label(bars, fmt="{:,.0f}", padding=2)
    axes.set_title("Training speed", loc="left", fontweight="bold")
    axes.set(ylabel="tokens per second", xlim=(-0.7, len(names) - 0.3))
    axes.margins(y=0.12)  # room for the labels
    axes.yaxis.set_major_formatter("{x:,.0f}")


if __name__ == "__main__":
    sys.exit(main())

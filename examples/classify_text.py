"""Train a text classifier in a minute or two, evaluate its accuracy, and classify texts with it.

    python examples/classify_text.py                                     # sample data: is B the translation of A?
    python examples/classify_text.py --classify "I see her." "La veo."   # also classify this pair
    python examples/classify_text.py --train_file train.tsv              # your own data: text, tab, label per line
    python examples/classify_text.py --model outputs/quickstart          # start from the encoder of a translation model

Lines may also have two texts and a label, to classify pairs. Without --test_file, a tenth of the training texts is
held out. The sample data contain each English sentence with its Spanish translation, and with the translation of
another sentence of the same type and length. A text or a pair is truncated to 128 tokens.

Exit status: 0 on success; 2 if an argument or a file is invalid.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from modeling_random_transformer.tokenization_random_transformer import read_lines
from tutorials.report import console, show_table
from tutorials.sample_data import SAMPLE_SEED, held_out_sample
from tutorials.scripts import exit_status
from tutorials.training_helpers import (
    MAX_TOKENS,
    Pairs,
    build_or_load,
    check_single_stack_arguments,
    configure_libraries,
    hold_out,
    short_trainer,
    short_training_arguments,
    single_stack_parser,
)

SAMPLE_SIZE = 9300  # new sentences improve accuracy more than additional epochs
HOW_TO_LOAD = """
    import modeling_random_transformer  # registers the Auto classes
    from transformers import pipeline

    classifier = pipeline("text-classification", model={folder!r})
    print(classifier({texts!r}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = single_stack_parser("classify_text.py", __doc__, epochs=5, output_dir="outputs/classify_text")
    parser.add_argument("--classify", nargs="+", default=[], metavar="TEXT", help="texts or pairs to classify")
    args = parser.parse_args(arguments)
    return exit_status(lambda: run(args), parser.prog)


def run(args: argparse.Namespace) -> None:
    check_single_stack_arguments(args)
    configure_libraries(args.seed)
    train, test = read_data(args.train_file, args.test_file, args.seed)
    questions = group_texts(args.classify, train)
    model, tokenizer = build_classifier(args.model, train, {label for _, label in train + test})
    encoded = encode(train, model, tokenizer)
    tokenize(tokenizer, [*questions, *texts_of(test)])  # raises for invalid text before training starts

    console.rule("Data")
    show_rows(f"{len(train)} training texts, {len(test)} held out", ("text", "label"), train[:4])
    console.rule("Training")
    settings = short_training_arguments(args.output_dir, args.epochs, args.seed, args.max_steps, learning_rate=1e-3)
    trainer = short_trainer(model, tokenizer, encoded, settings, data_collator=DataCollatorWithPadding(tokenizer))
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()

    console.rule("Trained model")
    show_accuracy(train, test, classify(model, tokenizer, texts_of(test)))
    if questions:
        answers = classify(model, tokenizer, questions)
        rows = [(texts, *answer) for texts, answer in zip(questions, answers, strict=True)]
        show_rows("Your texts", ("text", "predicted", "probability"), rows)
    console.print(f"Training time: {seconds:.0f} s\nModel folder:  {args.output_dir}", soft_wrap=True)
    example = dict(zip(("text", "text_pair"), test[0][0].split("\t"), strict=False))  # a single text has no text_pair
    console.print(HOW_TO_LOAD.format(folder=str(args.output_dir), texts=example), soft_wrap=True)


# Data: rows of a text, or two texts joined by a tab, and a label


def read_data(train_file: Path | None, test_file: Path | None, seed: int) -> tuple[Pairs, Pairs]:
    """Training rows and held-out rows. Raises ValueError if a file is invalid."""
    if train_file is None:
        train, test = held_out_sample(SAMPLE_SIZE)
        return translation_or_not(train), translation_or_not(test)
    train = read_rows(train_file)
    labels = {label for _, label in train}
    if len(labels) < 2:
        raise ValueError(f"--train_file must have at least two labels, got only {labels.pop()!r} in {train_file}.")
    if test_file is None:
        return hold_out(train, seed)
    test = read_rows(test_file)
    if texts_per_row(train) != texts_per_row(test):
        raise ValueError(
            "--train_file and --test_file must have the same number of texts per line, "
            f"got {texts_per_row(train)} in {train_file} and {texts_per_row(test)} in {test_file}."
        )
    if unknown := {label for _, label in test} - labels:
        raise ValueError(f"--test_file must have only labels of --train_file, got {min(unknown)!r} in {test_file}.")
    return train, test


def translation_or_not(pairs: Pairs) -> Pairs:
    """Each English sentence with its translation, and with that of another sentence of the same type and length."""
    ordered = sorted(pairs, key=lambda pair: (pair[1][-1], " no " in pair[1].lower(), len(pair[1].split())))
    rows = []
    for (english, spanish), (_, another) in zip(ordered, ordered[1:] + ordered[:1], strict=True):
        rows += [(f"{english}\t{spanish}", "translation"), (f"{english}\t{another}", "another")]
    random.Random(SAMPLE_SEED).shuffle(rows)
    return rows


def read_rows(path: Path) -> Pairs:
    rows: Pairs = []
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file, str(path)), start=1):
            *texts, label = [column.strip() for column in line.split("\t")]
            if not (texts and label and all(texts)):
                raise ValueError(f"every line must be a text, a tab and a label, got line {number} of {path}.")
            rows.append(("\t".join(texts), label))
            if len(texts) > 2 or len(texts) != texts_per_row(rows):
                raise ValueError(
                    f"all lines must have one text, or all two, got {len(texts)} in line {number} of {path}."
                )
    if not rows:
        raise ValueError(f"a file must have at least one text with its label, got none in {path}.")
    return rows


def texts_per_row(rows: Pairs) -> int:
    """1, or 2 for pairs."""
    return len(rows[0][0].split("\t"))


def texts_of(rows: Pairs) -> list[str]:
    return [texts for texts, _ in rows]


def group_texts(texts: Sequence[str], rows: Pairs) -> list[str]:
    """The texts of the command line in the format of the rows: single texts or pairs."""
    size = texts_per_row(rows)
    if not all(text.strip() for text in texts) or len(texts) % size:
        raise ValueError(f"--classify must be nonempty texts, {size} for each classification, got {texts}.")
    return ["\t".join(texts[first : first + size]) for first in range(0, len(texts), size)]


# Model


def build_classifier(folder: Path | None, rows: Pairs, labels: set[str]) -> tuple[Any, Any]:
    """A model for the labels and its tokenizer. Without a folder, the tokenizer is trained on the rows."""
    id2label = dict(enumerate(sorted(labels)))
    label2id = {label: index for index, label in id2label.items()}
    texts = chain.from_iterable(text.split("\t") for text in texts_of(rows))
    return build_or_load(AutoModelForSequenceClassification, folder, texts, id2label=id2label, label2id=label2id)


def tokenize(tokenizer: Any, texts: Sequence[str], **options: Any) -> Any:
    """Token ids of texts or of pairs."""
    columns = map(list, zip(*(text.split("\t") for text in texts), strict=True))
    return tokenizer(*columns, truncation=True, max_length=MAX_TOKENS, **options)


def encode(rows: Pairs, model: Any, tokenizer: Any) -> Dataset:
    labels = [model.config.label2id[label] for _, label in rows]
    return Dataset.from_dict({**tokenize(tokenizer, texts_of(rows)), "labels": labels})


@torch.no_grad()
def classify(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[tuple[str, str]]:
    """The predicted label of each text or pair, and its probability."""
    model.eval()
    predicted = []
    for first in range(0, len(texts), 100):
        inputs = tokenize(tokenizer, texts[first : first + 100], padding=True, return_tensors="pt").to(model.device)
        probabilities, best = model(**inputs).logits.softmax(dim=-1).max(dim=-1)
        labels = [model.config.id2label[index] for index in best.tolist()]
        predicted += list(zip(labels, (f"{probability:.2f}" for probability in probabilities), strict=True))
    return predicted


# Output


def show_accuracy(train: Pairs, test: Pairs, predicted: list[tuple[str, str]]) -> None:
    """Some of the held-out texts, the accuracy, and that of the most frequent training label as a baseline."""
    rows = [(*row, *prediction) for row, prediction in zip(test, predicted, strict=True)]
    show_rows("Held-out texts", ("text", "label", "predicted", "probability"), rows[:8])
    ((majority, _),) = Counter(label for _, label in train).most_common(1)
    correct = sum(label == answer for _, label, answer, _ in rows)
    baseline = sum(label == majority for _, label in test)
    console.print(f"Accuracy on {len(test)} held-out texts: {correct / len(test):.1%}")
    console.print(f"Baseline, always {majority!r}: {baseline / len(test):.1%}")


def show_rows(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    show_table(title, columns, [(texts.replace("\t", " | "), *cells) for texts, *cells in rows])


if __name__ == "__main__":
    sys.exit(main())

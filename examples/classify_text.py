"""Train a text classifier in a minute or two, see how often it is right, and ask it something.

    python examples/classify_text.py                                     # the sample: is this its translation?
    python examples/classify_text.py --classify "I see her." "La veo."   # … and then classify this pair
    python examples/classify_text.py --train_file train.tsv              # your own: text, tab, label on each line
    python examples/classify_text.py --model outputs/quickstart          # start from a translator's encoder

A line may also hold two texts and a label: then it is a pair that is classified. Without --test_file a tenth of the
texts is held out. In the sample an English sentence stands beside a Spanish one: its translation, or that of another
sentence of the same kind and length. Only the first 128 tokens of a text or a pair count.

Exits with 0, or with 2 if an argument or a file is not as it should be.
"""

import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from language_model import CUT, SAMPLE_HELD_OUT, SAMPLE_SEED, argument_parser, check_arguments, make_trainer, start
from quickstart import Pairs, hold_out, prepare_libraries
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding
from tutorials.quickstart_report import console, show_table
from tutorials.sample_data import sample

from modeling_random_transformer.translation import read_lines

SAMPLE_SIZE = 9300  # different sentences teach more than the same ones again
HOW_TO_LOAD = """
    import modeling_random_transformer  # makes the model known to the Auto classes
    from transformers import AutoModelForSequenceClassification, pipeline

    model = AutoModelForSequenceClassification.from_pretrained({folder!r})  # … or all that is needed at once:
    print(pipeline("text-classification", model={folder!r})({texts!r}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argument_parser("classify_text.py", __doc__, epochs=5, output_dir="outputs/classify_text")
    parser.add_argument("--classify", nargs="+", default=[], metavar="TEXT", help="texts or pairs to classify at last")
    args = parser.parse_args(arguments)
    try:
        check_arguments(args)
        prepare_libraries(args.seed)
        train, test = read_data(args.train_file, args.test_file, args.seed)
        questions = grouped(args.classify, train)
        model, tokenizer = new_classifier(args.model, train, {label for _, label in train + test})
        encoded = encode(train, model, tokenizer)
        tokenize(tokenizer, [*questions, *texts_of(test)])  # what it refuses is refused before the training
    except ValueError as error:
        parser.error(str(error))

    console.rule("The data")
    show_rows(f"{len(train)} texts to learn from, {len(test)} held out", ("text", "label"), train[:4])
    console.rule("Training")
    trainer = make_trainer(model, tokenizer, encoded, DataCollatorWithPadding(tokenizer), args)
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()

    console.rule("The trained model")
    report(train, test, classify(model, tokenizer, texts_of(test)))
    if questions:
        answers = classify(model, tokenizer, questions)
        rows = [(texts, *answer) for texts, answer in zip(questions, answers, strict=True)]
        show_rows("Your texts", ("text", "found", "probability"), rows)
    console.print(f"Training time: {seconds:.0f} s\nModel folder:  {args.output_dir}", soft_wrap=True)
    example = dict(zip(("text", "text_pair"), test[0][0].split("\t"), strict=False))  # a pair has both
    console.print(HOW_TO_LOAD.format(folder=str(args.output_dir), texts=example), soft_wrap=True)
    return 0


# The data: texts, those of a pair with a tab between them, and their labels


def read_data(train_file: Path | None, test_file: Path | None, seed: int) -> tuple[Pairs, Pairs]:
    """What to learn from, and what is held out. Raises ValueError where a file is not as it should be."""
    if train_file is None:
        pairs = sample(SAMPLE_SIZE, SAMPLE_SEED)
        return translation_or_not(pairs[SAMPLE_HELD_OUT:]), translation_or_not(pairs[:SAMPLE_HELD_OUT])
    train = read_rows(train_file)
    labels = {label for _, label in train}
    if len(labels) < 2:
        raise ValueError(f"--train_file must hold at least two labels, got only {labels.pop()!r} in {train_file}.")
    if test_file is None:
        return hold_out(train, seed)
    test = read_rows(test_file)
    if width(train) != width(test):
        raise ValueError(
            "--train_file and --test_file must hold the same number of texts a line, "
            f"got {width(train)} in {train_file} and {width(test)} in {test_file}."
        )
    if unknown := {label for _, label in test} - labels:
        raise ValueError(f"--test_file must hold labels of --train_file only, got {min(unknown)!r} in {test_file}.")
    return train, test


def translation_or_not(pairs: Pairs) -> Pairs:
    """Each English sentence twice: with its translation, and with that of another one of its kind and length."""
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
                raise ValueError(f"every line must hold a text, a tab and a label, not so line {number} of {path}.")
            rows.append(("\t".join(texts), label))
            if len(texts) > 2 or len(texts) != width(rows):
                raise ValueError(
                    f"all lines must hold one text, or all two, got {len(texts)} in line {number} of {path}."
                )
    if not rows:
        raise ValueError(f"a file must hold at least one text and its label, got none in {path}.")
    return rows


def width(rows: Pairs) -> int:
    """How many texts are classified together."""
    return len(rows[0][0].split("\t"))


def texts_of(rows: Pairs) -> list[str]:
    return [texts for texts, _ in rows]


def grouped(texts: Sequence[str], rows: Pairs) -> list[str]:
    """The texts as those of the rows: by themselves, or two and two."""
    if not all(text.strip() for text in texts) or len(texts) % width(rows):
        raise ValueError(f"--classify must name texts, {width(rows)} for each answer and none empty, got {texts}.")
    return ["\t".join(texts[first : first + width(rows)]) for first in range(0, len(texts), width(rows))]


# The model


def new_classifier(folder: Path | None, rows: Pairs, labels: set[str]) -> tuple[Any, Any]:
    """A model for the labels, and its tokenizer: learned from the rows if there is no folder."""
    names = dict(enumerate(sorted(labels)))
    texts = chain.from_iterable(text.split("\t") for text in texts_of(rows))
    numbers = {name: number for number, name in names.items()}
    return start(AutoModelForSequenceClassification, folder, texts, id2label=names, label2id=numbers)


def tokenize(tokenizer: Any, texts: Sequence[str], **options: Any) -> Any:
    """Token ids of texts or of pairs."""
    return tokenizer(*map(list, zip(*(text.split("\t") for text in texts), strict=True)), **CUT, **options)


def encode(rows: Pairs, model: Any, tokenizer: Any) -> Dataset:
    labels = [model.config.label2id[label] for _, label in rows]
    return Dataset.from_dict({**tokenize(tokenizer, texts_of(rows)), "labels": labels})


@torch.no_grad()
def classify(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[tuple[str, str]]:
    """The label found for each text or pair, and its probability."""
    model.eval()
    found = []
    for first in range(0, len(texts), 100):
        inputs = tokenize(tokenizer, texts[first : first + 100], padding=True, return_tensors="pt").to(model.device)
        probabilities, best = model(**inputs).logits.softmax(dim=-1).max(dim=-1)
        labels = [model.config.id2label[number] for number in best.tolist()]
        found += list(zip(labels, (f"{probability:.2f}" for probability in probabilities), strict=True))
    return found


# What is shown


def report(train: Pairs, test: Pairs, found: list[tuple[str, str]]) -> None:
    """Some of the held-out texts, and how often the model is right beside one that always says the same."""
    rows = [(*row, *answer) for row, answer in zip(test, found, strict=True)]
    show_rows("Held-out texts", ("text", "label", "found", "probability"), rows[:8])
    ((majority, _),) = Counter(label for _, label in train).most_common(1)
    right = sum(label == answer for _, label, answer, _ in rows)
    most_common = sum(label == majority for _, label in test)
    console.print(f"Right about {right / len(test):.1%} of {len(test)} held-out texts")
    console.print(f"Always {majority!r} would be right about {most_common / len(test):.1%}")


def show_rows(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    show_table(title, columns, [(texts.replace("\t", " | "), *others) for texts, *others in rows])


if __name__ == "__main__":
    sys.exit(main())

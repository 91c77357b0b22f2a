"""Train a constituency parser (section 6.3 of the paper) and parse sentences with it.

    python examples/parse_sentences.py                                      # trees of the sample data, in a minute
    python examples/parse_sentences.py --train_file train.ptb --validation_file dev.ptb --test_file test.ptb
    python examples/parse_sentences.py --parse_only "The king 's dog is sad ."   # with the model in --output_dir

A file has one bracketed tree per line. The words of a sentence are separated by spaces, as in the trees. Output is
constrained: it is always a well-formed tree over exactly the words of the input. The bracket F1 of the validation
trees determines the number of beams.

Exit status: 0 on success; 1 if the F1 of the held-out sample trees is less than 95; 2 if an argument or a file is
invalid.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nltk import Tree
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer

from modeling_random_transformer.extras.parser import existing_file
from modeling_random_transformer.training.arguments import parse_overrides
from tutorials.parsing_model import encode_trees, parse, train_tokenizer
from tutorials.parsing_trees import BracketScores, bracket_scores, normalize, one_line, read_trees, words_of
from tutorials.report import console, show_table
from tutorials.sample_data import HELD_OUT, SAMPLE_SEED, sample_trees
from tutorials.scripts import exit_status, script_parser
from tutorials.training_helpers import (
    VOCAB_SIZE,
    add_training_arguments,
    build_translator,
    check_sentences,
    check_trained,
    check_writable,
    configure_libraries,
    short_trainer,
    short_training_arguments,
    status_of_score,
)

FILES = ("train_file", "validation_file", "test_file")
SAMPLE_SIZE = 3000  # training trees
# Four layers as in the paper. In a run this short, pre-norm reaches half the loss of post-norm.
ARCHITECTURE = {"encoder_layers": 4, "decoder_layers": 4, "norm_order": "pre"}
BEAMS = (1, 4)
REQUIRED_F1 = 95.0  # the minimum on held-out sample trees


def main(argv: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(argv)), "parse_sentences.py")


def run(args: argparse.Namespace) -> int:
    configure_libraries(args.seed)
    if args.parse_only:
        show_parses(*load(args.output_dir), args.sentence)
        return 0

    console.rule("Data")
    rows = [(" ".join(tree.leaves()), one_line(tree)) for tree in args.train[:3]]
    title = f"{len(args.train)} training trees, {len(args.validation)} for validation, {len(args.test)} held out"
    show_table(title, ("sentence", "tree"), rows)
    console.rule("Training")
    trainer = build_trainer(args)
    seconds = trainer.train().metrics["train_runtime"]

    console.rule("Trained model")
    model, tokenizer = trainer.model.eval(), trainer.processing_class
    validation = {beams: evaluate(model, tokenizer, args.validation, beams) for beams in BEAMS}
    best = max(BEAMS, key=lambda beams: validation[beams].f1)  # the first of equal scores
    model.generation_config.num_beams = best
    trainer.save_model()
    test = evaluate(model, tokenizer, args.test, best)
    scores = {f"validation, {name(beams)}": score for beams, score in validation.items()}
    show_scores({**scores, f"test, {name(best)}": test})
    if args.sentence:
        show_parses(model, tokenizer, args.sentence)
    console.print(f"Training time: {seconds:.0f} s\nModel folder:  {args.output_dir}", soft_wrap=True)
    return 0 if args.train_file else status_of_score("F1 of held-out trees", test.f1, REQUIRED_F1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, with the trees as `train`, `validation` and `test`.

    Raises:
        ValueError: an argument, a combination of arguments or a file is invalid.
    """
    parser = script_parser("parse_sentences.py", __doc__)
    parser.add_argument("sentence", nargs="*", help="sentences to parse with the trained model; words between spaces")
    for name in FILES:
        parser.add_argument(f"--{name}", type=existing_file, metavar="FILE", help="bracketed trees (default: sample)")
    parser.add_argument("--parse_only", action="store_true", help="do not train; use the model in --output_dir")
    parser.add_argument("--vocab_size", type=int, default=VOCAB_SIZE, help="maximum size of the vocabulary")
    overrides = "fields of the model's configuration, such as d_model=256,dropout=0.3"
    parser.add_argument("--config_overrides", default="", metavar="FIELDS", help=overrides)
    add_training_arguments(parser, epochs=5, output_dir="outputs/parser")
    args = parser.parse_args(argv)
    passed_files = [name for name in FILES if getattr(args, name) is not None]
    if passed_files and len(passed_files) < len(FILES):
        raise ValueError(f"--{', --'.join(FILES)} must be given together, got only --{', --'.join(passed_files)}.")
    check_sentences(args.sentence)
    args.config_overrides = parse_overrides(args.config_overrides)
    if args.parse_only:
        check_trained(args.output_dir, args.sentence, "--parse_only")
    else:
        check_writable(args.output_dir)
        args.train, args.validation, args.test = read_data(args)
    return args


def read_data(args: argparse.Namespace) -> list[list[Tree]]:
    """Training, validation and test trees. Raises ValueError if a file is invalid."""
    if args.train_file is not None:
        return [read_trees(getattr(args, name)) for name in FILES]
    trees = [normalize(Tree.fromstring(tree)) for tree, _ in sample_trees(SAMPLE_SIZE + 2 * HELD_OUT, SAMPLE_SEED)]
    return [trees[2 * HELD_OUT :], trees[HELD_OUT : 2 * HELD_OUT], trees[:HELD_OUT]]


def build_trainer(args: argparse.Namespace) -> Trainer:
    tokenizer = train_tokenizer(args.train, args.vocab_size)
    # The sample has no noise to overfit.
    dropout = {"dropout": 0.0} if args.train_file is None else {}
    model = build_translator(tokenizer, **{**ARCHITECTURE, **dropout, **args.config_overrides})
    optimizer = {"learning_rate": 2e-3, "adam_epsilon": 1e-9}
    settings = short_training_arguments(args.output_dir, args.epochs, args.seed, args.max_steps, **optimizer)
    return short_trainer(model, tokenizer, encode_trees(tokenizer, args.train), settings)


def load(folder: Path) -> tuple[Any, Any]:
    """The saved model and its tokenizer."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def evaluate(model: Any, tokenizer: Any, trees: Sequence[Tree], num_beams: int) -> BracketScores:
    return bracket_scores(parse(model, tokenizer, [tree.leaves() for tree in trees], num_beams=num_beams), trees)


def name(num_beams: int) -> str:
    """As in the tables."""
    return "greedy" if num_beams == 1 else f"{num_beams} beams"


def show_scores(scores: dict[str, BracketScores]) -> None:
    rows = [
        (trees, *(f"{value:.1f}" for value in (score.precision, score.recall, score.f1, score.complete_match)))
        for trees, score in scores.items()
    ]
    show_table("Labeled brackets, in percent", ("trees", "precision", "recall", "F1", "complete match"), rows)


def show_parses(model: Any, tokenizer: Any, sentences: Sequence[str]) -> None:
    for tree in parse(model, tokenizer, [words_of(sentence) for sentence in sentences]):
        console.print(one_line(tree), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())

"""Train a small translation model from scratch in about a minute, evaluate it, and translate with it.

    python examples/quickstart.py                                # sample data: English to Spanish
    python examples/quickstart.py "I like the red car."          # also translate this sentence
    python examples/quickstart.py --source a.en --target a.es --output_dir outputs/mine  # sentences, one per line
    python examples/quickstart.py --tsv pairs.tsv --output_dir outputs/mine              # source, tab and target
    python examples/quickstart.py --translate_only "I see her."  # translate with the model in --output_dir

Exit status: 0 on success; 1 if the model translates less than 95% of the held-out sample sentences exactly;
2 if an argument or a file is invalid.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

try:
    import matplotlib  # noqa: F401
    import rich  # noqa: F401
    import sacrebleu
except ModuleNotFoundError as error:
    sys.exit(f"quickstart.py: error: {error.name} must be installed: pip install 'random-transformer[train]'.")

from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, set_seed

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from modeling_random_transformer.data import ParallelLine, ParallelText, validate
from tutorials.report import console, draw_attention, draw_losses, show_summary, show_table
from tutorials.sample_data import EXAMPLES, describe_lexicon, write_sample
from tutorials.scripts import exit_status, script_parser
from tutorials.training_helpers import (
    MAX_TOKENS,
    VOCAB_SIZE,
    Pairs,
    add_training_arguments,
    build_translator,
    check_sentences,
    check_trained,
    check_writable,
    configure_libraries,
    encode_pairs,
    hold_out,
    short_trainer,
    short_training_arguments,
    status_of_score,
    translate,
)

DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "beam 4": {"num_beams": 4},
    "sampling": {"do_sample": True, "top_p": 0.9},
}
LABEL_SMOOTHING = 0.1
REQUIRED_EXACT_MATCH = 95.0  # percent of the held-out sample sentences, translated greedily
EXPECTED_SECONDS = 180  # maximum training time


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(arguments)), "quickstart.py")


def run(args: argparse.Namespace) -> int:
    configure_libraries(args.seed)
    if args.translate_only:
        show_translations(*load(args.output_dir), args.sentence)
        return 0

    console.rule("Data")
    show_table(f"{len(args.train)} training pairs, {len(args.test)} held out", ("source", "target"), args.train[:4])
    tokenizer = RandomTransformerTokenizer.train(chain(*args.train), VOCAB_SIZE, model_max_length=MAX_TOKENS)

    console.rule("Random model")
    # The sample has no noise to overfit: without dropout, the model learns it in two thirds of the epochs.
    model = build_translator(tokenizer, **({"dropout": 0.0} if args.sample else {}))
    example = "hello world" if args.sample else args.test[0][0]
    show_translation(model.eval(), tokenizer, example, max_new_tokens=6)

    console.rule("Training")
    trainer = build_trainer(model, tokenizer, args)
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()
    trainer.save_state()
    if args.sample:
        write_card(args.output_dir)

    console.rule("Trained model")
    model, tokenizer = load(args.output_dir)
    show_translation(model, tokenizer, example)
    if args.sentence:
        show_translations(model, tokenizer, args.sentence)
    scores = evaluate(model, tokenizer, args.test)
    draw_losses(trainer.state.log_history, args.output_dir / "loss.png", model.config, LABEL_SMOOTHING)
    model, _ = load(args.output_dir, attn_implementation="eager")  # SDPA does not return attention weights
    draw_attention(model, tokenizer, sentence_to_draw(args), args.output_dir / "attention.png")

    console.rule("Summary")
    sentence = EXAMPLES[2] if args.sample else example  # it has no apostrophe, which a shell would need escaped
    show_summary(scores, seconds, args.output_dir, sentence)
    if seconds > EXPECTED_SECONDS:
        console.print(f"Training took more than {EXPECTED_SECONDS} s: the CPU is slow or busy.", style="yellow")
    exact_match = scores["greedy"][0]
    return status_of_score("Exact match of held-out sentences", exact_match, REQUIRED_EXACT_MATCH) if args.sample else 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, with the pairs of the files as `train` and `test`.

    Raises:
        ValueError: an argument, a combination of arguments or a file is invalid.
    """
    parser = script_parser("quickstart.py", __doc__)
    parser.add_argument("sentence", nargs="*", help="sentences to translate with the trained model")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--source", type=Path, metavar="FILE", help="source sentences, one per line")
    data.add_argument("--tsv", type=Path, metavar="FILE", help="source, tab and target on each line")
    data.add_argument("--translate_only", action="store_true", help="do not train; use the model in --output_dir")
    parser.add_argument("--target", type=Path, metavar="FILE", help="the translations of --source, line by line")
    add_training_arguments(parser, epochs=8, output_dir="outputs/quickstart")
    args = parser.parse_args(arguments)
    args.sample = not (args.source or args.tsv)
    if (args.source is None) != (args.target is None):
        raise ValueError(f"--source and --target must be given together, got {args.source} and {args.target}.")
    check_sentences(args.sentence)
    if args.translate_only:
        check_trained(args.output_dir, args.sentence, "--translate_only")
    else:
        check_writable(args.output_dir)
        args.train, args.test = read_data(args)
    return args


def read_data(args: argparse.Namespace) -> tuple[Pairs, Pairs]:
    """Training pairs and held-out pairs. Raises ValueError if a file is invalid."""
    if not args.sample:
        return hold_out(read_pairs(args.tsv or args.source, args.target), args.seed)
    folder = args.output_dir / "data"
    write_sample(folder)
    return read_pairs(folder / "train.en", folder / "train.es"), read_pairs(folder / "test.en", folder / "test.es")


def read_pairs(source: Path, target: Path | None) -> Pairs:
    text = ParallelText(source, target)
    if (report := validate(text)).invalid:
        raise ValueError(f"every line must contain a sentence and its translation, got {report}.")
    return [(line.source.strip(), line.target.strip()) for line in text.lines() if isinstance(line, ParallelLine)]


def build_trainer(
    model: RandomTransformerForConditionalGeneration, tokenizer: RandomTransformerTokenizer, args: argparse.Namespace
) -> Trainer:
    settings = short_training_arguments(
        args.output_dir,
        args.epochs,
        args.seed,
        args.max_steps,
        learning_rate=2e-3,
        adam_epsilon=1e-9,
        label_smoothing_factor=LABEL_SMOOTHING,
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=0.1,
    )
    train, test = (encode_pairs(pairs, tokenizer) for pairs in (args.train, args.test))
    return short_trainer(model, tokenizer, train, settings, eval_dataset=test)


def write_card(folder: Path) -> None:
    """Write a model card that says what the model can translate, with sentences to try."""
    widget = [{"text": text} for text in EXAMPLES]
    metadata = ModelCardData(
        language=["en", "es"], library_name="transformers", pipeline_tag="translation", widget=widget
    )
    ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n# Quickstart\n\n{describe_lexicon()}\n").save(folder / "README.md")


def load(folder: Path, **options: Any) -> tuple[Any, Any]:
    """The saved model and its tokenizer."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)


def evaluate(model: Any, tokenizer: Any, test: Pairs) -> dict[str, tuple[float, float]]:
    """Exact match in percent and BLEU of each decoding method. Prints some of the greedy translations."""
    sources, references = map(list, zip(*test, strict=True))
    scores = {}
    for name, generate_kwargs in DECODINGS.items():
        set_seed(0)  # sampling does not depend on earlier draws
        translations = translate(model, tokenizer, sources, **generate_kwargs)
        hits = [translation == reference for translation, reference in zip(translations, references, strict=True)]
        scores[name] = 100 * sum(hits) / len(hits), sacrebleu.corpus_bleu(translations, [references]).score
        if name == "greedy":
            rows = zip(sources, translations, references, strict=True)
            show_table("Held-out sentences", ("source", "translation", "reference"), list(rows)[:6])
    return scores


def show_translation(model: Any, tokenizer: Any, sentence: str, **generate_kwargs: Any) -> None:
    (translation,) = translate(model, tokenizer, [sentence], **generate_kwargs)
    console.print(f"{sentence!r} → {translation!r}")


def show_translations(model: Any, tokenizer: Any, sentences: Sequence[str]) -> None:
    """A table of the translations by each decoding method."""
    columns = [translate(model, tokenizer, sentences, **kwargs) for kwargs in DECODINGS.values()]
    show_table("Your sentences", ("source", *DECODINGS), zip(sentences, *columns, strict=True))


def sentence_to_draw(args: argparse.Namespace) -> str:
    """The first sentence of the command line, or a held-out sentence of about nine words."""
    return args.sentence[0] if args.sentence else min((s for s, _ in args.test), key=lambda s: abs(len(s.split()) - 9))


if __name__ == "__main__":
    sys.exit(main())

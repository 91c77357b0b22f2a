"""Train a translator from nothing in about a minute, see what it has learned, and ask it something.

    python examples/quickstart.py                                # the sample data: English to Spanish
    python examples/quickstart.py "I like the red car."          # … and then translate this
    python examples/quickstart.py --source a.en --target a.es    # your own sentences, one a line
    python examples/quickstart.py --tsv pairs.tsv                # … or a source, a tab and a target a line
    python examples/quickstart.py --translate_only "I see her."  # just ask the model in --output_dir

Exits with 0; with 1 if the model falls short of 95% exact match on the sample's held-out sentences; with 2 if an
argument or a file is not as it should be.
"""

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    ProgressCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from tutorials.quickstart_report import console, draw_attention, draw_losses, show_summary, show_table
from tutorials.sample_data import write_sample

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.data import ParallelLine, ParallelText, validate
from modeling_random_transformer.utils.command_line import Parser

Pairs = list[tuple[str, str]]  # sources and their translations

DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "beam 4": {"num_beams": 4},
    "sampling": {"do_sample": True, "top_p": 0.9},
}
VOCAB_SIZE, MAX_TOKENS, LABEL_SMOOTHING = 4000, 128, 0.1
LEAST_SOURCES, MOST_HELD_OUT = 20, 300
REQUIRED_EXACT_MATCH = 95.0  # percent of the sample's held-out sentences, translated greedily
ALLOWED_SECONDS = 180  # of training


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    prepare_libraries(args.seed)
    if args.translate_only:
        show_answers(*load(args.output_dir), args.sentence)
        return 0

    console.rule("The data")
    show_table(
        f"{len(args.train)} pairs to learn from, {len(args.test)} held out", ("source", "target"), args.train[:4]
    )
    tokenizer = RandomTransformerTokenizer.train(chain(*args.train), VOCAB_SIZE, model_max_length=MAX_TOKENS)

    console.rule("A random model")
    model = random_model(tokenizer)
    greeting = "hello world" if args.sample else args.test[0][0]
    show_translation(model.eval(), tokenizer, greeting, max_new_tokens=6)

    console.rule("Training")
    trainer = make_trainer(model, tokenizer, args)
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()

    console.rule("The trained model")
    model, tokenizer = load(args.output_dir)
    show_translation(model, tokenizer, greeting)
    if args.sentence:
        show_answers(model, tokenizer, args.sentence)
    scores = evaluate(model, tokenizer, args.test)
    draw_losses(trainer.state.log_history, args.output_dir / "loss.png", len(tokenizer), LABEL_SMOOTHING)
    model, _ = load(args.output_dir, attn_implementation="eager")  # the others keep their weights to themselves
    draw_attention(model, tokenizer, sentence_to_draw(args), args.output_dir / "attention.png")

    console.rule("Summary")
    show_summary(scores, seconds, args.output_dir, greeting)
    return verdict(scores["greedy"][0], seconds, args.sample)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, and in `train` and `test` the pairs that they name. Exits with 2 where something is wrong."""
    parser = argument_parser()
    args = parser.parse_args(arguments)
    args.sample = not (args.source or args.tsv)
    try:
        check_arguments(args)
        if not args.translate_only:
            args.train, args.test = read_data(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def argument_parser() -> argparse.ArgumentParser:
    parser = Parser("quickstart.py", __doc__)
    parser.add_argument("sentence", nargs="*", help="what to translate in the end")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--source", type=Path, metavar="FILE", help="sentences to translate from, one a line")
    data.add_argument("--tsv", type=Path, metavar="FILE", help="sentence, tab, translation on each line")
    data.add_argument("--translate_only", action="store_true", help="train nothing, use the model in --output_dir")
    parser.add_argument("--target", type=Path, metavar="FILE", help="the translations of --source, line by line")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/quickstart"), help="default: %(default)s")
    parser.add_argument("--epochs", type=float, default=12, help="default: %(default)s")
    parser.add_argument("--max_steps", type=int, help="stop after so many steps, whatever --epochs says")
    parser.add_argument("--seed", type=int, default=17, help="default: %(default)s")
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Raises ValueError where an argument is not allowed, or not without another."""
    if (args.source is None) != (args.target is None):
        raise ValueError(f"--source and --target must be given together, got {args.source} and {args.target}.")
    if args.tsv and args.tsv.suffix != ".tsv":
        raise ValueError(f"--tsv must name a .tsv file, got {args.tsv}.")
    if not 0 < args.epochs < math.inf:
        raise ValueError(f"--epochs must be a positive number, got {args.epochs}.")
    if args.max_steps is not None and args.max_steps < 1:
        raise ValueError(f"--max_steps must be a positive integer, got {args.max_steps}.")
    if not 0 <= args.seed < 2**32:
        raise ValueError(f"--seed must be an integer from 0 to {2**32 - 1}, got {args.seed}.")
    if not all(sentence.strip() for sentence in args.sentence):
        raise ValueError(f"a sentence to translate must not be empty, got {args.sentence}.")
    if args.output_dir.exists() and not args.output_dir.is_dir():
        raise ValueError(f"--output_dir must be a folder, got the file {args.output_dir}.")
    if not args.translate_only:
        check_writable(args.output_dir)
    if args.translate_only and not args.sentence:
        raise ValueError("--translate_only must come with at least one sentence, got none.")
    if args.translate_only and not (args.output_dir / "config.json").is_file():
        raise ValueError(f"--output_dir must hold a trained model for --translate_only, got {args.output_dir}.")


def check_writable(folder: Path) -> None:
    """Raises ValueError where no file can be put into the folder: better now than after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--output_dir must be a folder that can be written to, got {folder}: {error}.") from error


def read_data(args: argparse.Namespace) -> tuple[Pairs, Pairs]:
    """Pairs to learn from, and pairs held out. Raises ValueError where a file is not as it should be."""
    if not args.sample:
        return hold_out(read_pairs(args.tsv or args.source, args.target), args.seed)
    folder = args.output_dir / "data"
    write_sample(folder)
    return read_pairs(folder / "train.en", folder / "train.es"), read_pairs(folder / "test.en", folder / "test.es")


def read_pairs(source: Path, target: Path | None) -> Pairs:
    text = ParallelText(source, target)
    if target and (lines := count_lines(source)) != count_lines(target):
        raise ValueError(
            "--source and --target must have the same number of lines, "
            f"got {lines} in {source} and {count_lines(target)} in {target}."
        )
    if (report := validate(text)).invalid:
        raise ValueError(f"every line must hold a sentence and its translation, got {report}.")
    return [(line.source.strip(), line.target.strip()) for line in text.lines() if isinstance(line, ParallelLine)]


def count_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for _ in lines)


def hold_out(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Put a tenth of the sources aside, with one translation each; no pair to learn from has any of them."""
    sources = list(dict.fromkeys(source for source, _ in pairs))
    if len(sources) < LEAST_SOURCES:
        raise ValueError(
            f"there must be at least {LEAST_SOURCES} different sentences to learn from, got {len(sources)}."
        )
    random.Random(seed).shuffle(sources)
    held_out = set(sources[: min(len(sources) // 10, MOST_HELD_OUT)])
    test = {source: target for source, target in pairs if source in held_out}
    return [pair for pair in pairs if pair[0] not in held_out], list(test.items())


def prepare_libraries(seed: int) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # of loading and saving; training keeps its own
    torch.set_num_threads(1)  # so small a model keeps one core busy: a second one would mostly wait for the first
    set_seed(seed)


def random_model(tokenizer: RandomTransformerTokenizer) -> RandomTransformerForConditionalGeneration:
    """A small relative of the paper's model, as random as it comes."""
    config = RandomTransformerConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), encoder_layers=2, decoder_layers=2, dropout=0.1
    )
    model = RandomTransformerForConditionalGeneration(config)
    model.generation_config.max_new_tokens = MAX_TOKENS  # the library stops after 20
    return model


class LossOnTheBar(ProgressCallback):
    """The trainer's progress bar, with the loss on it instead of in lines between."""

    def on_log(self, *_args: Any, logs: dict[str, float], **_kwargs: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.3f}")

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """The held-out sentences take a moment: no second bar."""


def make_trainer(
    model: RandomTransformerForConditionalGeneration, tokenizer: RandomTransformerTokenizer, args: argparse.Namespace
) -> Seq2SeqTrainer:
    training_args = Seq2SeqTrainingArguments(
        output_dir=str(args.output_dir),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps or -1,
        seed=args.seed,
        per_device_train_batch_size=32,
        train_sampling_strategy="group_by_length",  # little padding
        # The optimizer and the smoothing of the paper (5.3, 5.4). Its learning rate never comes to rest; in a run as
        # short as this one, coming to rest removes the last mistakes.
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.2,  # of all steps: a post-norm model that starts hot never learns to look at the source
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        label_smoothing_factor=LABEL_SMOOTHING,
        logging_steps=0.04,  # of all steps, longer than a stretch of like lengths: else the curve follows these
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=0.1,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=False,
    )
    trainer = Seq2SeqTrainer(
        model,
        training_args,
        train_dataset=encode(args.train, tokenizer),
        eval_dataset=encode(args.test, tokenizer),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(LossOnTheBar)
    return trainer


def encode(pairs: Pairs, tokenizer: RandomTransformerTokenizer) -> Dataset:
    sources, targets = map(list, zip(*pairs, strict=True))
    return Dataset.from_dict(dict(tokenizer(sources, text_target=targets, truncation=True)))


def load(folder: Path, **options: Any) -> tuple[Any, Any]:
    return AutoModelForSeq2SeqLM.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)


def translate(model: Any, tokenizer: Any, sentences: Sequence[str], **decoding: Any) -> list[str]:
    """`decoding` is for the model's `generate`."""
    translations: list[str] = []
    for start in range(0, len(sentences), 100):
        batch = list(sentences[start : start + 100])
        inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        translations += tokenizer.batch_decode(model.generate(**inputs, **decoding), skip_special_tokens=True)
    return translations


def evaluate(model: Any, tokenizer: Any, test: Pairs) -> dict[str, tuple[float, float]]:
    """Exact match in percent, and BLEU, of each decoding; shows some of the greedy translations."""
    sources, references = map(list, zip(*test, strict=True))
    scores = {}
    for name, decoding in DECODINGS.items():
        set_seed(0)  # so that samples do not depend on what was drawn before
        translations = translate(model, tokenizer, sources, **decoding)
        hits = [translation == reference for translation, reference in zip(translations, references, strict=True)]
        scores[name] = 100 * sum(hits) / len(hits), sacrebleu.corpus_bleu(translations, [references]).score
        if name == "greedy":
            rows = zip(sources, translations, references, strict=True)
            show_table("Held-out sentences", ("source", "translation", "reference"), list(rows)[:6])
    return scores


def show_translation(model: Any, tokenizer: Any, sentence: str, **decoding: Any) -> None:
    (translation,) = translate(model, tokenizer, [sentence], **decoding)
    console.print(f"{sentence!r} → {translation!r}")


def show_answers(model: Any, tokenizer: Any, sentences: Sequence[str]) -> None:
    answers = [translate(model, tokenizer, sentences, **decoding) for decoding in DECODINGS.values()]
    show_table("Your sentences", ("source", *DECODINGS), zip(sentences, *answers, strict=True))


def sentence_to_draw(args: argparse.Namespace) -> str:
    """The user's own, or a held-out one that fits a picture."""
    return args.sentence[0] if args.sentence else min((s for s, _ in args.test), key=lambda s: abs(len(s.split()) - 9))


def verdict(exact_match: float, seconds: float, sample: bool) -> int:
    """The exit code. What is asked of the sample is not asked of the user's own data."""
    if seconds > ALLOWED_SECONDS:
        console.print(f"Training took more than {ALLOWED_SECONDS} s: this machine is slow, or busy.", style="yellow")
    if not sample or exact_match >= REQUIRED_EXACT_MATCH:
        return 0
    console.print(
        f"The model falls short: its greedy translations match {exact_match:.1f}% of the held-out sentences exactly, "
        f"at least {REQUIRED_EXACT_MATCH:.0f}% were expected.",
        style="bold red",
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())

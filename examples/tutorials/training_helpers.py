"""Shared code of the training examples: arguments, hold-out, small models, a short training run, translation."""

import argparse
import math
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainingArguments,
    Trainer,
    set_seed,
)

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.base.errors import reraise_as_value_error
from modeling_random_transformer.commands.command_line import model_folder, random_seed
from modeling_random_transformer.extras.parser import existing_file, positive_integer

from .report import console
from .scripts import script_parser

Pairs = list[tuple[str, str]]  # a text and its translation or label

VOCAB_SIZE, MAX_TOKENS = 4000, 128
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1}  # overrides of the "tiny" preset
MIN_SENTENCES, MAX_HELD_OUT = 20, 300


# Arguments


def add_training_arguments(parser: argparse.ArgumentParser, epochs: float, output_dir: str) -> None:
    parser.add_argument("--output_dir", type=Path, default=Path(output_dir), help="folder of the model")
    parser.add_argument("--epochs", type=positive_number, default=epochs, help="number of training epochs")
    parser.add_argument("--max_steps", type=positive_integer, help="number of training steps; overrides --epochs")
    add_seed(parser)


def add_seed(parser: argparse.ArgumentParser, default: int = 17) -> None:
    parser.add_argument("--seed", type=random_seed, default=default, help="random seed")


def positive_number(text: str) -> float:
    """Argument type."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}.")
    return number


def check_writable(folder: Path) -> None:
    """Create the folder if necessary. Raise a ValueError if it is not writable."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output_dir must be a folder, got the file {folder}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--output_dir must be a writable folder, got {folder}: {error}.") from error


def check_trained(folder: Path, sentences: Sequence[str], flag: str) -> None:
    """Check the arguments that use the model of an earlier run. `flag` is the one that prevents the training.

    Raises:
        ValueError: the folder has no model, or there are no sentences.
    """
    if not sentences:
        raise ValueError(f"{flag} must be used with at least one sentence, got none.")
    if not (folder / "config.json").is_file():
        raise ValueError(f"--output_dir must be a folder with a trained model, got {folder}.")


def check_sentences(sentences: Sequence[str]) -> None:
    if not all(sentence.strip() for sentence in sentences):
        raise ValueError(f"a sentence must not be empty, got {list(sentences)}.")


def single_stack_parser(
    script: str, description: str | None, epochs: float, output_dir: str
) -> argparse.ArgumentParser:
    """The arguments of the examples that train one stack: the encoder or the decoder."""
    parser = script_parser(script, description)
    parser.add_argument("--train_file", type=existing_file, help="training data (default: sample data)")
    parser.add_argument("--test_file", type=existing_file, help="held-out data (default: a tenth of --train_file)")
    parser.add_argument("--model", type=model_folder, help="a saved translation model to start from")
    add_training_arguments(parser, epochs, output_dir)
    return parser


def check_single_stack_arguments(args: argparse.Namespace) -> None:
    """Raises ValueError if an argument is invalid."""
    if args.test_file and not args.train_file:
        raise ValueError(f"--test_file must be used with --train_file, got only {args.test_file}.")
    check_writable(args.output_dir)


# Data


def hold_out(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Hold out a tenth of the distinct sources, each with one target. Returns the training and the held-out pairs.

    No source is in both parts.

    Raises:
        ValueError: there are fewer than `MIN_SENTENCES` distinct sources.
    """
    sources = list(dict.fromkeys(source for source, _ in pairs))
    if len(sources) < MIN_SENTENCES:
        raise ValueError(
            f"the training data must have at least {MIN_SENTENCES} different sentences, got {len(sources)}."
        )
    random.Random(seed).shuffle(sources)
    held_out = set(sources[: min(len(sources) // 10, MAX_HELD_OUT)])
    test = {source: target for source, target in pairs if source in held_out}
    return [pair for pair in pairs if pair[0] not in held_out], list(test.items())


def encode_pairs(pairs: Pairs, tokenizer: RandomTransformerTokenizer) -> Dataset:
    """Token ids of the sources and, as labels, of the targets."""
    sources, targets = map(list, zip(*pairs, strict=True))
    return Dataset.from_dict(dict(tokenizer(sources, text_target=targets, truncation=True)))


# Models


def configure_libraries(seed: int) -> None:
    """Log errors only, use one thread, set the random seed."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # loading and saving show no progress bar; training does
    torch.set_num_threads(1)  # more threads do not speed up a model this small
    set_seed(seed)


def build_translator(
    tokenizer: RandomTransformerTokenizer, **overrides: Any
) -> RandomTransformerForConditionalGeneration:
    """A small translation model with random weights; `overrides` are fields of the configuration."""
    config = RandomTransformerConfig.from_preset("tiny", vocab_size=len(tokenizer), **{**SMALL, **overrides})
    model = RandomTransformerForConditionalGeneration(config)
    model.generation_config.max_new_tokens = MAX_TOKENS  # transformers' default is 20
    return model


def build_or_load(auto_class: Any, folder: Path | None, texts: Iterable[str], **options: Any) -> tuple[Any, Any]:
    """A small model with random weights and a tokenizer trained on `texts`, or both from a folder.

    Args:
        auto_class: the Auto class of the task.
        folder: a saved translation model; only the weights of the new head are initialized at random.
        texts: training data of the tokenizer if there is no folder.
        **options: fields of the configuration.

    Raises:
        ValueError: the folder cannot be loaded, weights of the stack are missing, or the weights are quantized.
    """
    if folder is None:
        tokenizer = RandomTransformerTokenizer.train(texts, VOCAB_SIZE, model_max_length=MAX_TOKENS)
        config = RandomTransformerConfig.from_preset("tiny", vocab_size=len(tokenizer), **SMALL, **options)
        return auto_class.from_config(config), tokenizer
    with reraise_as_value_error(f"--model must be a folder with a translation model and its tokenizer, got {folder}"):
        model, info = auto_class.from_pretrained(folder, dtype="float32", output_loading_info=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if missing := sorted(name for name in info["missing_keys"] if name.startswith("model.")):
        raise ValueError(f"--model must have all weights except those of a head, got {folder} without {missing[0]}.")
    if getattr(model, "quantization_method", None) is not None:
        raise ValueError(f"--model must have unquantized weights for training, got quantized weights in {folder}.")
    return model, tokenizer


# Training


def short_training_arguments(
    output_dir: Path, epochs: float, seed: int, max_steps: int | None = None, **overrides: Any
) -> Seq2SeqTrainingArguments:
    """Settings for a run of a minute or two. Nothing is saved during training."""
    defaults: dict[str, Any] = {
        "output_dir": str(output_dir),
        "num_train_epochs": epochs,
        "max_steps": max_steps or -1,
        "seed": seed,
        "per_device_train_batch_size": 32,
        "train_sampling_strategy": "group_by_length",  # reduces padding
        # Unlike the paper's schedule (5.3), cosine decay ends at zero, which matters in a run this short.
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.2,  # share of all steps; without warm-up, a post-norm decoder ignores the source
        "adam_beta2": 0.98,
        "logging_steps": 0.04,  # share of all steps; averages over batches of different lengths
        "save_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "disable_tqdm": False,
    }
    return Seq2SeqTrainingArguments(**{**defaults, **overrides})


def train_briefly(model: Any, tokenizer: Any, pairs: Pairs, seed: int, steps: int, learning_rate: float = 5e-3) -> None:
    """Train for a number of steps, without output. The model is then in evaluation mode."""
    quiet = {"disable_tqdm": True, "logging_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = short_training_arguments(Path(folder), 1, seed, steps, learning_rate=learning_rate, **quiet)
        trainer = short_trainer(model, tokenizer, encode_pairs(pairs, tokenizer), arguments)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()


def short_trainer(
    model: Any, tokenizer: Any, data: Dataset, arguments: Seq2SeqTrainingArguments, **options: Any
) -> Trainer:
    """A trainer with a progress bar that shows the loss. `options` are those of `Trainer`.

    The default collator is that of a translation model.
    """
    options = {"data_collator": DataCollatorForSeq2Seq(tokenizer, model=model), **options}
    trainer = Trainer(model, arguments, train_dataset=data, processing_class=tokenizer, **options)
    if not arguments.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(LossProgressCallback)
    return trainer


class LossProgressCallback(ProgressCallback):
    """The Trainer's progress bar with the current loss instead of one log line per logging step."""

    def on_log(self, *_args: Any, logs: dict[str, float], **_kwargs: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.3f}")

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """Evaluation is short and has no progress bar."""


def status_of_score(name: str, percent: float, required: float) -> int:
    """The exit status of a run: 1, with a message, if the score is too low."""
    if percent >= required:
        return 0
    console.print(f"{name} is too low: {percent:.1f}%, expected at least {required:.0f}%.", style="bold red")
    return 1


# Inference


def translate(model: Any, tokenizer: Any, sentences: Sequence[str], **generate_kwargs: Any) -> list[str]:
    """Translate in batches of 100, in the order of the sentences, with any model that has `generate`."""
    translations: list[str] = []
    for start in range(0, len(sentences), 100):
        batch = list(sentences[start : start + 100])
        inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        translations += tokenizer.batch_decode(model.generate(**inputs, **generate_kwargs), skip_special_tokens=True)
    return translations

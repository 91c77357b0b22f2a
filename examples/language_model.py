"""Train a language model in about a minute, see how well it predicts, and let it go on with a text.

    python examples/language_model.py                               # on the Spanish sentences of the sample
    python examples/language_model.py --prompts "El rey" "¿Ves"     # … and then go on with these
    python examples/language_model.py --train_file lines.txt        # on your own texts, one a line
    python examples/language_model.py --model outputs/quickstart    # start from a translator's decoder

Without --test_file a tenth of the texts is held out. Only the first 128 tokens of a line count.

Exits with 0, or with 2 if an argument or a file is not as it should be.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import quickstart
import torch
from datasets import Dataset
from quickstart import MAX_TOKENS, VOCAB_SIZE, LossOnTheBar, hold_out, prepare_libraries
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    ProgressCallback,
    Trainer,
    TrainingArguments,
)
from tutorials.quickstart_report import console, show_table
from tutorials.sample_data import sample

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerTokenizer
from modeling_random_transformer.translation import read_lines
from modeling_random_transformer.utils.command_line import Parser, existing_file, require_random_transformer_folder
from modeling_random_transformer.utils.errors import reraise_as_value_error

SAMPLE_SIZE, SAMPLE_HELD_OUT, SAMPLE_SEED = 6300, 300, 2017
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1}
CUT = {"truncation": True, "max_length": MAX_TOKENS}
HOW_TO_LOAD = """
    import modeling_random_transformer  # makes the model known to the Auto classes
    from transformers import pipeline

    go_on = pipeline("text-generation", model={folder!r})
    print(go_on(go_on.tokenizer.bos_token + {prompt!r}, add_special_tokens=False))  # a start, and no end
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argument_parser("language_model.py", __doc__, epochs=6, output_dir="outputs/language_model")
    parser.add_argument("--prompts", nargs="+", default=[], metavar="TEXT", help="default: how held-out lines begin")
    args = parser.parse_args(arguments)
    try:
        check_arguments(args)
        prepare_libraries(args.seed)
        train, test = read_data(args)
        model, tokenizer = start(AutoModelForCausalLM, args.model, train)
        encoded = Dataset.from_dict(dict(tokenize(train, model, tokenizer)))
        tokenize([*test, *args.prompts], model, tokenizer)  # what it refuses is refused before the training
    except ValueError as error:
        parser.error(str(error))

    console.rule("The data")
    show_table(f"{len(train)} lines to learn from, {len(test)} held out", ("line",), [[line] for line in train[:4]])
    trainer = make_trainer(model, tokenizer, encoded, DataCollatorForLanguageModeling(tokenizer, mlm=False), args)
    before = perplexity(model, tokenizer, test)
    console.rule("Training")
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()

    console.rule("The trained model")
    after = perplexity(model, tokenizer, test)
    console.print(f"Perplexity per token of the held-out lines: {before:.1f} before, {after:.2f} after training")
    prompts = args.prompts or [" ".join(line.split()[:2]) for line in test[:4]]
    rows = [(prompt, *go_on(model, tokenizer, prompt, args.seed)) for prompt in prompts]
    show_table("How it goes on", ("prompt", "greedy", "sampled"), rows)
    console.print(f"Training time: {seconds:.0f} s\nModel folder:  {args.output_dir}", soft_wrap=True)
    console.print(HOW_TO_LOAD.format(folder=str(args.output_dir), prompt=prompts[0]), soft_wrap=True)
    return 0


def read_data(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Lines to learn from, and lines held out. Raises ValueError where a file is not as it should be."""
    if not args.train_file:
        lines = [spanish for _, spanish in sample(SAMPLE_SIZE, SAMPLE_SEED)]
        return lines[SAMPLE_HELD_OUT:], lines[:SAMPLE_HELD_OUT]
    train = read_texts(args.train_file)
    if args.test_file:
        return train, read_texts(args.test_file)
    parts = hold_out([(text, "") for text in train], args.seed)
    return [text for text, _ in parts[0]], [text for text, _ in parts[1]]


def read_texts(path: Path) -> list[str]:
    """The lines of a file, blank ones left out."""
    with path.open("rb") as file:
        texts = [line.strip() for line in read_lines(file, str(path)) if line.strip()]
    if not texts:
        raise ValueError(f"a file must hold at least one line of text, got none in {path}.")
    return texts


def tokenize(texts: Sequence[str], model: Any, tokenizer: Any, **options: Any) -> Any:
    """Token ids of the texts, each behind the token that the decoder starts from."""
    first = tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)
    return tokenizer([first + text for text in texts], **CUT, **options)


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, texts: Sequence[str]) -> float:
    """Per token, the ends of the texts included. The trainer's own loss is a mean over batches, not over tokens."""
    model.eval()
    loss, tokens = 0.0, 0
    for text in texts:
        ids = tokenize([text], model, tokenizer, return_tensors="pt")["input_ids"].to(model.device)
        loss += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return math.exp(loss / tokens)


def go_on(model: Any, tokenizer: Any, prompt: str, seed: int) -> list[str]:
    """The prompt with what follows: the likeliest tokens, and a sample."""
    torch.manual_seed(seed)  # so that a sample does not depend on what was drawn before
    inputs = tokenize([prompt], model, tokenizer, add_special_tokens=False, return_tensors="pt").to(model.device)
    options = {**inputs, "num_beams": 1, "max_new_tokens": 40}
    outputs = [model.generate(**options, do_sample=sampled)[0] for sampled in (False, True)]
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


# What the examples with one stack have in common


def argument_parser(script: str, description: str | None, epochs: float, output_dir: str) -> argparse.ArgumentParser:
    parser = Parser(script, description)
    parser.add_argument(
        "--train_file", type=existing_file, metavar="FILE", help="what to learn from; default: a sample"
    )
    parser.add_argument("--test_file", type=existing_file, metavar="FILE", help="default: a tenth of --train_file")
    parser.add_argument(
        "--model", type=require_random_transformer_folder, metavar="FOLDER", help="a saved translator to start from"
    )
    parser.add_argument("--output_dir", type=Path, default=Path(output_dir), help="default: %(default)s")
    parser.add_argument("--epochs", type=float, default=epochs, help="default: %(default)s")
    parser.add_argument("--max_steps", type=int, help="stop after so many steps, whatever --epochs says")
    parser.add_argument("--seed", type=int, default=17, help="default: %(default)s")
    # The quickstart's own, for its check of the others.
    parser.set_defaults(source=None, target=None, tsv=None, translate_only=False, sentence=[])
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Raises ValueError where an argument is not allowed, or not without another."""
    if args.test_file and not args.train_file:
        raise ValueError(f"--test_file must come with --train_file, got {args.test_file} alone.")
    quickstart.check_arguments(args)


def start(auto: Any, folder: Path | None, texts: Iterable[str], **options: Any) -> tuple[Any, Any]:
    """A small random model and its tokenizer, or those in the folder. Raises ValueError if it cannot."""
    if folder is None:
        tokenizer = RandomTransformerTokenizer.train(texts, VOCAB_SIZE, model_max_length=MAX_TOKENS)
        config = RandomTransformerConfig.from_preset("tiny", vocab_size=len(tokenizer), **SMALL, **options)
        return auto.from_config(config), tokenizer
    with reraise_as_value_error(f"--model must hold a translator and its tokenizer, got {folder}"):
        model, found = auto.from_pretrained(folder, dtype="float32", output_loading_info=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if missing := sorted(name for name in found["missing_keys"] if name.startswith("model.")):
        raise ValueError(f"--model must hold all weights but those of a head, got {folder} without {missing[0]}.")
    if getattr(model, "quantization_method", None) is not None:
        raise ValueError(f"--model must hold plain weights to be trained, got quantised ones in {folder}.")
    return model, tokenizer


def make_trainer(model: Any, tokenizer: Any, train: Dataset, collator: Any, args: argparse.Namespace) -> Trainer:
    training_args = TrainingArguments(
        output_dir=str(args.output_dir),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps or -1,
        seed=args.seed,
        per_device_train_batch_size=32,
        train_sampling_strategy="group_by_length",  # little padding
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.2,  # of all steps: post-norm blocks need it
        adam_beta2=0.98,
        logging_steps=0.04,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=False,
    )
    trainer = Trainer(model, training_args, collator, train, processing_class=tokenizer)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(LossOnTheBar)
    return trainer


if __name__ == "__main__":
    sys.exit(main())

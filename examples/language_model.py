"""Train a causal language model in about a minute, evaluate its perplexity, and continue prompts with it.

    python examples/language_model.py                               # the Spanish sentences of the sample data
    python examples/language_model.py --prompts "El rey" "¿Ves"     # also continue these prompts
    python examples/language_model.py --train_file lines.txt        # your own texts, one per line
    python examples/language_model.py --model outputs/quickstart    # start from the decoder of a translation model

Without --test_file, a tenth of the training texts is held out. Lines are truncated to 128 tokens.

Exit status: 0 on success; 2 if an argument or a file is invalid.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling

from modeling_random_transformer.tokenization_random_transformer import read_lines
from tutorials.report import console, show_table
from tutorials.sample_data import held_out_sample
from tutorials.scripts import exit_status
from tutorials.training_helpers import (
    MAX_TOKENS,
    build_or_load,
    check_single_stack_arguments,
    configure_libraries,
    hold_out,
    short_trainer,
    short_training_arguments,
    single_stack_parser,
)

SAMPLE_SIZE = 6300
HOW_TO_LOAD = """
    import modeling_random_transformer  # registers the Auto classes
    from transformers import pipeline

    generator = pipeline("text-generation", model={folder!r})
    prompt = generator.tokenizer.bos_token + {prompt!r}
    print(generator(prompt, add_special_tokens=False))  # no end token after the prompt
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = single_stack_parser("language_model.py", __doc__, epochs=6, output_dir="outputs/language_model")
    parser.add_argument(
        "--prompts", nargs="+", default=[], metavar="TEXT", help="prompts; default: the first words of held-out lines"
    )
    args = parser.parse_args(arguments)
    return exit_status(lambda: run(args), parser.prog)


def run(args: argparse.Namespace) -> None:
    check_single_stack_arguments(args)
    configure_libraries(args.seed)
    train, test = read_data(args.train_file, args.test_file, args.seed)
    model, tokenizer = build_or_load(AutoModelForCausalLM, args.model, train)
    encoded = Dataset.from_dict(dict(tokenize(train, model, tokenizer)))
    tokenize([*test, *args.prompts], model, tokenizer)  # raises for invalid text before training starts

    console.rule("Data")
    show_table(f"{len(train)} training lines, {len(test)} held out", ("line",), [[line] for line in train[:4]])
    settings = short_training_arguments(args.output_dir, args.epochs, args.seed, args.max_steps, learning_rate=1e-3)
    trainer = short_trainer(
        model, tokenizer, encoded, settings, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)
    )
    before = perplexity(model, tokenizer, test)
    console.rule("Training")
    seconds = trainer.train().metrics["train_runtime"]
    trainer.save_model()

    console.rule("Trained model")
    after = perplexity(model, tokenizer, test)
    console.print(f"Perplexity per token of the held-out lines: {before:.1f} before, {after:.2f} after training")
    prompts = args.prompts or [" ".join(line.split()[:2]) for line in test[:4]]
    rows = [(prompt, *continuations(model, tokenizer, prompt, args.seed)) for prompt in prompts]
    show_table("Continuations", ("prompt", "greedy", "sampled"), rows)
    console.print(f"Training time: {seconds:.0f} s\nModel folder:  {args.output_dir}", soft_wrap=True)
    console.print(HOW_TO_LOAD.format(folder=str(args.output_dir), prompt=prompts[0]), soft_wrap=True)


def read_data(train_file: Path | None, test_file: Path | None, seed: int) -> tuple[list[str], list[str]]:
    """Training lines and held-out lines. Raises ValueError if a file is invalid."""
    if not train_file:
        train, test = held_out_sample(SAMPLE_SIZE)
        return [spanish for _, spanish in train], [spanish for _, spanish in test]
    lines = read_texts(train_file)
    if test_file:
        return lines, read_texts(test_file)
    train, test = hold_out([(line, "") for line in lines], seed)
    return [line for line, _ in train], [line for line, _ in test]


def read_texts(path: Path) -> list[str]:
    """The lines of a file without blank ones."""
    with path.open("rb") as file:
        texts = [line.strip() for line in read_lines(file, str(path)) if line.strip()]
    if not texts:
        raise ValueError(f"a file must have at least one line of text, got none in {path}.")
    return texts


def tokenize(texts: Sequence[str], model: Any, tokenizer: Any, **options: Any) -> Any:
    """Token ids of the texts, each after the decoder's start token."""
    start = tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)
    return tokenizer([start + text for text in texts], truncation=True, max_length=MAX_TOKENS, **options)


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, texts: Sequence[str]) -> float:
    """Perplexity per token, including the end tokens. (The trainer's loss is a mean over batches, not over tokens.)"""
    model.eval()
    loss, tokens = 0.0, 0
    for text in texts:
        ids = tokenize([text], model, tokenizer, return_tensors="pt")["input_ids"].to(model.device)
        loss += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return math.exp(loss / tokens)


def continuations(model: Any, tokenizer: Any, prompt: str, seed: int) -> list[str]:
    """Continuations of the prompt by greedy search and by sampling."""
    torch.manual_seed(seed)  # sampling does not depend on earlier draws
    inputs = tokenize([prompt], model, tokenizer, add_special_tokens=False, return_tensors="pt").to(model.device)
    options = {**inputs, "num_beams": 1, "max_new_tokens": 40}
    outputs = [model.generate(**options, do_sample=do_sample)[0] for do_sample in (False, True)]
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


if __name__ == "__main__":
    sys.exit(main())

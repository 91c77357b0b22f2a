"""Throughput of the export engines relative to the model: a saved model, or the base model with random weights."""

import argparse
import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.export import ENGINES, Translate, compare, export_model, folder_size, load_engine
from modeling_random_transformer.export.engines import translate_fn

WORDS = 37_000  # the paper's vocabulary (5.1)
MAX_WORDS, NUM_SENTENCES = 12, 16  # words per sentence and number of sentences, for random weights
NEW_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="saved model (default: the base model with random weights)"
    )
    parser.add_argument("--source", type=Path, help="sentences for --model, one per line")
    parser.add_argument("--rounds", type=int, default=5, help="number of alternating rounds")


def run(options: argparse.Namespace) -> None:
    if (options.model is None) != (options.source is None):
        raise SystemExit("--model and --source must be given together, got only one.")
    model, tokenizer, sentences = random_base() if options.model is None else load_saved(options.model, options.source)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder, "model"))
        table = Table("engine", "greedy", "4 beams", "MB", title="throughput relative to the model in float32")
        table.add_row("the model, float32", "1", "1", f"{folder_size(Path(folder, 'model'), '*.safetensors'):.0f}")
        console.print("bfloat16")
        half = translate_fn(copy.deepcopy(model).bfloat16(), tokenizer)
        table.add_row("the model, bfloat16", *speeds(model, tokenizer, half, sentences, options), "")
        for engine in ("ctranslate2", "onnx"):
            for dtype in ENGINES[engine]:
                console.print(engine, dtype)
                output = Path(folder, f"{engine}-{dtype}")
                export_model(model, tokenizer, output, engine=engine, dtype=dtype)
                ratios = speeds(model, tokenizer, load_engine(output, engine), sentences, options)
                table.add_row(f"{engine}, {dtype}", *ratios, f"{folder_size(output):.0f}")
    console.print(table)


def random_base() -> tuple[Any, Any, list[str]]:
    """Return the base model with random weights, a word-level tokenizer and random sentences of its words."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, WORDS))]
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = RandomTransformerTokenizer.from_words(words, **special)
    torch.manual_seed(0)
    config = RandomTransformerConfig.from_preset("base", vocab_size=WORDS)
    generator = random.Random(0)
    sentences = [
        " ".join(generator.choices(words[4:], k=generator.randint(4, MAX_WORDS))) for _ in range(NUM_SENTENCES)
    ]
    return RandomTransformerForConditionalGeneration(config).eval(), tokenizer, sentences


def load_saved(folder: Path, source: Path) -> tuple[Any, Any, list[str]]:
    model = RandomTransformerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder), source.read_text(encoding="utf-8").splitlines()


def speeds(
    model: Any, tokenizer: Any, engine: Translate, sentences: list[str], options: argparse.Namespace
) -> list[str]:
    """Throughput of an engine relative to the model, for each number of beams."""
    limit = NEW_TOKENS if options.model is None else 128
    comparisons = compare(model, tokenizer, engine, sentences, max_new_tokens=limit, rounds=options.rounds)
    return [f"{comparison.engine_speed / comparison.model_speed:.2f}" for comparison in comparisons]

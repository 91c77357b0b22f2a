"""Overhead of `TranslationTrainer`: its steps against plain training steps on batches of the same lengths.

Blocks of both alternate within one run. A plain step is forward pass, loss, backward pass, gradient clipping and
optimizer. The steps of the trainer also include data loading, collation, token counting, logging, the checks of the
loss and the callbacks. Evaluation and saving are excluded.

In bfloat16 on a CPU, oneDNN compiles kernels for each new shape. The plain steps therefore leave out one pair of each
batch: with the same shapes, they would reuse the kernels that the trainer's steps compiled.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, TrainerCallback

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments

from .generate import DEVICE, DTYPES
from .models import END, SIZES, VOCAB_SIZE, ours
from .train import Batch, training_step

LENGTHS = (5, 30)  # tokens per sentence, as in image captions
DROPOUT = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="tiny", help="model size")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16", help="data type")
    parser.add_argument("--blocks", type=int, default=9, help="number of paired blocks")
    parser.add_argument("--steps", type=int, default=10, help="steps per block")
    parser.add_argument("--max_tokens_per_batch", type=int, default=4096, help="token budget of a batch")


def run(options: argparse.Namespace) -> None:
    ratios = measure(options)
    print(f"a step of the trainer takes {statistics.median(ratios):.3f} ", end="")
    print(f"({min(ratios):.3f} to {max(ratios):.3f}) times as long as a plain step.")


def measure(options: argparse.Namespace) -> list[float]:
    """Time of the trainer's steps divided by that of plain steps, for each block."""
    model = ours(SIZES[options.size], DROPOUT)
    blocks = PlainBlocks(training_step(ours(SIZES[options.size], DROPOUT), DTYPES[options.dtype], True), options.steps)
    with tempfile.TemporaryDirectory() as folder:
        trainer = translation_trainer(
            model,
            folder,
            callbacks=[blocks],
            max_steps=(options.blocks + 1) * options.steps,
            max_tokens_per_batch=options.max_tokens_per_batch,
            bf16=options.dtype == "bf16",
            logging_steps=options.steps,
        )
        blocks.collator, trainer.data_collator = trainer.data_collator, blocks.collate
        trainer.train()
    return blocks.ratios[1:]  # the first block includes the warm-up


def translation_trainer(
    model: Any, folder: str, callbacks: Sequence[TrainerCallback] = (), pairs: int = 20_000, **options: Any
) -> TranslationTrainer:
    """A trainer on random pairs; `options` are those of `TranslationTrainingArguments`."""
    args = TranslationTrainingArguments(
        folder, use_cpu=DEVICE == "cpu", save_strategy="no", report_to="none", **options
    )
    tokenizer = RandomTransformerTokenizer.train(["a b"], vocab_size=300)  # used for padding only
    return TranslationTrainer(
        model, args, train_dataset=random_pairs(pairs), processing_class=tokenizer, callbacks=list(callbacks)
    )


class PlainBlocks(TrainerCallback):
    """After each block of the trainer's steps, repeats its batches with plain steps and compares the times."""

    collator: DataCollatorForSeq2Seq

    def __init__(self, step: Any, steps: int):
        self.step, self.steps = step, steps
        self.batches: list[Batch] = []
        self.ratios: list[float] = []

    def collate(self, rows: list[dict[str, Any]]) -> Any:
        """Collate a batch for the trainer and keep a copy without its first pair."""
        batch = self.collator(rows)
        self.batches.append({name: tensor[1:].clone() for name, tensor in batch.items()})
        return batch

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if state.global_step % self.steps:
            return
        end = time.perf_counter()
        for batch in self.batches[: self.steps]:
            self.step(batch)
        plain = time.perf_counter() - end
        self.ratios.append((end - self.start) / plain)
        del self.batches[: self.steps]  # a batch that was collated in advance remains
        self.start = time.perf_counter()


def random_pairs(count: int) -> Dataset:
    """Pairs of random tokens."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(*LENGTHS, size=(count, 2), endpoint=True)
    tokens = [[generator.integers(END + 1, VOCAB_SIZE, length) for length in lengths[:, side]] for side in (0, 1)]
    return Dataset.from_dict(
        {
            "input_ids": tokens[0],
            "attention_mask": [np.ones(length, dtype=int) for length in lengths[:, 0]],
            "labels": tokens[1],
            "source_length": lengths[:, 0],
            "target_length": lengths[:, 1],
        }
    )

"""The paper's recipe.

Training of the base model on batches of at most 25,000 source and 25,000 target tokens with padding (paper 5.1), from
sentences of random words with lengths like those of WMT English-German. The model is the paper's base, with a
vocabulary of 37,000; a second row is in float32. The time excludes data loading, evaluation and saving.
"""

import statistics
from functools import partial
from itertools import islice

import torch

from modeling_random_transformer.data.batches import TokenBudgetSampler, padding_multiple

from ..generate import DEVICE, DTYPES
from ..memory import peak
from ..timing import seconds
from ..train import Batch, random_batch, training_step
from .parts import Figures, Rows, preset_model, sentence_lengths
from .settings import Settings

STEPS = 100_000  # paper 5.2
COLUMNS = {
    "tokens/s": "{:,.0f}",
    "padding": "{:.1%}",
    "step, ms": "{:,.1f}",
    f"hours for {STEPS:,} steps": "{:,.2f}",
    "peak memory, MiB": "{:,.0f}",
}


def rows(settings: Settings) -> Rows:
    batches = recipe_batches(settings)
    for dtype in settings.training_dtypes:
        yield f"{next(iter(settings.presets))} {dtype}", partial(measure, batches, dtype, settings)


def recipe_batches(settings: Settings) -> list[Batch]:
    lengths = sentence_lengths(settings.sentence_pairs)
    multiple = padding_multiple(torch.device(DEVICE))
    sampler = TokenBudgetSampler(lengths, 2 * settings.batch_tokens, pad_to_multiple_of=multiple)
    return [random_batch(lengths[batch]) for batch in islice(sampler, settings.recipe_batches)]


def measure(batches: list[Batch], dtype: str, settings: Settings) -> Figures:
    preset, overrides = next(iter(settings.presets.items()))
    step = training_step(preset_model(preset, overrides), DTYPES[dtype], own_loss=True)

    def epoch() -> None:
        for batch in batches:
            step(batch)

    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    epoch()
    step_seconds = statistics.median(seconds(epoch, 1) for _ in range(settings.pairs)) / len(batches)
    tokens = sum(int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum()) for batch in batches)
    padded = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
    figures = (
        tokens / len(batches) / step_seconds,
        1 - tokens / padded,
        step_seconds * 1000,
        step_seconds * STEPS / 3600,
        peak(),
    )
    return dict(zip(COLUMNS, figures, strict=True))

"""Utilization of the matrix units.

Training without padding, 48 + 48 tokens per pair. The FLOPs per token are those of the matrix products of a step by
formula, averaged over source and target tokens. The peak is the speed of one large matrix product in the same dtype.
"""

import statistics
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from modeling_random_transformer import RandomTransformerConfig

from ..generate import DTYPES
from ..timing import seconds
from ..train import matmul_flops, random_batch, trainer
from .parts import Figures, Rows, preset_model
from .settings import Settings

LENGTH = 48
COLUMNS = {
    "tokens/s": "{:,.0f}",
    "MFLOP per token": "{:,.1f}",
    "TFLOP/s": "{:,.2f}",
    "peak, TFLOP/s": "{:,.2f}",
    "utilization": "{:.0%}",
}


def rows(settings: Settings) -> Rows:
    peak = matmul_flops(DTYPES[settings.utilization_dtype], settings.matmul_width)
    for (preset, overrides), compiled in product(settings.presets.items(), (False, True)):
        label = f"{preset} {settings.utilization_dtype}{', torch.compile' if compiled else ''}"
        yield label, partial(measure, preset, overrides, compiled, peak, settings)


def measure(preset: str, overrides: dict[str, Any], compiled: bool, peak: float, settings: Settings) -> Figures:
    model: Any = preset_model(preset, overrides)
    flops = training_flops(model.config, settings.utilization_pairs, LENGTH, LENGTH)
    tokens = 2 * LENGTH * settings.utilization_pairs
    if compiled:
        model = torch.compile(model, backend=settings.backend)
    batch = random_batch(np.full((settings.utilization_pairs, 2), LENGTH))
    step = trainer(model, batch, DTYPES[settings.utilization_dtype], own_loss=True)
    for _ in range(3):
        step()
    step_seconds = statistics.median(seconds(step, 2) for _ in range(settings.pairs))
    flops_per_second = flops / step_seconds
    figures = (
        tokens / step_seconds,
        flops / tokens / 1e6,
        flops_per_second / 1e12,
        peak / 1e12,
        flops_per_second / peak,
    )
    return dict(zip(COLUMNS, figures, strict=True))


def training_flops(config: RandomTransformerConfig, pairs: int, source_len: int, target_len: int) -> int:
    """FLOPs of all matrix products of a training step: one forward pass and a backward pass of twice the FLOPs.

    A product with a weight matrix takes two FLOPs per weight and token. Attention counts all pairs of query and key,
    also those that the causal mask hides.
    """
    keys, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    query_and_key, value_and_output = config.d_model * keys, config.d_model * values
    attention = 2 * query_and_key + 2 * value_and_output
    feed_forward = 2 * config.d_model * config.d_ff
    per_source = config.encoder_layers * (attention + feed_forward + source_len * (keys + values))
    per_source += config.decoder_layers * (query_and_key + value_and_output)  # keys and values of cross-attention
    per_target = (
        attention + query_and_key + value_and_output + feed_forward + (target_len + source_len) * (keys + values)
    )
    per_target = config.decoder_layers * per_target + config.d_model * config.vocab_size
    return 3 * 2 * pairs * (per_source * source_len + per_target * target_len)

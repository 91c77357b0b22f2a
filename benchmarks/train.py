"""Speed of a training step against Marian, T5 and nn.Transformer: source 32, target 32, a quarter padding.

Also reports our throughput in tokens per second and the model FLOPs utilization, here relative to the speed of one
large matrix product of the same dtype on the device.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from modeling_random_transformer.data.batches import padding_multiple
from modeling_random_transformer.training import SmoothedCrossEntropy

from .generate import DEVICE, DTYPES
from .models import END, PAD, SIZES, START, TRAINED, VOCAB_SIZE
from .report import Rows, save, show
from .timing import paired, seconds

LENGTH, SHORTER = 32, 16  # every second row is half as long: a quarter is padding
SMOOTHING = 0.1

Batch = dict[str, Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gpu = DEVICE == "cuda"
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=["base", "big"] if gpu else ["tiny", "base"], help="model sizes"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=["bf16"] if gpu else ["fp32", "bf16"], help="data types"
    )
    parser.add_argument("--batch", type=int, default=512 if gpu else 32, help="batch size")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate")
    parser.add_argument("--pairs", type=int, default=7, help="number of paired measurements")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks"), help="folder of the results")


def run(options: argparse.Namespace) -> None:
    rows: Rows = []
    speeds: dict[str, dict[str, float]] = {}
    for size, dtype in product(options.sizes, options.dtypes):
        batch = make_batch(options.batch)
        steps = {
            name: trainer(make(SIZES[size], options.dropout), batch, DTYPES[dtype], name == "random-transformer")
            for name, make in TRAINED.items()
        }
        mine = steps.pop("random-transformer")
        for name, theirs in steps.items():
            result = paired(mine, theirs, options.pairs, repeat=5 if size == "tiny" else 1)
            rows.append((f"{size} {dtype}, training step", name, result))
            print(f"{size} {dtype} against {name}: {result}", flush=True)
        speeds[f"{size} {dtype}"] = speed = speed_of(mine, DTYPES[dtype], 2 * LENGTH * options.batch)
        share = f"{speed['utilization']:.0%} of {speed['matmul_tflops']:.2f} TFLOP/s"
        print(f"{size} {dtype}: {speed['tokens_per_second']:,.0f} tokens/s, {share}", flush=True)
    show("training", rows)
    save("train", rows, options.output, {"our_speed": speeds})


def speed_of(step: Callable[[], object], dtype: torch.dtype, tokens: int) -> dict[str, float]:
    """Tokens per second (source, target and padding), and the share of the speed of a large matrix product."""
    with FlopCounterMode(display=False) as counter:
        step()
    step_seconds = statistics.median(seconds(step, 1) for _ in range(7))
    peak = matmul_flops(dtype)
    return {
        "tokens_per_second": tokens / step_seconds,
        "utilization": counter.get_total_flops() / step_seconds / peak,
        "matmul_tflops": peak / 1e12,
    }


def matmul_flops(dtype: torch.dtype, width: int = 8192 if DEVICE == "cuda" else 1024) -> float:
    """FLOP/s of one large matrix product in this dtype: the peak that utilization refers to."""
    factor = torch.randn(width, width, device=DEVICE, dtype=dtype)
    product = partial(torch.mm, factor, factor)
    product()
    return 2 * width**3 / statistics.median(seconds(product, 3) for _ in range(5))


def make_batch(batch_size: int) -> Batch:
    """Source and target of `batch_size` pairs, `[batch_size, LENGTH]`; every second pair is half as long."""
    lengths = np.full((batch_size, 2), LENGTH)
    lengths[::2] = SHORTER
    return random_batch(lengths)


def random_batch(lengths: np.ndarray) -> Batch:
    """Random tokens with these lengths, `[pairs, 2]`, padded on the right as in training."""
    generator = torch.Generator().manual_seed(0)
    multiple = padding_multiple(torch.device(DEVICE))
    longest = -(-lengths.max(axis=0) // multiple) * multiple
    masks = [torch.arange(long) < torch.from_numpy(lengths[:, side, None]) for side, long in enumerate(longest)]
    source, target = (torch.randint(END + 1, VOCAB_SIZE, mask.shape, generator=generator) for mask in masks)
    inputs = nn.functional.pad(target[:, :-1], (1, 0), value=START)
    batch = {
        "input_ids": source.masked_fill(~masks[0], PAD),
        "attention_mask": masks[0].long(),
        "decoder_input_ids": inputs.masked_fill(~masks[1], PAD),
        "labels": target.masked_fill(~masks[1], -100),
    }
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def trainer(model: nn.Module, batch: Batch, dtype: torch.dtype, own_loss: bool) -> Callable[[], Tensor]:
    """A training step on one batch; see `training_step`."""
    return partial(training_step(model, dtype, own_loss), batch)


def training_step(model: nn.Module, dtype: torch.dtype, own_loss: bool) -> Callable[[Batch], Tensor]:
    """A typical training step: autocast, smoothed cross-entropy, gradient clipping, fused AdamW.

    Returns a function of a batch that returns the loss.
    """
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    loss_of = SmoothedCrossEntropy(SMOOTHING, overwrite=True) if own_loss else plain_loss
    return partial(step, model, optimizer, scaler, dtype, loss_of)


def plain_loss(outputs: Any, labels: Tensor) -> Tensor:
    return cross_entropy(outputs["logits"].float().flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    dtype: torch.dtype,
    loss_of: Callable[[Any, Tensor], Tensor],
    batch: Batch,
) -> Tensor:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    with torch.autocast(DEVICE, dtype, enabled=dtype in (torch.float16, torch.bfloat16)):
        outputs = model(**inputs)
    loss = loss_of(outputs, batch["labels"])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()

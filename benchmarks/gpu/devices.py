"""Several devices.

Training on all devices of this machine with DDP and FSDP2. The difference is the largest relative difference of losses
from training on one device with the same batches, in float32. The efficiency is the speed relative to as many devices
that do not communicate.
"""

import copy
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..generate import DEVICE, DTYPES
from ..models import ours
from ..timing import seconds
from ..train import random_batch, trainer
from .parts import Figures, Rows, checked, preset_model, start_processes
from .settings import Settings

LENGTH = 48
TOLERANCE = 1e-4
COLUMNS = {"devices": "{}", "difference": "{:.1e}", "tokens/s": "{:,.0f}", "efficiency": "{:.0%}"}


def rows(settings: Settings) -> Rows:
    for kind in WRAPPERS:
        yield kind, partial(measure, kind, settings)


def measure(kind: str, settings: Settings) -> Figures:
    count = settings.processes or torch.cuda.device_count()
    if count < 2:
        raise SkipTest("one device")
    if DEVICE == "cuda" and not dist.is_nccl_available():
        raise SkipTest("this build of torch has no NCCL")
    with tempfile.TemporaryDirectory() as folder:
        start_processes(train_one_rank, (kind, count, settings, folder), count, settings)
        figures: Figures = json.loads(Path(folder, "figures.json").read_text())
    return checked(figures, figures["difference"], TOLERANCE)


def train_one_rank(rank: int, kind: str, count: int, settings: Settings, folder: str) -> None:
    """One process of a group; the first one writes the figures."""
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=count)
    difference = loss_difference(WRAPPERS[kind], rank, count, settings)
    speed, alone = (tokens_per_second(wrap, settings) for wrap in (WRAPPERS[kind], unchanged))
    if rank == 0:
        figures = {"devices": count, "difference": difference, "tokens/s": count * speed, "efficiency": speed / alone}
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


def loss_difference(wrap: Callable[[Any], nn.Module], rank: int, count: int, settings: Settings) -> float:
    torch.manual_seed(0)
    model = ours(settings.checked_size).to(DEVICE)
    whole = random_batch(np.full((4 * count, 2), LENGTH))
    share = {name: tensor.chunk(count)[rank] for name, tensor in whole.items()}
    alone = trainer(copy.deepcopy(model), whole, torch.float32, own_loss=True)
    together = trainer(wrap(model), share, torch.float32, own_loss=True)
    expected, actual = (torch.stack([step() for _ in range(settings.check_steps)]) for step in (alone, together))
    dist.all_reduce(actual)
    return ((actual / count - expected) / expected).abs().max().item()


def tokens_per_second(wrap: Callable[[Any], nn.Module], settings: Settings) -> float:
    """Training speed of one device, with the synchronization of `wrap`."""
    preset, overrides = next(iter(settings.presets.items()))
    batch = random_batch(np.full((settings.utilization_pairs, 2), LENGTH))
    model = wrap(preset_model(preset, overrides).to(DEVICE))
    step = trainer(model, batch, DTYPES[settings.utilization_dtype], own_loss=True)
    step()
    dist.barrier()
    return 2 * LENGTH * settings.utilization_pairs / statistics.median(seconds(step, 2) for _ in range(settings.pairs))


def shard(model: Any) -> nn.Module:
    """FSDP2, one group of weights per layer."""
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        fully_shard(layer)
    return fully_shard(model)


def unchanged(model: nn.Module) -> nn.Module:
    return model


WRAPPERS: dict[str, Callable[[Any], nn.Module]] = {"DDP": DistributedDataParallel, "FSDP2": shard}

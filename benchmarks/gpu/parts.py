"""What a part is, and the functions that several parts use.

A part is a module with a docstring, `COLUMNS` (a format for each figure) and a function `rows`, which yields a label
and a function for each row of its table. That function returns the figures. It can raise `SkipTest` where the row does
not apply, and return an "error" beside the figures where they are outside of what is allowed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import CompileConfig

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

from ..timing import paired
from .settings import Settings

Figures = dict[str, Any]
Rows = Iterator[tuple[str, Callable[[], Figures]]]
PAIRED_COLUMNS = {"speedup: median (range)": "{}", "ours, ms": "{:,.2f}", "peer, ms": "{:,.2f}"}


def compare(ours: Callable[[], object], theirs: Callable[[], object], pairs: int) -> Figures:
    """Time both, alternating: the figures of `PAIRED_COLUMNS`."""
    result = paired(ours, theirs, pairs)
    return dict(zip(PAIRED_COLUMNS, (result, result.ours * 1000, result.theirs * 1000), strict=True))


def checked(figures: Figures, difference: float, tolerance: float) -> Figures:
    """Add a difference from a reference, and an error if it is above the tolerance or NaN."""
    figures = {**figures, "difference": difference, "tolerance": tolerance}
    if not difference <= tolerance:
        figures["error"] = f"difference must be at most {tolerance:.2g}, got {difference:.2g}."
    return figures


def start_processes(work: Callable[..., None], arguments: tuple[Any, ...], count: int, settings: Settings) -> None:
    """Run `work(rank, *arguments)` in `count` processes and raise the first exception of one of them."""
    method = "spawn" if settings.start_method == "spawn" else "fork"  # CUDA cannot be used in a process that was forked
    torch.multiprocessing.start_processes(work, arguments, nprocs=count, start_method=method)


def static_cache(settings: Settings) -> dict[str, Any]:
    """Options of `generate()` for a static cache. On a GPU, transformers' default is to compile to CUDA graphs."""
    config = CompileConfig(backend=settings.backend)
    config._compile_all_devices = True  # compiles without a GPU too
    return {"cache_implementation": "static", "compile_config": config}


def preset_model(preset: str, overrides: dict[str, Any]) -> RandomTransformerForConditionalGeneration:
    """A model of the paper with random weights."""
    torch.manual_seed(0)
    return RandomTransformerForConditionalGeneration(RandomTransformerConfig.from_preset(preset, **overrides))


def sentence_lengths(pairs: int, longest: int = 200) -> np.ndarray:
    """Lengths in tokens like those of WMT English-German, `[pairs, 2]`: log-normal, about 29 tokens on average."""
    random = np.random.default_rng(0)
    source = random.lognormal(np.log(24), 0.6, pairs)
    target = source * random.normal(1.0, 0.15, pairs)
    return np.stack([source, target], axis=1).round().clip(3, longest).astype(int)

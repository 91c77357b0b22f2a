"""Steps of `generate()` as CUDA graphs.

`cache_implementation="static"`: tokens against the CPU in float64, then captured steps against the usual ones (source
length 32, 64 new tokens). The speedup is over the usual steps. A step is the time of one token; the graph is the part
of it that is left if only the graph runs. The first call captures the graph; its time is without that of a later call.
What is kept is the memory that stays reserved for later calls with the same shapes.
"""

import copy
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer.decoding_random_transformer import CapturedStep, step_pool

from ..generate import DEVICE, DTYPES, SOURCE_LEN, generate
from ..memory import MIB
from ..models import END, VOCAB_SIZE, marian, ours
from ..timing import paired, seconds
from ..train import make_batch
from .first import SEARCHES
from .parts import Figures, Rows, checked
from .settings import Settings

COLUMNS = {
    "difference": "{:.1e}",
    "tolerance": "{:.0e}",
    "speedup: median (range)": "{}",
    "tokens/s": "{:,.0f}",
    "usual, tokens/s": "{:,.0f}",
    "Marian, tokens/s": "{:,.0f}",
    "step, ms": "{:.3f}",
    "graph, ms": "{:.3f}",
    "first call, s": "{:.2f}",
    "kept, MiB": "{:,.0f}",
}
CAPTURED = {"cache_implementation": "static"}


def rows(settings: Settings) -> Rows:
    torch.manual_seed(0)
    exact = ours(settings.checked_size).eval().double()
    ids = make_batch(4)["input_ids"]
    for name, num_beams in SEARCHES.items():
        yield f"tokens, {name}, fp64", partial(check_tokens, exact, ids, num_beams, settings)
    dtype = settings.generation_dtypes[0]
    for name, size in settings.captured_sizes.items():
        model, peer = (make(size).to(DEVICE, DTYPES[dtype]).eval() for make in (ours, marian))
        for (search, num_beams), batch in product(SEARCHES.items(), settings.captured_batches):
            source = torch.randint(END + 1, VOCAB_SIZE, (batch, SOURCE_LEN), device=DEVICE)
            label = f"{name} {dtype}, batch {batch}, {search}"
            yield label, partial(measure, model, peer, source, num_beams, settings.new_tokens, settings.pairs)


def check_tokens(model: Any, ids: Tensor, num_beams: int, settings: Settings) -> Figures:
    """Two calls with one graph; in float64, so that rounding cannot change a token. The CPU decodes without a cache."""
    candidate: Any = copy.deepcopy(model).to(DEVICE)
    wrong = []
    for sources in (ids, ids.flip(0)):
        reference = generate(model, sources.cpu(), num_beams, settings.new_tokens, use_cache=False)
        actual = generate(candidate, sources, num_beams, settings.new_tokens, **CAPTURED)
        wrong.append((actual.cpu() != reference).double().mean().item())
    return with_error_if_not_captured(checked({}, max(wrong), 0.0), candidate)


@torch.inference_mode()
def measure(model: Any, peer: Any, ids: Tensor, num_beams: int, tokens: int, pairs: int) -> Figures:
    captured = partial(generate, model, ids, num_beams, tokens, **CAPTURED)
    usual = partial(generate, model, ids, num_beams, tokens, cache_implementation="dynamic")  # never captured
    usual()
    before = reserved_memory()
    first = seconds(captured, 1)
    kept = reserved_memory() - before
    result = paired(captured, usual, pairs)
    theirs = paired(partial(generate, peer, ids, num_beams, tokens), usual, 1)
    generated = len(ids) * tokens
    figures: Figures = {
        "speedup: median (range)": result,
        "tokens/s": generated / result.ours,
        "usual, tokens/s": generated / result.theirs,
        "Marian, tokens/s": generated / theirs.ours,
        "step, ms": 1000 * result.ours / tokens,
        "first call, s": first - result.ours,
        "kept, MiB": kept / MIB,
    }
    if step := last_captured(model):
        repeat = tokens // 2
        step.target.position.sub_(repeat)  # keeps the replayed steps within the capacity
        step.target.token_entries.sub_(repeat * num_beams)
        figures["graph, ms"] = 1000 * seconds(step.graph.replay, repeat)
    return with_error_if_not_captured(figures, model)


def reserved_memory() -> int:
    """Bytes that PyTorch's allocator cannot return to the device: those of graphs are not counted as allocated."""
    if DEVICE == "cpu":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def last_captured(model: Any) -> CapturedStep | None:
    """The captured step of the model's last call."""
    return next(reversed(step_pool(model).steps.values()), None)


def with_error_if_not_captured(figures: Figures, model: Any) -> Figures:
    if DEVICE == "cuda" and last_captured(model) is None:
        figures["error"] = "generate() captured no graph."
    return figures

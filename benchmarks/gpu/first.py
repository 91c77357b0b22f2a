"""First checks on a new GPU.

Logits, gradients and generated tokens against the CPU in float64, then training (32 + 32 tokens per pair, dropout 0.1)
and `generate()` (source length 32, 64 new tokens) against Marian. The difference is |x - reference| / |reference|, for
tokens the share that differs. The peak of memory includes weights and optimizer state. Synchronizations are those that
PyTorch's debug mode detects, per training step or generated token of our model.
"""

import copy
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from itertools import product
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from modeling_random_transformer.training import SmoothedCrossEntropy

from ..generate import DEVICE, DTYPES, SOURCE_LEN, generate
from ..memory import MIB, peak
from ..models import END, GENERATORS, VOCAB_SIZE, Size, ours
from ..timing import paired
from ..train import LENGTH, SMOOTHING, Batch, make_batch, trainer
from ..trainer import translation_trainer
from .parts import Figures, Rows, checked
from .settings import Settings
from .train import DROPOUT

COLUMNS = {
    "difference": "{:.1e}",
    "tolerance": "{:.0e}",
    "speedup: median (range)": "{}",
    "tokens/s": "{:,.0f}",
    "Marian, tokens/s": "{:,.0f}",
    "peak memory, MiB": "{:,.0f}",
    "Marian, MiB": "{:,.0f}",
    "synchronizations": "{:.2f}",
}
HALVES = {"fp16": torch.float16, "bf16": DTYPES["bf16"]}
TOLERANCES = {
    "logits": {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2},
    # Higher, since rounding changes the signs of some activations, where the gradient of ReLU is not continuous.
    "gradients": {"fp32": 1e-3, "fp16": 6e-2, "bf16": 2e-1},
}
FLASH = {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}
SEARCHES = {"greedy search": 1, "4 beams": 4}
MOST_SYNCHRONIZATIONS = 1.0  # per training step or generated token

Work = Callable[[int], object]  # called with a number of training steps or generated tokens


def rows(settings: Settings) -> Rows:
    torch.manual_seed(0)
    model = ours(settings.checked_size).eval()
    batch = {name: tensor.cpu() for name, tensor in make_batch(4).items()}
    yield from forward_rows(model, batch, ("eager", "sdpa", *FLASH), settings)
    for name, num_beams in SEARCHES.items():
        yield f"tokens, {name}, fp64", partial(check_tokens, model, batch["input_ids"], num_beams, settings)
    yield from speed_rows(settings)
    yield "step of TranslationTrainer, two batches", partial(check_trainer, settings)
    yield from forward_rows(model, batch, ("flex_attention",), settings)  # the last, since it is compiled


# Results


def forward_rows(model: nn.Module, batch: Batch, implementations: tuple[str, ...], settings: Settings) -> Rows:
    exact: Any = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    references = {kind: function(exact, batch) for kind, function in QUANTITIES.items()}
    for name, kind in product(implementations, QUANTITIES):
        for dtype in HALVES if name in FLASH else TOLERANCES[kind]:
            check = partial(check_forward, model, references[kind], batch, kind, name, dtype, settings)
            yield f"{kind}, {name}, {dtype}", check


def check_forward(
    model: nn.Module, reference: Tensor, batch: Batch, kind: str, attention: str, dtype: str, settings: Settings
) -> Figures:
    if attention in FLASH and not FLASH[attention]():
        raise SkipTest("not installed")
    if attention == "flex_attention" and kind == "gradients" and not torch.backends.cuda.is_built():
        raise SkipTest("the kernel of this build of torch has no backward pass")
    candidate: Any = copy.deepcopy(model).to(DEVICE, {**DTYPES, **HALVES}[dtype])
    candidate.set_attn_implementation(attention)
    on_device = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
    torch.compiler.reset()  # each row compiles flex attention again, and the number of recompilations is limited
    with torch.compiler.set_stance("force_eager" if settings.backend == "eager" else "default"):
        actual = QUANTITIES[kind](candidate, on_device)
    return checked({}, relative(actual.cpu(), reference), TOLERANCES[kind][dtype])


def relative(actual: Tensor, reference: Tensor) -> float:
    return ((actual - reference).norm() / reference.norm()).item()


@torch.no_grad()
def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """`[batch, target_len, vocab_size]` in float64."""
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits.double()


def smoothed_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    return SmoothedCrossEntropy(SMOOTHING)(model(**inputs), batch["labels"])


def gradients(model: nn.Module, batch: Batch, loss: Callable[[nn.Module, Batch], Tensor] = smoothed_loss) -> Tensor:
    """The gradient of all weights as one vector in float64."""
    gradients_by_weight = torch.autograd.grad(loss(model, batch), list(model.parameters()))
    return torch.cat([gradient.flatten().double() for gradient in gradients_by_weight])


QUANTITIES: dict[str, Callable[[nn.Module, Batch], Tensor]] = {"logits": logits_of, "gradients": gradients}


def check_tokens(model: nn.Module, ids: Tensor, num_beams: int, settings: Settings) -> Figures:
    """In float64, so that rounding cannot change a token; the CPU decodes without a cache."""
    exact = copy.deepcopy(model).double()
    reference = generate(exact, ids, num_beams, settings.new_tokens, use_cache=False)
    candidate: Any = exact.to(DEVICE)
    actual = generate(candidate, ids.to(DEVICE), num_beams, settings.new_tokens)
    figures = checked({}, (actual.cpu() != reference).double().mean().item(), 0.0)
    if reason := candidate.fallback_reason():
        figures["error"] = f"generate() did not use the fast decoder: {reason}."
    return figures


# Speed, memory and synchronizations


def speed_rows(settings: Settings) -> Rows:
    name, size = next(iter(settings.sizes.items()))
    training, generation = settings.training_dtypes[0], settings.generation_dtypes[0]
    yield f"training, {name} {training}", partial(measure_training, size, DTYPES[training], settings)
    for search, num_beams in SEARCHES.items():
        work = partial(measure_generation, size, DTYPES[generation], num_beams, settings)
        yield f"generate(), {name} {generation}, {search}", work


def measure_training(size: Size, dtype: torch.dtype, settings: Settings) -> Figures:
    batch = make_batch(settings.training_batch)

    def build(name: str) -> Work:
        step = trainer(GENERATORS[name](size, DROPOUT), batch, dtype, own_loss=name != "Marian")
        return lambda steps: [step() for _ in range(steps)]

    return against_marian(build, 2, settings.training_batch * 2 * LENGTH, settings)


def measure_generation(size: Size, dtype: torch.dtype, num_beams: int, settings: Settings) -> Figures:
    ids = torch.randint(END + 1, VOCAB_SIZE, (settings.generation_batches[-1], SOURCE_LEN), device=DEVICE)

    def build(name: str) -> Work:
        return partial(generate, GENERATORS[name](size).to(DEVICE, dtype).eval(), ids, num_beams)

    return against_marian(build, settings.new_tokens, len(ids), settings)


def against_marian(build: Callable[[str], Work], units: int, tokens: int, settings: Settings) -> Figures:
    """Compare the work of both models: `units` steps or tokens per call, with `tokens` tokens each in the batch."""
    (mine, my_peak), (theirs, their_peak) = (with_peak(partial(build, name), units) for name in GENERATORS)
    result = paired(partial(mine, units), partial(theirs, units), settings.pairs)
    figures: Figures = {"speedup: median (range)": result, "tokens/s": units * tokens / result.ours}
    figures["Marian, tokens/s"] = units * tokens / result.theirs
    if DEVICE == "cpu":
        return figures
    figures |= {"peak memory, MiB": my_peak, "Marian, MiB": their_peak}
    return with_synchronizations(figures, mine, units)


def with_peak(build: Callable[[], Work], units: int) -> tuple[Work, float]:
    """The work, and the most memory in MiB that it allocates in one call, without what was allocated before."""
    before = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    work = build()
    work(units)
    return work, peak() - before / MIB


def check_trainer(settings: Settings) -> Figures:
    if DEVICE == "cpu":
        raise SkipTest("a CPU does not synchronize")

    def train(steps: int) -> None:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            translation_trainer(
                ours(settings.checked_size, DROPOUT),
                folder,
                pairs=settings.sentence_pairs // 4,
                max_steps=steps,
                max_tokens_per_batch=settings.batch_tokens // 2,
                gradient_accumulation_steps=2,
                bf16=True,
            ).train()

    return with_synchronizations({}, train, settings.check_steps)


def with_synchronizations(figures: Figures, work: Work, units: int) -> Figures:
    """Add their number per unit, and an error if it is too high. The difference of two calls excludes start and end."""
    few, many = (synchronizations(partial(work, factor * units)) for factor in (1, 2))
    count = (many - few) / units
    figures = {**figures, "synchronizations": count}
    if count > MOST_SYNCHRONIZATIONS:
        figures["error"] = f"synchronizations must be at most {MOST_SYNCHRONIZATIONS:g}, got {count:.2f}."
    return figures


def synchronizations(work: Callable[[], object]) -> int:
    """How often the CPU waits for the GPU in `work`, as far as PyTorch detects it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)

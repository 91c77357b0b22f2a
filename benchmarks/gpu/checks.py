"""Checks against references.

Mixed precision, `torch.compile`, the static cache and int8, each against this device without it. The difference is
|x - reference| / |reference| over logits or gradients in float64, the largest relative difference of losses over a
short training in float32, or for generated tokens the share that differs.
"""

import copy
import tempfile
from functools import partial
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig

from ..generate import DEVICE, DTYPES, generate
from ..models import ours
from ..train import Batch, make_batch, trainer
from .first import HALVES, TOLERANCES, gradients, logits_of, relative, smoothed_loss
from .parts import Figures, Rows, checked, static_cache
from .settings import Settings

COLUMNS = {"difference": "{:.1e}", "tolerance": "{:.0e}"}
LOSS_TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
INT8_TOLERANCES = {"Int8WeightOnlyConfig": 0.03, "Int8DynamicActivationInt8WeightConfig": 0.06}


def rows(settings: Settings) -> Rows:
    torch.manual_seed(0)
    model = ours(settings.checked_size).to(DEVICE).eval()
    batch = make_batch(4)
    exact = copy.deepcopy(model).double()
    yield from training_rows(model, batch, settings)
    yield from compile_rows(model, exact, batch, settings)
    yield from generation_rows(exact, batch["input_ids"], settings)
    yield from int8_rows(model, logits_of(exact, batch), batch)


def training_rows(model: Any, batch: Batch, settings: Settings) -> Rows:
    """Autocast, in float16 with a gradient scaler."""

    def losses(dtype: torch.dtype) -> Tensor:
        step = trainer(copy.deepcopy(model), batch, dtype, own_loss=True)
        return torch.stack([step() for _ in range(settings.check_steps)])

    def check_training(dtype: str) -> Figures:
        actual = losses({**DTYPES, **HALVES}[dtype])
        figures = checked({}, ((actual - reference) / reference).abs().max().item(), LOSS_TOLERANCES[dtype])
        if not actual[-1] < actual[0]:
            figures["error"] = f"the loss must decrease, got {actual[0]:.4f} and {actual[-1]:.4f}."
        return figures

    reference = losses(torch.float32)
    for dtype in HALVES:
        yield f"losses of {settings.check_steps} training steps, {dtype}", partial(check_training, dtype)


def compile_rows(model: Any, exact: Any, batch: Batch, settings: Settings) -> Rows:
    def check_compiled_forward() -> Figures:
        compiled: Any = torch.compile(copy.deepcopy(model), backend=settings.backend)
        return checked({}, relative(logits_of(compiled, batch), logits_of(exact, batch)), TOLERANCES["logits"]["fp32"])

    def check_compiled_training() -> Figures:
        compiled = torch.compile(smoothed_loss, backend=settings.backend)
        difference = relative(gradients(model, batch, compiled), gradients(exact, batch))
        return checked({}, difference, TOLERANCES["gradients"]["fp32"])

    yield "logits, torch.compile, fp32", check_compiled_forward
    yield "gradients, torch.compile, fp32", check_compiled_training


def generation_rows(exact: Any, ids: Tensor, settings: Settings) -> Rows:
    """In float64, so that rounding cannot change a token."""

    def check_tokens() -> Figures:
        options = static_cache(settings)
        actual, reference = (
            generate(exact, ids, 1, settings.new_tokens, **cache_options)
            for cache_options in (options, {"use_cache": False})
        )
        skips = counters["inductor"]["cudagraph_skips"]  # graphs that inductor did not run as CUDA graphs
        figures = checked({"cudagraph_skips": skips}, (actual != reference).double().mean().item(), 0.0)
        if "_compiled_call" not in vars(exact):
            figures["error"] = "generate() did not compile the model."
        return figures

    yield "tokens, greedy search, static cache with CUDA graphs", check_tokens


def int8_rows(model: Any, reference: Tensor, batch: Batch) -> Rows:
    for name in INT8_TOLERANCES:
        yield f"logits, torchao's {name}", partial(check_int8, model, reference, batch, name)


def has_exact_int8_products() -> bool:
    """Whether torch's int8 matrix product is exact, which it is not on CPUs without VNNI: sums saturate at 16 bits."""
    values = torch.full((32, 64), 127, dtype=torch.int8, device=DEVICE)
    return bool((torch._int_mm(values, values.T.contiguous()) == 64 * 127**2).all())


def check_int8(model: Any, reference: Tensor, batch: Batch, name: str) -> Figures:
    try:
        import torchao.quantization
    except ImportError as error:
        raise SkipTest("torchao is not installed") from error
    if name.startswith("Int8DynamicActivation") and not has_exact_int8_products():
        raise SkipTest("torch's int8 products saturate on this CPU")
    config = TorchAoConfig(getattr(torchao.quantization, name)())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        quantized = AutoModelForSeq2SeqLM.from_pretrained(
            folder, quantization_config=config, dtype=model.dtype, device_map=DEVICE
        )
    return checked({}, relative(logits_of(quantized, batch), reference), INT8_TOLERANCES[name])

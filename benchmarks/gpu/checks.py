"""Checks against references.

The difference is |x - reference| / |reference| over logits or gradients in float64, the largest relative difference of
losses over a short training in float32, or for generated tokens the share that differs.
"""

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from modeling_random_transformer.training import SmoothedCrossEntropy

from ..generate import DEVICE, DTYPES, generate
from ..models import ours
from ..train import SMOOTHING, Batch, make_batch, trainer
from .parts import Figures, Rows, checked, static_cache
from .settings import Settings

COLUMNS = {"difference": "{:.1e}", "tolerance": "{:.0e}"}
HALVES = {"fp16": torch.float16, "bf16": DTYPES["bf16"]}
TOLERANCES = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}  # of logits
LOSS_TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
INT8_TOLERANCES = {"Int8WeightOnlyConfig": 0.03, "Int8DynamicActivationInt8WeightConfig": 0.06}
FLASH = {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}


def rows(settings: Settings) -> Rows:
    torch.manual_seed(0)
    model = ours(settings.checked_size).to(DEVICE).eval()
    batch = make_batch(4)
    exact = copy.deepcopy(model).double()
    yield from forward_rows(model, exact, batch)
    yield from training_rows(model, batch, settings)
    yield from compile_rows(model, exact, batch, settings)
    yield from generation_rows(exact, batch["input_ids"], settings)
    yield from int8_rows(model, logits_of(exact, batch), batch)


@torch.no_grad()
def logits_of(model: Any, batch: Batch) -> Tensor:
    """`[batch, target_len, vocab_size]` in float64."""
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits.double()


def relative(actual: Tensor, reference: Tensor) -> float:
    return ((actual - reference).norm() / reference.norm()).item()


def forward_rows(model: Any, exact: Any, batch: Batch) -> Rows:
    """Every attention implementation in every dtype that it supports."""
    exact.set_attn_implementation("eager")
    reference = logits_of(exact, batch)
    exact.set_attn_implementation("sdpa")
    for name in ("eager", "sdpa", *FLASH):
        for dtype in HALVES if name in FLASH else TOLERANCES:
            yield f"logits, {name}, {dtype}", partial(check_forward, model, reference, batch, name, dtype)


def check_forward(model: Any, reference: Tensor, batch: Batch, attention: str, dtype: str) -> Figures:
    if attention in FLASH and not FLASH[attention]():
        raise SkipTest("not installed")
    model = copy.deepcopy(model).to({**DTYPES, **HALVES}[dtype])
    model.set_attn_implementation(attention)
    return checked({}, relative(logits_of(model, batch), reference), TOLERANCES[dtype])


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
        compiled = torch.compile(copy.deepcopy(model), backend=settings.backend)
        return checked({}, relative(logits_of(compiled, batch), logits_of(exact, batch)), TOLERANCES["fp32"])

    def check_compiled_training() -> Figures:
        compiled = torch.compile(loss, backend=settings.backend)
        return checked({}, relative(gradients(compiled, model), gradients(loss, exact)), TOLERANCES["fp32"])

    def loss(candidate: Any) -> Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return SmoothedCrossEntropy(SMOOTHING)(candidate(**inputs), batch["labels"])

    yield "logits, torch.compile, fp32", check_compiled_forward
    yield "gradients, torch.compile, fp32", check_compiled_training


def gradients(loss: Callable[[nn.Module], Tensor], model: nn.Module) -> Tensor:
    """The gradient of all weights as one vector in float64."""
    gradients_by_weight = torch.autograd.grad(loss(model), list(model.parameters()))
    return torch.cat([gradient.flatten().double() for gradient in gradients_by_weight])


def generation_rows(exact: Any, ids: Tensor, settings: Settings) -> Rows:
    """In float64, so that rounding cannot change a token."""

    def check_tokens(num_beams: int, options: dict[str, Any]) -> Figures:
        actual, reference = (generate(exact, ids, num_beams, **each) for each in (options, {"use_cache": False}))
        skips = counters["inductor"]["cudagraph_skips"]  # graphs that inductor did not run as CUDA graphs
        figures = checked({"cudagraph_skips": skips}, (actual != reference).double().mean().item(), 0.0)
        if not options and (reason := exact.fallback_reason()):
            figures["error"] = f"generate() did not use the fast decoder: {reason}."
        if options and "_compiled_call" not in vars(exact):
            figures["error"] = "generate() did not compile the model."
        return figures

    yield "tokens, greedy search", partial(check_tokens, 1, {})
    yield "tokens, 4 beams", partial(check_tokens, 4, {})
    yield "tokens, greedy search, static cache with CUDA graphs", partial(check_tokens, 1, static_cache(settings))


def int8_rows(model: Any, reference: Tensor, batch: Batch) -> Rows:
    for name in INT8_TOLERANCES:
        yield f"logits, torchao's {name}", partial(check_int8, model, reference, batch, name)


def check_int8(model: Any, reference: Tensor, batch: Batch, name: str) -> Figures:
    try:
        import torchao.quantization
    except ImportError as error:
        raise SkipTest("torchao is not installed") from error
    config = TorchAoConfig(getattr(torchao.quantization, name)())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        quantized = AutoModelForSeq2SeqLM.from_pretrained(
            folder, quantization_config=config, dtype=model.dtype, device_map=DEVICE
        )
    return checked({}, relative(logits_of(quantized, batch), reference), INT8_TOLERANCES[name])

"""Throughput of `generate()` against MarianMTModel and CTranslate2: source 32, 64 new tokens."""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer import DynamicInt8Config

from .models import END, SIZES, START, VOCAB_SIZE, marian, ours
from .report import Rows, save, show
from .timing import paired

SOURCE_LEN, NEW_TOKENS = 32, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Generate = Callable[[Tensor, int], Any]  # source ids `[batch, source_len]`, num_beams → target ids


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "base"], help="model sizes")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="batch sizes")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4], help="numbers of beams")
    parser.add_argument("--dtypes", nargs="+", choices=[*DTYPES, "int8"], default=["fp32", "bf16"], help="data types")
    parser.add_argument("--engines", action="store_true", help="also compare with CTranslate2 (extra ctranslate2)")
    parser.add_argument("--pairs", type=int, default=5, help="number of paired measurements")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks"), help="folder of the results")


def run(options: argparse.Namespace) -> None:
    rows: Rows = []
    for size, dtype in product(options.sizes, options.dtypes):
        mine, peers = candidates(size, dtype, options.engines)
        for batch, num_beams in product(options.batches, options.beams):
            ids = torch.randint(END + 1, VOCAB_SIZE, (batch, SOURCE_LEN), device=DEVICE)
            for peer, theirs in peers.items():
                result = paired(partial(mine, ids, num_beams), partial(theirs, ids, num_beams), options.pairs)
                rows.append((f"{size} {dtype}, batch {batch}, beams {num_beams}", peer, result))
                print(f"{rows[-1][0]}, against {peer}: {result}", flush=True)
    show("generate()", rows)
    save("generate", rows, options.output)


def candidates(size: str, dtype: str, engines: bool) -> tuple[Generate, dict[str, Generate]]:
    """Our `generate()`, and the peers: Marian, for int8 in float32, and, with `engines`, CTranslate2."""
    torch.manual_seed(0)
    unquantized = "fp32" if dtype == "int8" else dtype
    mine, theirs = (make(SIZES[size]).to(DEVICE, DTYPES[unquantized]).eval() for make in (ours, marian))
    peers: dict[str, Generate] = {f"Marian {unquantized}": partial(generate, theirs)}
    if engines:
        from .engines import translate  # imports ctranslate2, which is optional

        peers |= {f"CTranslate2 {kind}": translate(mine, kind, NEW_TOKENS) for kind in ("float32", "int8")}
    return partial(generate, quantized(mine) if dtype == "int8" else mine), peers


def quantized(model: Any) -> Any:
    """The model with int8 weights and dynamically quantized activations."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, quantization_config=DynamicInt8Config()).to(DEVICE).eval()


@torch.inference_mode()
def generate(model: Any, ids: Tensor, num_beams: int, tokens: int = NEW_TOKENS, **options: Any) -> Tensor:
    """Generate exactly this number of tokens per source, with more options of `model.generate()`."""
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=num_beams,
        do_sample=False,
        eos_token_id=None,
        max_new_tokens=tokens,
        decoder_start_token_id=START,
        **options,
    )

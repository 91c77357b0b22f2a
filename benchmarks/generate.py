"""Speed of `generate()` against MarianMTModel: source 32, 64 new tokens."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .models import END, SIZES, START, VOCAB_SIZE, marian, ours
from .report import Rows, save, show
from .timing import paired

SOURCE_LEN, NEW_TOKENS = 32, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "base"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks"))


def run(options: argparse.Namespace) -> None:
    rows: Rows = []
    for size, dtype in product(options.sizes, options.dtypes):
        for work, mine, theirs in cells(size, dtype, options.batches, options.beams):
            rows.append((work, "Marian", paired(mine, theirs, options.pairs)))
            print(f"{work}: {rows[-1][2]}", flush=True)
    show("generate()", rows)
    save("generate", rows, options.output)


def cells(
    size: str, dtype: str, batches: list[int], beams: list[int]
) -> Iterator[tuple[str, Callable[[], Tensor], Callable[[], Tensor]]]:
    """Every cell of the table: its name, and what generates with our model and with Marian's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    models = [make(SIZES[size]).to(device, DTYPES[dtype]).eval() for make in (ours, marian)]
    for batch, num_beams in product(batches, beams):
        ids = torch.randint(END + 1, VOCAB_SIZE, (batch, SOURCE_LEN), device=device)
        mine, theirs = (partial(generate, model, ids, num_beams) for model in models)
        yield f"{size} {dtype}, batch {batch}, beams {num_beams}", mine, theirs


@torch.inference_mode()
def generate(model: Any, ids: Tensor, num_beams: int) -> Tensor:
    """Always `NEW_TOKENS` tokens, whatever the model would say."""
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=num_beams,
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        decoder_start_token_id=START,
    )

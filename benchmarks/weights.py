"""A saved translator with weights of 32, 16, 8 and 4 bits: what it scores, weighs and takes. Needs `[quantization]`."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TorchAoConfig

import modeling_random_transformer  # noqa: F401  (registers the Auto classes)
from modeling_random_transformer.evaluation import score
from modeling_random_transformer.translation import translate

from .timing import Paired, paired

GROUPS = (128, 64, 32)  # weights that share a scale in int4
FEW = 50  # sentences to time one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="FOLDER", help="a saved translator")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--target", type=Path, required=True, help="their translations")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    sources, targets = (path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    console = Console()
    table = Table("weights", "MB", "BLEU", "chrF++", "as they were", "speed, in batches", "speed, one by one")
    exact = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=torch.float32).eval()
    first: list[str] = []
    for name, more in variants().items():
        model = AutoModelForSeq2SeqLM.from_pretrained(options.model, **more).eval()
        found = translate(sources, model, tokenizer, num_beams=options.beams)
        first = first or found
        scores = score(found, targets)
        same = sum(map(str.__eq__, found, first)) / len(found)
        figures = (f"{megabytes(model):.1f}", *(f"{scores[metric]['score']:.2f}" for metric in ("bleu", "chrf")))
        speeds = (speed(model, exact, tokenizer, sources, one_by_one, options) for one_by_one in (False, True))
        row = (name, *figures, f"{same:.1%}", *(str(each) for each in speeds))
        table.add_row(*row)
        console.print(*row, sep=" | ")  # it takes minutes until the table is complete
    console.print(table)


def variants() -> dict[str, dict[str, Any]]:
    """Options of `from_pretrained`, by what the table calls them."""
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import Int8WeightOnlyConfig

    half = {"dtype": torch.bfloat16}
    int8 = TorchAoConfig(Int8WeightOnlyConfig())
    int4 = {group: TorchAoConfig(PrototypeInt4WeightOnlyConfig(group_size=group)) for group in GROUPS}
    return {
        "float32": {"dtype": torch.float32},
        "bfloat16": half,
        "int8, float32": {"dtype": torch.float32, "quantization_config": int8},
        "int8, bfloat16": {**half, "quantization_config": int8},
        **{f"int4 by {group}, bfloat16": {**half, "quantization_config": int4[group]} for group in GROUPS},
    }


def speed(
    model: Any, exact: Any, tokenizer: Any, sources: list[str], one_by_one: bool, options: argparse.Namespace
) -> Paired:
    """How many times as fast the model translates as the one in float32."""
    if one_by_one:
        sources = sources[:FEW]
    work = partial(translate, sources, tokenizer=tokenizer, num_beams=options.beams, progress=False)
    chunk = {"chunk_size": 1} if one_by_one else {}
    return paired(partial(work, model=model, **chunk), partial(work, model=exact, **chunk), options.pairs)


def megabytes(model: Any) -> float:
    """What the weights take in memory, those that are tied once, in 10⁶ bytes."""
    return sum(map(bytes_of, model.parameters())) / 1e6


def bytes_of(weight: Tensor) -> int:
    """Of a quantised weight, those of its parts."""
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.numel() * weight.element_size()
    return sum(bytes_of(getattr(weight, part)) for part in weight.__tensor_flatten__()[0])

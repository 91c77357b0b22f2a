"""BLEU, memory and throughput of a saved model with 32, 16, 8 and 4-bit weights. Needs the extra quantization."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TorchAoConfig

from modeling_random_transformer import DynamicInt8Config
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.evaluation import score

from .timing import Paired, paired

GROUP_SIZES = (128, 64, 32)  # weights per scale in int4
SINGLE_SENTENCES = 50  # sentences timed one at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="FOLDER", help="a saved model")
    parser.add_argument("--source", type=Path, required=True, help="source sentences, one per line")
    parser.add_argument("--target", type=Path, required=True, help="reference translations")
    parser.add_argument("--beams", type=int, default=4, help="number of beams")
    parser.add_argument("--pairs", type=int, default=3, help="number of paired measurements")


def run(options: argparse.Namespace) -> None:
    sources, targets = (path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    console = Console()
    table = Table("weights", "MB", "BLEU", "chrF++", "same as float32", "throughput, batches", "throughput, single")
    reference = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=torch.float32).eval()
    expected: list[str] = []
    for name, more in variants().items():
        model = AutoModelForSeq2SeqLM.from_pretrained(options.model, **more).eval()
        translations = translate(sources, model, tokenizer, num_beams=options.beams)
        expected = expected or translations
        scores = score(translations, targets)
        same = sum(map(str.__eq__, translations, expected)) / len(translations)
        figures = (f"{megabytes(model):.1f}", *(f"{scores[metric]['score']:.2f}" for metric in ("bleu", "chrf")))
        speeds = (speed(model, reference, tokenizer, sources, single, options) for single in (False, True))
        row = (name, *figures, f"{same:.1%}", *(str(speedup) for speedup in speeds))
        table.add_row(*row)
        console.print(*row, sep=" | ")  # progress: the complete table takes minutes
    console.print(table)


def variants() -> dict[str, dict[str, Any]]:
    """Options of `from_pretrained` by row of the table."""
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import Int8WeightOnlyConfig

    bfloat16 = {"dtype": torch.bfloat16}
    int8 = TorchAoConfig(Int8WeightOnlyConfig())
    int4 = {group: TorchAoConfig(PrototypeInt4WeightOnlyConfig(group_size=group)) for group in GROUP_SIZES}
    return {
        "float32": {"dtype": torch.float32},
        "bfloat16": bfloat16,
        "int8, dynamic": {"quantization_config": DynamicInt8Config()},
        "int8, float32": {"dtype": torch.float32, "quantization_config": int8},
        "int8, bfloat16": {**bfloat16, "quantization_config": int8},
        **{f"int4 by {group}, bfloat16": {**bfloat16, "quantization_config": int4[group]} for group in GROUP_SIZES},
    }


def speed(
    model: Any, reference: Any, tokenizer: Any, sources: list[str], single: bool, options: argparse.Namespace
) -> Paired:
    """Speedup of the model over the one in float32."""
    if single:
        sources = sources[:SINGLE_SENTENCES]
    work = partial(translate, sources, tokenizer=tokenizer, num_beams=options.beams, progress=False)
    chunk = {"chunk_size": 1} if single else {}
    return paired(partial(work, model=model, **chunk), partial(work, model=reference, **chunk), options.pairs)


def megabytes(model: Any) -> float:
    """Memory of the parameters in units of 10⁶ bytes; tied weights count once."""
    return sum(map(num_bytes, model.parameters())) / 1e6


def num_bytes(weight: Tensor) -> int:
    """Bytes of a weight; of a quantized weight, the sum over its tensors."""
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.numel() * weight.element_size()
    return sum(num_bytes(getattr(weight, part)) for part in weight.__tensor_flatten__()[0])

"""Time from process start to the first token of a saved model (import, load, generate), against Marian."""

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from .models import GENERATORS, SIZES
from .timing import paired

SCRIPT = """
import sys
{imports}
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
model.generate(torch.full((1, 32), 5), max_new_tokens=1, do_sample=False)
"""
IMPORTS = {"random-transformer": "import modeling_random_transformer", "Marian": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="base", help="model size")
    parser.add_argument("--pairs", type=int, default=5, help="number of paired measurements")


def run(options: argparse.Namespace) -> None:
    makers: dict[str, Any] = GENERATORS
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers.items():
            make(SIZES[options.size]).save_pretrained(Path(folder, name))
        ours, marian = (partial(first_token, Path(folder, name), IMPORTS[name]) for name in GENERATORS)
        result = paired(ours, marian, options.pairs)
    ratio = f"{1 / result.median:.2f} ({1 / max(result.ratios):.2f} to {1 / min(result.ratios):.2f})"
    print(f"time to the first token, ours over Marian's: {ratio}")
    print(f"ours {result.ours:.1f} s, Marian {result.theirs:.1f} s")


def first_token(folder: Path, imports: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(imports=imports), str(folder)]
    subprocess.run(command, capture_output=True, check=True)

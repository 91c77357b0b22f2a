"""Memory used for reading, tokenizing and batching a corpus, by corpus size.

Each size runs in its own process. The measure is private memory (`RssAnon`): it excludes the pages of memory-mapped
Arrow files, which the operating system can reclaim.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import (
    ParallelText,
    TokenBudgetSampler,
    TokenBudgetStream,
    lengths_of,
    load_pairs,
    tokenize_pairs,
    vocabulary_sample,
)

from .startup import MIB, PeakMemory

SYLLABLES = [first + vowel for first in "bcdfghjklmnprstvz" for vowel in "aeiou"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="corpus sizes in lines"
    )
    parser.add_argument("--batches", type=int, default=200, help="batches of 4,096 tokens to draw")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "MODE"), help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1], options.batches)))
        return
    print(f"{'lines':>10} {'mode':>9} {'private MiB':>12} {'before, MiB':>12} {'seconds':>8}")
    for lines in options.lines:
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder), lines)
            for mode in ("mapped", "streamed"):
                command = [sys.executable, "-m", "benchmarks", "corpus", "--measure", folder, mode]
                process = subprocess.run(command, capture_output=True, text=True, check=True)
                result = json.loads(process.stdout.splitlines()[-1])
                print(
                    f"{lines:>10,} {mode:>9} {result['peak']:>12.0f} {result['start']:>12.0f} {result['seconds']:>8.0f}"
                )


def write_corpus(folder: Path, lines: int) -> None:
    """Lines of 3 to 20 random words."""
    generator = random.Random(0)
    words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 4))) for _ in range(5000)]
    for side in ("source", "target"):
        with (folder / side).open("w") as file:
            for _ in range(lines):
                file.write(" ".join(generator.choices(words, k=generator.randint(3, 20))) + "\n")


def measure(folder: Path, mode: str, batches: int) -> dict[str, float]:
    """Peak private memory in MiB from corpus files to batches, private memory before, and elapsed seconds."""
    text = ParallelText(folder / "source", folder / "target")
    sample = islice(vocabulary_sample(text, lines=None), 10_000)
    tokenizer = RandomTransformerTokenizer.train(sample, vocab_size=2000)
    start = time.perf_counter()
    with PeakMemory() as memory:
        if mode == "mapped":
            pairs, _ = load_pairs(text, cache_dir=folder / "cache")
            tokens, _ = tokenize_pairs(pairs, tokenizer)
            for batch in islice(TokenBudgetSampler(lengths_of(tokens), 4096), batches):
                tokens[batch]
        else:
            for _ in islice(TokenBudgetStream(text, tokenizer, 4096, buffer_pairs=20_000), batches):
                pass
    return {"peak": memory.peak / MIB, "start": memory.start / MIB, "seconds": time.perf_counter() - start}

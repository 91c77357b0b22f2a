"""Peak memory of `generate()` (4 beams, batch 32, source 256) or of training against Marian; one process each."""

import argparse
import json
import resource
import subprocess
import sys

import torch

from .generate import DEVICE, DTYPES, generate
from .models import END, GENERATORS, SIZES, TRAINED, VOCAB_SIZE
from .train import make_batch, trainer

MIB = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="base", help="model size")
    parser.add_argument("--batch", type=int, default=32, help="batch size")
    parser.add_argument("--training", choices=("fp32", "bf16"), help="measure three training steps in this data type")
    parser.add_argument("--source", type=int, default=256, help="source length of generate() in tokens")
    parser.add_argument("--beams", type=int, default=4, help="number of beams")


def run(options: argparse.Namespace) -> None:
    measured = {}
    for name in GENERATORS:
        command = [sys.executable, "-m", "benchmarks.memory", "--model", name, "--size", options.size]
        command += ["--batch", f"{options.batch}", "--source", f"{options.source}", "--beams", f"{options.beams}"]
        command += ["--training", options.training] if options.training else []
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        measured[name] = memory = json.loads(result.stdout.splitlines()[-1])
        print(f"{name}: {memory['start']:.0f} MiB with the model loaded, peak {memory['peak']:.0f} MiB")
    mine, theirs = measured.values()
    print(f"peak: {mine['peak'] / theirs['peak']:.2f} of Marian's; above the loaded model: ", end="")
    print(f"{(mine['peak'] - mine['start']) / (theirs['peak'] - theirs['start']):.2f}")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Peak memory in MiB before and after the work: of the process, or on CUDA of the device."""
    if options.training:
        return measure_training(options)
    model = GENERATORS[options.model](SIZES[options.size]).to(DEVICE).eval()
    ids = torch.randint(END + 1, VOCAB_SIZE, (options.batch, options.source), device=DEVICE)
    start = peak()
    generate(model, ids, options.beams)
    return {"start": start, "peak": peak()}


def measure_training(options: argparse.Namespace) -> dict[str, float]:
    """Peak memory in MiB before and after three training steps of 32 + 32 tokens per pair."""
    model = TRAINED[options.model](SIZES[options.size], 0.1).to(DEVICE)
    start = peak()
    step = trainer(model, make_batch(options.batch), DTYPES[options.training], options.model == "random-transformer")
    for _ in range(3):
        step()
    return {"start": start, "peak": peak()}


def peak() -> float:
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB; on macOS in bytes
    return used / (MIB if sys.platform == "darwin" else 1024)


if __name__ == "__main__":  # the measured process, without the imports of the other benchmarks
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--model", choices=GENERATORS, required=True)
    print(json.dumps(measure(parser.parse_args())))

"""Seconds and memory until the first optimizer step, for one or several processes that share one cache.

    python -m benchmarks.startup FOLDER --pairs 1000000
    torchrun --nproc_per_node 8 -m benchmarks.startup FOLDER --pairs 1000000

Use a new folder for the time without a cache, and the same folder again for the time with one.
"""

import argparse
import json
import os
import random
import threading
import time
from pathlib import Path

START = time.time()
MIB = 2**20
INTERVAL = 0.05  # seconds between measurements of the memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the corpus, the cache and the output")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--bpe_dropout", type=float, default=0.0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True, parents=True)
    rank, processes = (int(os.environ.get(name, value)) for name, value in (("RANK", 0), ("WORLD_SIZE", 1)))
    if rank == 0:
        write_corpus(arguments.folder, arguments.pairs)
    os.environ["HF_DATASETS_CACHE"] = str(arguments.folder / "cache")
    output = arguments.folder / f"output-{processes}-{os.environ.get('MASTER_PORT', os.getpid())}"
    record = measure(arguments, output)
    print(json.dumps({"rank": rank, "processes": processes, "pairs": arguments.pairs, **record}), flush=True)


def measure(arguments: argparse.Namespace, output: Path) -> dict[str, float]:
    """Train for one step; seconds from the start of the process to its end, and memory in MiB."""
    source, target = ([str(arguments.folder / f"train.{side}")] for side in "ab")
    sizes = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,num_heads=2"
    with PeakMemory() as memory:
        from modeling_random_transformer.training import (  # counted, as in a run
            DataArguments,
            ModelArguments,
            TranslationTrainingArguments,
            train_translation,
        )

        imported = private_memory()
        args = TranslationTrainingArguments(
            str(output),
            max_steps=1,
            learning_rate=1e-3,
            warmup_steps=1,
            max_tokens_per_batch=500,
            average_last=1,
            bpe_dropout=arguments.bpe_dropout,
            use_cpu=True,
            disable_tqdm=True,
        )
        data = DataArguments(source_file=source, target_file=target)
        train_translation(data, ModelArguments(vocab_size=2000, config_overrides=sizes), args)
        seconds = time.time() - START
    return {
        "seconds": round(seconds, 1),
        "imports_mb": round(imported / MIB),
        "peak_mb": round(memory.peak / MIB),
    }


class PeakMemory:
    """Peak private memory of this process in bytes, sampled 20 times per second."""

    def __enter__(self) -> "PeakMemory":
        self.start = self.peak = private_memory()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.stopped.wait(INTERVAL):
            self.peak = max(self.peak, private_memory())


def private_memory() -> int:
    """Private memory of this process in bytes, without mapped files, which processes share (Linux only)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status must have RssAnon, which requires Linux.")


def write_corpus(folder: Path, pairs: int) -> None:
    """Random short sentences and their reversals, once; the last file is complete when it has its name."""
    if (folder / "train.b").exists():
        return
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvw", k=draw.randint(2, 7))) for _ in range(3000)]
    with open(folder / "train.a", "w") as source, open(folder / "train.tmp", "w") as target:
        for _ in range(pairs):
            sentence = draw.choices(words, k=draw.randint(2, 6))
            source.write(" ".join(sentence) + "\n")
            target.write(" ".join(reversed(sentence)) + "\n")
    (folder / "train.tmp").rename(folder / "train.b")


if __name__ == "__main__":
    main()

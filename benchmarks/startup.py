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
    """Train for one step; seconds from the start of the process to its end, and memory in MB."""
    memory = Memory()
    from modeling_random_transformer.training import (  # counted, as in a run
        DataArguments,
        ModelArguments,
        TranslationTrainingArguments,
        train_translation,
    )

    imported = memory.anonymous()
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
    source, target = ([str(arguments.folder / f"train.{side}")] for side in "ab")
    data = DataArguments(source_file=source, target_file=target)
    sizes = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,num_heads=2"
    train_translation(data, ModelArguments(vocab_size=2000, config_overrides=sizes), args)
    seconds = time.time() - START
    return {"seconds": round(seconds, 1), "imports_mb": round(imported), "peak_mb": round(memory.stop())}


class Memory:
    """Samples the private memory of this process, without mapped files, which all processes share."""

    def __init__(self) -> None:
        self.peak, self._stopped = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def anonymous(self) -> float:
        """The current private memory in MB."""
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) / 1024

    def stop(self) -> float:
        """The largest private memory in MB."""
        self._stopped.set()
        self._thread.join()
        return self.peak

    def _sample(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.peak = max(self.peak, self.anonymous())


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

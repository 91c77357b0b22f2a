"""Load and convert all mutants, and print a report: `python -m tests.robustness`, in the root of the repository.

The exit status is 1 after a crash, executed code, silently initialized weights, or if less than 95% of the errors are
helpful, or if a file of another tool exceeds the limits.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
READER_MUTANTS = 200  # of each format
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402

from .folders import MIN_HELPFUL_SHARE, Folders  # noqa: E402
from .readers import fuzz_readers  # noqa: E402

if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        readers = fuzz_readers(READER_MUTANTS, Path(scratch))
        print(readers, flush=True)
        folders = Folders(Path(folder))
        report = folders.fuzz(folders.mutants)
    print(report)
    unhelpful = len(report.unhelpful) > (1 - MIN_HELPFUL_SHARE) * report.outcomes["rejected"]
    sys.exit(1 if report.findings or readers.findings or unhelpful else 0)

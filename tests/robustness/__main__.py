"""Load every mutant and print what happened: `python -m tests.robustness`, in the repository's root.

Exit code 1 if a crash, code run, silently initialized weights, a worse outcome than MarianMTModel's or less than 95% of
helpful refusals is found.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402

from .judgment import judge_all  # noqa: E402

if __name__ == "__main__":
    torch.set_num_threads(1)
    report = judge_all(verbose="-v" in sys.argv)
    print(report)
    sys.exit(0 if report.passed else 1)

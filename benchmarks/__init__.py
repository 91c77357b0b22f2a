"""Paired measurements of this package against its peers. Start with `python -m benchmarks --help`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # the generated sentences of the tutorials

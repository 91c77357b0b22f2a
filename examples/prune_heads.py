"""Prune attention heads: see `python examples/prune_heads.py --help`."""

import sys

from tutorials.pruning_command import main

if __name__ == "__main__":
    sys.exit(main())

"""Compare the Transformer with an LSTM and a GRU: see `python examples/compare_recurrent.py --help`."""

import sys

from tutorials.recurrent_command import main

if __name__ == "__main__":
    sys.exit(main())

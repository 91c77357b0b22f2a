"""Compare the Transformer with an LSTM and a GRU: see `python examples/compare_recurrent.py --help`."""

import sys

from modeling_random_transformer.tutorials.recurrent_command import main

if __name__ == "__main__":
    sys.exit(main())

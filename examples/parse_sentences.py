"""Train a constituency parser: see `python examples/parse_sentences.py --help`."""

import sys

from tutorials.parsing_command import main

if __name__ == "__main__":
    sys.exit(main())

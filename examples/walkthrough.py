"""`random-transformer walkthrough` as a script: see `python examples/walkthrough.py --help`."""

import sys

from modeling_random_transformer.tutorials.walkthrough_command import main

if __name__ == "__main__":
    sys.exit(main())

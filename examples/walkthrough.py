"""`random-transformer walkthrough` as a script: see `python examples/walkthrough.py --help`."""

import sys

from tutorials.walkthrough_command import main

if __name__ == "__main__":
    sys.exit(main())

"""The exercises of the blog post "The Random Transformer": see `python examples/exercises.py --help`."""

import sys

from tutorials.exercises.command import main

if __name__ == "__main__":
    sys.exit(main())

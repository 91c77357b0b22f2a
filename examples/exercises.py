"""The exercises of the blog post "The Random Transformer": see `python examples/exercises.py --help`."""

import sys

from modeling_random_transformer.tutorials.exercises.command import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m modeling_random_transformer`: the same as `random-transformer`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())

"""Translate sentences, a file or standard input: the same as `random-transformer translate`, see its `--help`."""

import sys

from modeling_random_transformer import cli


def main() -> int:
    sys.argv.insert(1, "translate")
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

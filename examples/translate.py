"""Translate sentences, a file or standard input: the same as `random-transformer translate`, see its `--help`."""

import sys

from modeling_random_transformer import cli
from modeling_random_transformer.commands.command_line import run_script


def main() -> int:
    return cli.main(["translate", *sys.argv[1:]])


if __name__ == "__main__":
    run_script(main)

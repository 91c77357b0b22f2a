"""Translate sentences, a file or standard input: the same as `random-transformer translate`, see its `--help`."""

from modeling_random_transformer.commands.command_line import run_script
from modeling_random_transformer.commands.translate import main

if __name__ == "__main__":
    run_script(main)

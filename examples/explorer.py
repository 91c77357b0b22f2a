"""`random-transformer explore` as a script: see `python examples/explorer.py --help`."""

from modeling_random_transformer.tutorials.explorer_command import main
from modeling_random_transformer.utils.command_line import run_script

if __name__ == "__main__":
    run_script(main)

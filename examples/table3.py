"""Train the rows of the paper's Table 3: see `python examples/table3.py --help`."""

from modeling_random_transformer.utils.command_line import run_script


def main() -> int:
    from tutorials.table3_command import main as train  # takes seconds to import

    return train()


if __name__ == "__main__":
    run_script(main)

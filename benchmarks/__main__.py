"""`python -m benchmarks NAME`: run one of the measurements."""

import argparse
import sys

from . import corpus, generate, memory, scaling, serving, start, train, weights

MEASUREMENTS = {
    "generate": generate,
    "train": train,
    "memory": memory,
    "scaling": scaling,
    "serving": serving,
    "start": start,
    "corpus": corpus,
    "weights": weights,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for name, module in MEASUREMENTS.items():
        command = commands.add_parser(name, help=(module.__doc__ or "").partition("\n")[0])
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Benchmarks of the model against its peers: paired measurements, reported as ratios."""

import argparse
import sys
from collections.abc import Sequence

from . import (
    confidence,
    corpus,
    dry_run,
    generate,
    gpu,
    http,
    memory,
    robustness,
    scaling,
    scoring,
    serving,
    soak,
    space,
    start,
    train,
    trainer,
    weights,
)

BENCHMARKS = {
    "generate": generate,
    "train": train,
    "trainer": trainer,
    "memory": memory,
    "scaling": scaling,
    "scoring": scoring,
    "serving": serving,
    "space": space,
    "http": http,
    "confidence": confidence,
    "soak": soak,
    "start": start,
    "corpus": corpus,
    "weights": weights,
    "dry_run": dry_run,
    "robustness": robustness,
    "gpu": gpu,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="`python -m benchmarks NAME --help` shows the options of a benchmark.",
    )
    subparsers = parser.add_subparsers(title="benchmarks", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        description = module.__doc__ or ""
        subparser = subparsers.add_parser(
            name,
            help=description.partition("\n")[0],
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    options = parser.parse_args(argv)
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

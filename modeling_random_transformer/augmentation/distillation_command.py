"""Distill a teacher into a smaller student.

    random-transformer distill --teacher outputs/big --source_text train.en mono.en --output_dir outputs/small \\
        --test_source_file test.en --test_target_file test.de --config_overrides "decoder_layers=1"

All arguments of `random-transformer train` are those of the student.
"""

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ..training.arguments import ModelArguments
from ..training.command import parse_dataclasses
from ..training.recipe import TranslationTrainingArguments
from ..utils.command_line import print_error
from .comparison import table
from .distillation import INT8, RECORD, distill
from .distillation_arguments import DistillationArguments, StudentDataArguments

ARGUMENTS = (DistillationArguments, StudentDataArguments, ModelArguments, TranslationTrainingArguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, distill, print the comparison and return the exit status.

    Args:
        argv: the arguments without the program's name; `sys.argv[1:]` when `None`.
    """
    program = Path(sys.argv[0]).name
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        arguments, data, model, args = parse_dataclasses(ARGUMENTS, sys.argv[1:] if argv is None else argv, __doc__)
        result = distill(arguments, data, model, args)
    except (ValueError, FloatingPointError, OSError) as error:
        print_error(program, " ".join(str(error).split()))
        return 2
    except KeyboardInterrupt:
        print_error(program, "interrupted; the same command resumes.")
        return 128 + signal.SIGINT
    if args.process_index == 0:
        folder = result.run.folder
        print(f"{result.corpus}.\n\n{table(result.rows)}\n\n{result.rows[0].signature}")
        print(f"Saved the student to {folder}, in int8 to {folder / INT8}, and the comparison to {folder / RECORD}.")
    return 0

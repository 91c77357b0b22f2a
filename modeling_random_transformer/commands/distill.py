"""Distill a teacher into a smaller student.

    random-transformer distill --teacher outputs/big --source_text train.en mono.en --output_dir outputs/small \\
        --test_source_file test.en --test_target_file test.de --config_overrides "decoder_layers=1"

The arguments of `random-transformer train` apply to the student.
"""

import logging
from collections.abc import Sequence

from ..base.saved_files import JOB_RECORD
from ..stages.distillation import INT8, WORK, StudentDataArguments, distill, scores_table
from ..stages.training_set import DistillationArguments
from ..training.arguments import ModelArguments
from ..training.training_arguments import TranslationTrainingArguments
from .command_line import resumable
from .train import GROUPS, parse_arguments

OF_TEACHER = """teacher source_text text_key teacher_dtype teacher_num_beams teacher_max_tokens_per_batch interpolate
    restart"""
ARGUMENTS = (DistillationArguments, StudentDataArguments, ModelArguments, TranslationTrainingArguments)


def run(program: str, argv: Sequence[str]) -> None:
    """Parse the arguments, distill and print the comparison."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)  # the same logging as in `train`
    groups = {"the teacher and its texts": OF_TEACHER, **GROUPS}
    arguments, data_args, model_args, args = parse_arguments(argv, ARGUMENTS, program, __doc__, groups)
    with resumable():
        result = distill(arguments, data_args, model_args, args)
    if args.process_index == 0:
        folder = result.run.folder
        print(f"{result.corpus}.\n\n{scores_table(result.rows)}\n\n{result.rows[0].signature}")
        record = folder / WORK / JOB_RECORD
        print(f"Saved the student to {folder}, in int8 to {folder / INT8}, and the comparison to {record}.")

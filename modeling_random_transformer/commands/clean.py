"""Clean parallel text: drop duplicates, copies of the source, and pairs of unlikely lengths, scripts or languages.

    random-transformer clean --source_file train.en --target_file train.de \\
        --output_source clean.en --output_target clean.de --report report.json --rejected rejected.tsv
    random-transformer clean --train_file train.tsv.gz --output clean.tsv.gz
    zcat *.tsv.gz | random-transformer clean --train_file - --output clean.tsv.zst --source_lang en --target_lang de

A table on stderr counts the dropped pairs by reason, each with an example. Input and output may be compressed (.gz,
.zst, .bz2, .xz). Each output is replaced when the complete corpus has been read. One output may be -, standard output.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.flags import split_values
from ..data.sources import ParallelText
from ..extras.cleaning.cleaning import clean_files
from ..extras.cleaning.filters import CleaningOptions
from ..extras.cleaning.splitting import HELD_OUT_SETS, name_of_set
from ..extras.parser import InputFile, positive_integer
from ..inputs_random_transformer import drop_none
from .command_line import check_keys, check_new_outputs


def set_sizes(text: str) -> tuple[int, ...]:
    """Argument type: positive integers, separated by commas."""
    return tuple(map(positive_integer, text.split(",")))


@dataclass(frozen=True)
class Arguments(CleaningOptions):
    """Arguments of `clean`.

    Args:
        source_file: sources, one per line; - is standard input
        target_file: targets, aligned with --source_file by line
        train_file: both sides in a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file; - is TSV on standard input
        source_key: column or language of the source in --train_file: a name, or the number of a column from 1
        target_key: column or language of the target in --train_file: a name, or the number of a column from 1
        output_source: text file of the remaining sources
        output_target: text file of the remaining targets
        output: .tsv or .jsonl file of the remaining pairs; - is TSV on standard output
        rejected: TSV file of the dropped lines: reason, line number, source, target
        report: JSON file of the report
        split: numbers of pairs of a validation and a test set, such as 1000,1000; the sets are written next to the
            outputs, such as clean.validation.tsv, and share no text with the other pairs
        overwrite: replace outputs that exist

    Raises:
        ValueError: arguments contradict each other.
    """

    source_file: InputFile | None = None
    target_file: InputFile | None = None
    train_file: InputFile | None = None
    source_key: str = "source"
    target_key: str = "target"
    output_source: Path | None = None
    output_target: Path | None = None
    output: Path | None = None
    rejected: Path | None = None
    report: Path | None = None
    split: Sequence[int] = field(default=(), metadata={"type": set_sizes, "nargs": None, "metavar": "N,N"})
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keys(self.target_file is None, self.source_key, self.target_key)
        check_new_outputs(self.overwrite, rejected=self.rejected, report=self.report, **self.outputs)
        for set_name in HELD_OUT_SETS[: len(self.split)]:
            outputs = {name: name_of_set(path, set_name) for name, path in self.outputs.items()}
            check_new_outputs(self.overwrite, **outputs)

    @property
    def inputs(self) -> dict[str, Path]:
        """The files of the corpus by the names of the arguments."""
        return one_or_pair(train_file=self.train_file, source_file=self.source_file, target_file=self.target_file)

    @property
    def outputs(self) -> dict[str, Path]:
        """The files of the remaining pairs."""
        return one_or_pair(output=self.output, output_source=self.output_source, output_target=self.output_target)


def one_or_pair(**files: Path | None) -> dict[str, Path]:
    """The given files: the first one, which has both sides, or the others, which have one each.

    Raises:
        ValueError: other files are given.
    """
    both, *sides = files
    paths = drop_none(**files)
    if [*paths] not in ([both], sides):
        raise ValueError(f"--{both}, or --{sides[0]} and --{sides[1]}, must be given, got {[*paths] or 'none'}.")
    return paths


def run(arguments: Arguments) -> None:
    """Clean, and print the report on stderr."""
    options, _ = split_values(CleaningOptions, vars(arguments))
    corpus = ParallelText(*arguments.inputs.values(), source_key=arguments.source_key, target_key=arguments.target_key)
    report = clean_files(
        corpus,
        *arguments.outputs.values(),
        rejected_file=arguments.rejected,
        report_file=arguments.report,
        split=arguments.split,
        **options,
    )
    print(report, file=sys.stderr)

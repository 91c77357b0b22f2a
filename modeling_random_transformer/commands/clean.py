"""Clean parallel text: drop duplicates, copies of the source, and pairs of unlikely lengths, scripts or languages.

    random-transformer clean --source_file train.en --target_file train.de \\
        --output_source clean.en --output_target clean.de --report report.json --rejected rejected.tsv
    random-transformer clean --train_file train.tsv.gz --output clean.tsv.gz
    zcat *.tsv.gz | random-transformer clean --train_file - --output clean.tsv.zst --source_lang en --target_lang de

A table on stderr counts the dropped pairs by reason, each with an example. Input and output may be compressed (.gz,
.zst, .bz2, .xz). Each output is replaced when the complete corpus has been read; one of them may be -, standard output.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..base.flags import Parser, existing_file, positive_integer
from ..data.cleaning import clean_files
from ..data.filters import CleaningOptions
from ..data.sources import ParallelText
from ..data.splitting import SETS, name_of_set
from ..inputs_random_transformer import drop_none
from .command_line import check_new_outputs


def numbers(text: str) -> tuple[int, ...]:
    """Argument type: positive integers, separated by commas."""
    return tuple(map(positive_integer, text.split(",")))


@dataclass(frozen=True)
class Arguments(CleaningOptions):
    """Arguments of `clean`.

    Args:
        source_file: sources, one per line; - is standard input
        target_file: targets, aligned with --source_file by line
        train_file: both sides in a .tsv, .jsonl or .parquet file; - is TSV on standard input
        source_key: column of the source in --train_file: a name, or a number from 1
        target_key: column of the target in --train_file: a name, or a number from 1
        output_source: text file of the remaining sources
        output_target: text file of the remaining targets
        output: .tsv or .jsonl file of the remaining pairs; - is TSV on standard output
        rejected: TSV file of the dropped lines: reason, line number, source, target
        report: JSON file of the report
        split: pairs of a validation and a test set, such as 1000,1000, which are written beside the outputs, such as
            clean.validation.tsv, and share no text with the other pairs
        overwrite: replace outputs that exist

    Raises:
        ValueError: arguments contradict each other.
    """

    source_file: Path | None = field(default=None, metadata={"type": existing_file})
    target_file: Path | None = field(default=None, metadata={"type": existing_file})
    train_file: Path | None = field(default=None, metadata={"type": existing_file})
    source_key: str = "source"
    target_key: str = "target"
    output_source: Path | None = None
    output_target: Path | None = None
    output: Path | None = None
    rejected: Path | None = None
    report: Path | None = None
    split: Sequence[int] = field(default=(), metadata={"type": numbers, "nargs": None, "metavar": "N,N"})
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, *pair in (("train_file", "source_file", "target_file"), ("output", "output_source", "output_target")):
            given = [name for name in (one, *pair) if getattr(self, name)]
            if given not in ([one], pair):
                raise ValueError(f"--{one}, or --{pair[0]} and --{pair[1]}, must be given, got {given or 'none'}.")
        texts = drop_none(**{name: getattr(self, name) for name in ("output", "output_source", "output_target")})
        check_new_outputs(self.overwrite, rejected=self.rejected, report=self.report, **texts)
        for set_name in SETS[: len(self.split)]:
            check_new_outputs(self.overwrite, **{name: name_of_set(path, set_name) for name, path in texts.items()})


def run(program: str, argv: Sequence[str]) -> None:
    """Clean, and print the report on stderr."""
    arguments = Parser(program, __doc__, [Arguments]).parse(argv)
    corpus: dict[str, Any] = {"source": arguments.train_file or arguments.source_file, "target": arguments.target_file}
    corpus |= {"source_key": arguments.source_key, "target_key": arguments.target_key}
    options: dict[str, Any] = {each.name: getattr(arguments, each.name) for each in fields(CleaningOptions)}
    options |= {"output": arguments.output or arguments.output_source, "output_target": arguments.output_target}
    options |= {"rejected_file": arguments.rejected, "report_file": arguments.report, "split": arguments.split}
    print(clean_files(ParallelText(**corpus), **options), file=sys.stderr)

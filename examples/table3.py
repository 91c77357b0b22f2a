"""Train the rows of the paper's Table 3 with the same data, steps and seeds, and compare them with the paper.

    python examples/table3.py --source_file train.en --target_file train.de --validation_source_file val.en \\
        --validation_target_file val.de --output_dir outputs/table3 --width_scale 0.25 --depth_scale 0.5
    python examples/table3.py recipe.yaml --rows base A-1 A-32 --seeds 1 2 3

Takes the arguments and recipes of `random-transformer train`. The architecture of each row is that of the paper with
its widths and depths multiplied by a scale; the preset of a recipe is ignored. Writes table3.md and table3.png to the
output folder after each row. The same command resumes, also within a row, and does not train finished rows again.

Exit status: 0 if a row was trained (also if others diverged), 1 if all rows diverged, 2 for an invalid argument, 130
after Ctrl-C.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from modeling_random_transformer.commands.train import GROUPS, parse_arguments
from modeling_random_transformer.training.arguments import DataArguments, ModelArguments
from modeling_random_transformer.training.training_arguments import TranslationTrainingArguments
from tutorials.report import console
from tutorials.scripts import exit_status
from tutorials.table3_report import Table3, write_report
from tutorials.table3_rows import ROWS
from tutorials.table3_runs import Experiment, Result
from tutorials.table3_settings import settings

PROGRAM = "table3.py"


@dataclass
class Table3Arguments:
    """The rows, the seeds and the scale."""

    rows: list[str] = field(
        default_factory=lambda: list(ROWS), metadata={"help": f"Rows to train: {', '.join(ROWS)}; default: all."}
    )
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3], metadata={"help": "Seeds of each row."})
    width_scale: float = field(default=1.0, metadata={"help": "Factor of d_model, d_k, d_v and d_ff, such as 0.25."})
    depth_scale: float = field(default=1.0, metadata={"help": "Factor of the numbers of layers, such as 0.5."})

    def __post_init__(self) -> None:
        unknown = [name for name in self.rows if name not in ROWS]
        if unknown:
            raise ValueError(f"rows must be among {', '.join(ROWS)}, got {', '.join(unknown)}.")
        if not self.seeds:
            raise ValueError("seeds must be at least one number, got none.")
        for name in ("width_scale", "depth_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, train the rows and return the exit status."""
    results: list[Result] = []
    status = exit_status(lambda: results.extend(run(sys.argv[1:] if argv is None else argv)), PROGRAM)
    return status or int(not results)


def run(argv: Sequence[str]) -> list[Result]:
    """Parse the arguments and train the rows; all seeds of a row follow each other.

    Returns:
        The results of the runs that did not diverge.

    Raises:
        ValueError: an argument is invalid, or has changed since an earlier call.
    """
    classes = (DataArguments, ModelArguments, TranslationTrainingArguments, Table3Arguments)
    groups = {"rows, seeds and scale": "rows seeds width_scale depth_scale", **GROUPS}
    data, model, args, table = parse_arguments(argv, classes, PROGRAM, __doc__, groups)
    experiment = Experiment(data, model, args, table.width_scale, table.depth_scale)
    rows = [row for name, row in ROWS.items() if name in table.rows]
    experiment.check(rows)
    seeds = list(dict.fromkeys(table.seeds))
    common = settings(experiment, seeds)
    results: list[Result] = []
    diverged: list[tuple[str, int]] = []
    for row in rows:
        for seed in seeds:
            try:
                result = experiment.run(row, seed)
            except FloatingPointError as error:  # the other rows do not depend on this one
                diverged.append((row.name, seed))
                console.print(f"{row.name}, seed {seed}: diverged: {error}", soft_wrap=True)
                continue
            results.append(result)
            console.print(
                f"{row.name}, seed {seed}: perplexity {result.perplexity:.2f}, BLEU {result.bleu:.1f}, "
                f"{result.seconds:,.0f} s"
            )
        if args.process_index == 0:
            write_report(Table3(results, diverged), common, experiment.folder)
    if args.process_index == 0:
        console.print(f"Table: {experiment.folder / 'table3.md'}", soft_wrap=True)
    return results


if __name__ == "__main__":
    sys.exit(main())

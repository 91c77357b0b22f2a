"""The result of a training run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.validation import ValidationReport


@dataclass
class RunResult:
    """The result of a training run.

    Args:
        folder: the output folder.
        seconds: training time in the process that finished the run.
        steps: optimizer steps.
        parameters: number of parameters of the model.
        trained: number of trainable parameters.
        pairs: number of training pairs.
        learning_rate: peak learning rate.
        world_size: number of processes that finished the run.
        reports: validation reports of the corpora.
        scores: metrics of the validation and test sets, by set and name of the metric.
    """

    folder: Path
    seconds: float
    steps: int
    parameters: int
    trained: int
    pairs: int
    learning_rate: float
    world_size: int
    reports: list[ValidationReport] = field(default_factory=list)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

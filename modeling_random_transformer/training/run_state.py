"""The state of a run, which its stages share, and its result."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..base.jobs import Job, Stage
from ..data.overlap import Counts
from ..data.sources import Corpus
from ..data.validation import ValidationReport
from .arguments import DataArguments, ModelArguments, split_and_label
from .training_arguments import TranslationTrainingArguments

TRAIN_STAGE, SEARCH_STAGE = "train", "search"  # stages of the record


@dataclass
class Run:
    """The inputs of a run and the record of its progress.

    Args:
        data_args: the parallel text.
        model_args: the tokenizer and the initial model.
        args: the training arguments.
        corpora: the corpora of each set, by its name: one or more of `"train"`, one of each validation and test set.
        job: the record in the output folder, the same in every process.
        tokenizer: the saved tokenizer; `None` to train one.
    """

    data_args: DataArguments
    model_args: ModelArguments
    args: TranslationTrainingArguments
    corpora: dict[str, list[Corpus]]
    job: Job
    tokenizer: PreTrainedTokenizerBase | None

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.args.output_dir)

    @property
    def evaluation_sets(self) -> list[str]:
        """The names of the validation and test sets."""
        return [name for name in self.corpora if name != "train"]

    @property
    def validation_sets(self) -> list[str]:
        """The names of the validation sets."""
        return [name for name in self.corpora if split_and_label(name)[0] == "validation"]

    @property
    def training_stage(self) -> Stage:
        """The stage of the training."""
        return self.job.stages[TRAIN_STAGE]


@dataclass
class RunResult:
    """The result of a training run.

    Attributes:
        folder: the output folder.
        seconds: training time of all processes of the run, each up to its last checkpoint.
        steps: optimizer steps.
        parameters: number of parameters of the model.
        trained: number of trainable parameters.
        pairs: number of training pairs.
        learning_rate: peak learning rate.
        world_size: number of processes that finished the run.
        hardware: devices of these processes.
        corpora: name, languages (such as `["en", "de"]`), number of pairs and weight of each training corpus.
        reports: validation reports of the corpora.
        overlap: validation and test sets with texts of the training set, see `shared_texts`.
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
    hardware: str = ""
    corpora: list[dict[str, Any]] = field(default_factory=list)
    reports: list[ValidationReport] = field(default_factory=list)
    overlap: dict[str, Counts] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

"""Training of the rows of Table 3, and of the tokenizer that they share."""

import copy
import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.base.files import write_atomically
from modeling_random_transformer.base.jobs import Job
from modeling_random_transformer.base.saved_files import TRAINING_RECORD
from modeling_random_transformer.data.sources import ParallelLine
from modeling_random_transformer.inference import score_pairs
from modeling_random_transformer.training import (
    DataArguments,
    ModelArguments,
    RunResult,
    TranslationTrainingArguments,
    train_translation,
)
from modeling_random_transformer.training.arguments import DEFAULT_VOCAB_SIZE
from modeling_random_transformer.training.preparation import prepare_data
from modeling_random_transformer.training.run_record import fingerprint
from modeling_random_transformer.training.run_state import Run

from .table3_rows import ROWS, Row, scaled_overrides

RESULT = "table3.json"


@dataclass(frozen=True)
class Result:
    """The validation scores of a row with one seed."""

    row: str
    seed: int
    steps: int
    parameters: int
    seconds: float
    perplexity: float
    bleu: float


@dataclass(frozen=True)
class Experiment:
    """What all rows have in common.

    Args:
        data: the training and the validation set.
        model: the vocabulary; its `config_overrides` are those of all rows, and its `preset` is ignored.
        args: the recipe; `output_dir` contains a folder per row and seed.
        width_scale: see `scaled_overrides`.
        depth_scale: see `scaled_overrides`.
    """

    data: DataArguments
    model: ModelArguments
    args: TranslationTrainingArguments
    width_scale: float = 1.0
    depth_scale: float = 1.0

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.args.output_dir)

    def check(self, rows: list[Row]) -> None:
        """Check the arguments before the first row is trained.

        Raises:
            ValueError: an argument is invalid for one of the rows.
        """
        if not self.data.has("validation"):
            raise ValueError("validation_source_file or another validation set must be given, got none.")
        if len(self.data.corpora("validation")) != 1 or self.data.source_lang:
            raise ValueError("the validation set must be one corpus without language tags, got others.")
        if (initial := self.model.model_name_or_path) is not None:
            raise ValueError(f"model_name_or_path must be unset: rows are trained from scratch, got {initial!r}.")
        if self.args.label_smoothing_factor != ROWS["base"].label_smoothing:
            raise ValueError(
                f"label_smoothing_factor must be {ROWS['base'].label_smoothing}, since rows differ in it, got "
                f"{self.args.label_smoothing_factor}."
            )
        for row in rows:
            self.model_of(row).config(self.model.vocab_size or DEFAULT_VOCAB_SIZE)

    def model_of(self, row: Row) -> ModelArguments:
        """The architecture of a row."""
        overrides = scaled_overrides(row, self.width_scale, self.depth_scale, self.model.config_overrides)
        return replace(self.model, preset=row.preset, config_overrides=overrides)

    @cached_property
    def tokenizer(self) -> str:
        """The tokenizer of all rows: that of the arguments, or one in the output folder, which is trained first.

        Raises:
            ValueError: see `train_once`.
        """
        return self.model.tokenizer or train_once(self.folder / "tokenizer", self.data, self.model, self.args)

    def run(self, row: Row, seed: int) -> Result:
        """Train a row and score it on the validation set; or resume, or return the result of an earlier call.

        Raises:
            ValueError: an argument or the data has changed since an earlier call.
            FloatingPointError: the training diverged.
        """
        folder = self.folder / row.name / f"seed-{seed}"
        args = copy.copy(self.args)
        args.output_dir, args.seed, args.label_smoothing_factor = str(folder), seed, row.label_smoothing
        model = replace(self.model_of(row), tokenizer=self.tokenizer, vocab_size=None)
        trained = train_translation(self.data, model, args)
        scored, path = _scored(folder), folder / RESULT
        stored = json.loads(path.read_bytes()) if path.is_file() else {}
        if stored.pop("scored", None) == scored:
            return Result(**stored)
        result = self._result(row, seed, trained)
        write_atomically(path, [json.dumps({**asdict(result), "scored": scored}, indent=2).encode()])
        return result

    def _result(self, row: Row, seed: int, trained: RunResult) -> Result:
        return Result(
            row=row.name,
            seed=seed,
            steps=trained.steps,
            parameters=trained.parameters,
            seconds=trained.seconds,
            perplexity=self._perplexity(trained.folder),
            bleu=trained.scores["validation"]["bleu"]["score"],
        )

    def _perplexity(self, folder: Path) -> float:
        """The perplexity per token on the validation set, without label smoothing."""
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).to(self.args.device)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        (corpus,) = self.data.corpora("validation")
        pairs = [(line.source, line.target) for line in corpus.lines() if isinstance(line, ParallelLine)]
        scores = list(score_pairs(model, tokenizer, pairs, progress=False))
        return math.exp(-sum(score.log_probability for score in scores) / sum(score.tokens for score in scores))


def _scored(folder: Path) -> dict[str, Any]:
    """What determines the scores of a finished run: its weights, the validation set and the generation options."""
    record = json.loads((folder / TRAINING_RECORD).read_bytes())
    return record["score validation"]["inputs"]


def train_once(folder: Path, data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> str:
    """Train the tokenizer that a run with these arguments would train, unless the folder contains it.

    Args:
        folder: the folder of the tokenizer, also written with a record.
        data: the training set.
        model: the vocabulary size and special tokens.
        args: the recipe; its `output_dir` is not used.

    Returns:
        The folder.

    Raises:
        ValueError: the tokenizer in the folder was trained with other arguments or data.
    """
    corpora = data.corpora("train")
    inputs = {
        "vocab_size": model.vocab_size or DEFAULT_VOCAB_SIZE,
        "special_tokens": model.special_tokens,
        "training set": fingerprint(corpora),
    }
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(folder / TRAINING_RECORD, advice="use another output_dir")
    job.begin("inputs", inputs)
    if "tokenizer" not in job.stages:
        args = copy.copy(args)
        args.output_dir = str(folder)
        prepare_data(Run(data, model, args, {"train": corpora}, job, tokenizer=None), ["train"])
    return str(folder)

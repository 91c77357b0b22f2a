"""Estimates of a training run from a few steps on its first pairs: time and memory."""

import copy
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ...base.distributed import call_on_main_process
from ...base.jobs import Job
from ...base.saved_files import TRAINING_RECORD
from ...data.readers import NumberedTexts
from ...data.sources import Corpus
from ...data.tokenization import lengths_of
from ...training.advice import print_lines, schedule_advice
from ...training.arguments import DataArguments, ModelArguments
from ...training.checks import check_arguments, check_languages_of_sets
from ...training.model_init import build_model
from ...training.preparation import PreparedData, prepare_data
from ...training.run_state import Run
from ...training.trainer import TranslationTrainer
from ...training.training_arguments import TranslationTrainingArguments

MEASURED_PAIRS, MEASURED_STEPS = 1000, 20
EXCLUDED_STEPS = 3  # excluded from the measurement: memory is allocated and kernels are selected
GIB = 2**30


@dataclass
class DryRun:
    """The estimate of a run.

    Args:
        steps: optimizer steps of the whole run.
        step_seconds: mean duration of a step. Evaluation and checkpoints are not included.
        step_tokens: mean number of source and target tokens of a step on all devices, without padding.
        memory: peak memory of a device in bytes; on a CPU, of the process.
        parameters: number of parameters.
        device: the type of the devices, such as `"cuda"`.
        num_devices: number of devices of this dry run.
    """

    steps: int
    step_seconds: float
    step_tokens: float
    memory: int
    parameters: int
    device: str
    num_devices: int

    @property
    def tokens_per_second(self) -> float:
        """Source and target tokens per second on all devices, without padding."""
        return self.step_tokens / self.step_seconds

    @property
    def hours(self) -> float:
        """Duration of the whole run on these devices."""
        return self.steps * self.step_seconds / 3600

    def __str__(self) -> str:
        return (
            f"measured     {MEASURED_STEPS} steps on at most {MEASURED_PAIRS:,} pairs\n"
            f"model        {self.parameters:,} parameters on {self.num_devices} × {self.device}\n"
            f"speed        {self.tokens_per_second:,.0f} tokens/s, {self.step_seconds:.3g} s per step\n"
            f"whole run    {self.steps:,} steps, {self.hours:,.3g} hours, without evaluation and checkpoints\n"
            f"memory       {self.memory / GIB:.3g} GiB per device"
        )


def dry_run(data_args: DataArguments, model_args: ModelArguments, args: TranslationTrainingArguments) -> DryRun:
    """Measure `MEASURED_STEPS` steps of a run on the first `MEASURED_PAIRS` pairs of its training set.

    Only these pairs of a dataset on the Hub are downloaded. A tokenizer to train is trained on them, but the model has
    the requested vocabulary size. Nothing is written to `args.output_dir`. Several processes measure together.

    Raises:
        ValueError: an argument or one of the pairs is invalid, or `max_steps` is unset.
    """
    tokenizer = check_arguments(data_args, model_args, args)
    if args.max_steps < 1:
        raise ValueError(f"max_steps must be a positive integer for a dry run, got {args.max_steps}.")
    set_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(data_args, model_args, shortened(args, call_on_main_process(lambda: folder)), tokenizer)
        if args.cuda_graphs:  # each shape is captured in the second epoch
            steps_per_epoch = len(trainer.get_train_dataloader()) // args.gradient_accumulation_steps
            trainer.args.max_steps = 2 * steps_per_epoch + MEASURED_STEPS
        trainer.train()
        seconds = synchronized_time(args.device) - trainer.start
    if args.process_index == 0:
        print_lines(schedule_advice(args, trainer.model.config, args.max_steps))
    devices = args.world_size
    groups = devices // args.tp_size  # groups of devices that share a batch
    return DryRun(
        steps=args.max_steps,
        step_seconds=seconds / MEASURED_STEPS,
        step_tokens=float(trainer.token_count) * groups / MEASURED_STEPS,
        memory=peak_memory(args.device),
        parameters=trainer.model.num_parameters(),
        device=args.device.type,
        num_devices=devices,
    )


def shortened(args: TranslationTrainingArguments, folder: str) -> TranslationTrainingArguments:
    """The arguments of a run of a few steps without evaluation, checkpoints, logs and upload."""
    args = args.without_evaluation()
    args.output_dir = folder
    args.max_steps = EXCLUDED_STEPS + MEASURED_STEPS
    args.save_strategy = SaveStrategy.NO
    args.save_steps = TranslationTrainingArguments.save_steps
    args.logging_strategy = IntervalStrategy.NO
    args.logging_steps = TranslationTrainingArguments.logging_steps
    args.report_to = []
    args.push_to_hub = False
    return args


def trainer_of(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
    tokenizer: PreTrainedTokenizerBase | None,
) -> "MeasuredTrainer":
    complete = replace(data_args, streaming=True).corpora("train")
    corpora: list[Corpus] = [first_rows(corpus) for corpus in complete]
    check_languages_of_sets({"train": corpora}, model_args, tokenizer)
    job = Job(Path(args.output_dir) / TRAINING_RECORD)
    data_args = data_args.with_sets(streaming=False)
    data = prepare_data(Run(data_args, model_args, args, {"train": corpora}, job, tokenizer), ["train"])
    if tokenizer is None and model_args.model_name_or_path is None:  # the tokenizer of the sample is smaller
        vocab_size = model_args.size_of_new_vocabulary
        model_args = copy.copy(model_args)  # a copy, since `replace` would reject this override as an argument
        model_args.config_overrides = f"vocab_size={vocab_size},{model_args.config_overrides}"
    return MeasuredTrainer(
        build_model(model_args, args, data.tokenizer),
        args,
        train_dataset=data.tokens["train"],
        train_weights=repeated(data, args),
        processing_class=data.tokenizer,
    )


@dataclass(frozen=True)
class FirstRows(Corpus):
    """The first rows of a corpus, so that its invalid lines have the numbers and the reasons of a run.

    Args:
        name: the name of the corpus.
        texts: the rows.
    """

    name: str
    texts: Sequence[NumberedTexts]

    def __str__(self) -> str:
        return self.name

    def rows(self) -> Iterator[NumberedTexts]:
        return iter(self.texts)

    def fingerprint(self) -> str:
        """The name: what is cached has the rows as a part of its key."""
        return self.name


def first_rows(corpus: Corpus) -> FirstRows:
    """The first `MEASURED_PAIRS` rows of a corpus, and no others are read."""
    rows = [*islice(corpus.rows(), MEASURED_PAIRS)]
    return FirstRows(str(corpus), rows, languages=corpus.languages, weight=corpus.weight)


def repeated(data: PreparedData, args: TranslationTrainingArguments) -> np.ndarray:
    """Weights that repeat the pairs, so that all steps are in the first epoch and have complete batches, `[pairs]`."""
    steps = 2 * (EXCLUDED_STEPS + MEASURED_STEPS)  # twice as many, because batches are not completely full
    needed = steps * args.gradient_accumulation_steps * args.world_size * args.max_tokens_per_batch
    lengths = lengths_of(data.tokens["train"])
    weights = data.train_weights
    if weights is None:
        weights = np.ones(len(lengths), int)
    tokens = lengths.sum(axis=1) @ weights  # tokens of an epoch
    return weights * math.ceil(needed / tokens)


class MeasuredTrainer(TranslationTrainer):
    """A trainer that measures the steps after the warm-up."""

    start = 0.0

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        if self.state.global_step == self.args.max_steps - MEASURED_STEPS:
            self.token_count = 0
            self.start = synchronized_time(self.args.device)
        return super().get_batch_samples(*args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Print nothing: the estimate follows."""


def synchronized_time(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def peak_memory(device: torch.device) -> int:
    """The memory in bytes that PyTorch has reserved at most on a device; on a CPU, the peak memory of the process."""
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if device.type != "cpu":
        return torch.get_device_module(device).max_memory_reserved(device)
    import resource  # unavailable on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

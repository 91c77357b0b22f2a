"""The record of a run: its inputs and its progress.

The record (`base/jobs.py`) has the stages `"tokenizer"`, `"train"`, `"search"` and `"score SET"`. A resumed run
compares its arguments and data with the record. Arguments that determine the result must be equal.
"""

import os
from dataclasses import MISSING, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME

from ..base.digests import file_digest, json_digest
from ..base.files import files_in
from ..base.jobs import Job, Stage, as_read
from ..base.saved_files import SAVED_WEIGHTS, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TRAINING_RECORD
from ..data.sources import Corpus
from ..inference.confidence import CALIBRATIONS, Calibrations
from ..tokenization_random_transformer import unicode_error
from .arguments import FILE_ARGUMENTS, LANGUAGE_ARGUMENTS
from .checkpoints import all_checkpoints, check_checkpoints, newest_complete
from .run_state import SEARCH_STAGE, TRAIN_STAGE, Run
from .training_arguments import TranslationTrainingArguments

TRAINING_LOCK = ".training.lock"
# Files that a run saves. In a folder without a record, files with these names belong to another program.
MODEL_FILES = (
    SAVED_WEIGHTS,
    "*.bin",
    "*.index.json",
    CONFIG_NAME,
    ADAPTER_CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    CALIBRATIONS,
    "README.md",
)
# Files of a saved model or tokenizer that determine a run. Other files may change: the record, for example, when the
# model is scored on another set.
INITIAL_FILES = (
    "*.safetensors*",
    "pytorch_model*",
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    "tokenizer*",
    "*.spm",
    "vocab*",
    "*merges*",
)
# Arguments that may only increase when a run is resumed, to extend it.
INCREASABLE_ARGUMENTS = ("max_steps", "num_train_epochs")
# Arguments that are not compared by value, but by the contents of files or by their product.
ARGUMENTS_COMPARED_BY_CONTENT = (
    *FILE_ARGUMENTS,
    *LANGUAGE_ARGUMENTS,
    "gradient_accumulation_steps",
    "model_name_or_path",
    "test_split",
    "tokenizer",
    "validation_split",
)
# Arguments of evaluation. They may change, unless evaluation selects the weights.
EVALUATION_ARGUMENTS = (
    "bf16_full_eval",
    "bleu_tokenize",
    "engine",
    "eval_delay",
    "eval_on_start",
    "eval_steps",
    "eval_strategy",
    "fp16_full_eval",
    "generation_max_length",
    "greater_is_better",
    "length_penalty",
    "metric_for_best_model",
    "num_beams",
    "predict_with_generate",
    "prediction_loss_only",
)
# Other arguments that may change. All others that differ from their defaults are compared when a run is resumed.
UNCOMPARED_ARGUMENTS = (
    # The place where the result is saved or published.
    "output_dir",
    "project",
    "report_to",
    "run_name",
    # Logging and progress.
    "debug",
    "disable_tqdm",
    "skip_memory_metrics",
    # Number and contents of checkpoints, apart from the weights.
    "enable_jit_checkpoint",
    "restore_callback_states_from_checkpoint",
    "save_only_model",
    "save_total_limit",
    # Speed, memory and communication, with results that are equal up to rounding.
    "cuda_graphs",
    "eval_accumulation_steps",
    "per_device_eval_batch_size",
    "preprocessing_num_workers",
    "torch_empty_cache_steps",
    "use_cache",
    "use_cpu",
    # Set by the launcher.
    "even_batches",
    "local_rank",
)
# The beginnings of the names of arguments of transformers that may change, for the same reasons.
UNCOMPARED_PREFIXES = (
    "activation_checkpointing",
    "dataloader_",
    "ddp_",
    "do_",
    "gradient_checkpointing",
    "hub_",
    "include_",
    "log_",
    "logging_",
    "push_to_hub",
    "trackio_",
)


def is_uncompared(name: str) -> bool:
    """Whether an argument is not compared when a run is resumed."""
    return name in UNCOMPARED_ARGUMENTS or name.startswith(UNCOMPARED_PREFIXES)


def final_search(args: TranslationTrainingArguments, job: Job) -> dict[str, Any]:
    """Keyword arguments of `generate()` for the trained model, with the penalty and patience chosen in the record."""
    search = args.search_kwargs
    if args.chooses_length_penalty:
        facts = job.stages[SEARCH_STAGE].facts
        search |= {name: facts[name] for name in ("length_penalty", "patience")}
    return search


def check_output_dir(folder: Path) -> None:
    """Check that a run overwrites only its own files in an output folder.

    Raises:
        ValueError: the folder or a parent is a file or cannot be written, or the folder contains the model or the
            checkpoints of another run. The message names the first of them.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(f"output_dir must be a folder, new or not, that can be written, got {str(folder)!r}.")
    if unicode_error(str(folder.absolute())):  # safetensors and tokenizers cannot write it
        raise ValueError(f"output_dir must be a path in UTF-8, got {str(folder)!r}.")
    Calibrations(folder)  # a damaged calibration is an error now, not after the training
    stages = Job(folder / TRAINING_RECORD).stages
    record = stages.get(TRAIN_STAGE)
    if record is None:
        foreign = [*all_checkpoints(folder), *files_in(folder, MODEL_FILES)]
    elif record.is_finished:
        changed = chain.from_iterable(stage.changed_files() for stage in stages.values())  # weights or the tokenizer
        foreign = [path for path in changed if path.is_file()]
    elif all_checkpoints(folder):
        foreign = []  # a finished run that is extended has a model, as a run that is uploaded with each checkpoint
    else:
        foreign = [*files_in(folder, [SAVED_WEIGHTS])]
    if foreign:
        raise ValueError(
            f"output_dir must be new or contain an earlier attempt of this run, got {folder} with {foreign[0].name}, "
            "which the run has not written."
        )


def begin_training(run: Run) -> None:
    """Begin the training in the record of a run, or continue the training of an earlier call, in the first process.

    Raises:
        ValueError: values that determine the result have changed (the message lists them), or the checkpoints are
            missing, damaged or of another run.
    """
    inputs = run_inputs(run)
    newest = newest_complete(run.folder)
    earlier = run.job.stages.get(TRAIN_STAGE, Stage(run.job))
    run_id = earlier.facts.get("run_id", uuid4().hex)
    is_finished = earlier.is_finished and not earlier.changed_files()
    is_extended = is_finished and earlier.inputs != inputs
    if is_extended or not is_finished:
        check_checkpoints(run.folder, run_id)
    if is_extended and newest is None:
        raise ValueError(
            f"output_dir must contain a checkpoint to extend a finished run, got {run.folder} without one: "
            f"use another output_dir with model_name_or_path={run.folder} to train its model further."
        )
    restart = not is_finished and newest is None  # nothing has been trained
    stage = run.job.begin(TRAIN_STAGE, inputs, restart=restart, may_change=is_longer, needs_files=not is_finished)
    if restart:
        stage.note(run_id=run_id)


def is_longer(name: str, earlier: Any, current: Any) -> bool:
    return name in INCREASABLE_ARGUMENTS and None not in (earlier, current) and 0 < earlier < current


def non_default_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a dataclass that are compared and differ from their defaults, as JSON values."""
    changed = {}
    for entry in fields(arguments):
        value = getattr(arguments, entry.name)
        if is_dataclass(value):
            value = non_default_arguments(value) or None
        value = getattr(value, "value", value)  # members of enumerations are saved by value
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if value != default and not is_uncompared(entry.name):
            changed[entry.name] = value
    return changed


def weight_arguments(args: TranslationTrainingArguments, *other_arguments: Any) -> dict[str, Any]:
    """The training arguments, and `other_arguments`, that differ from their defaults and determine the weights."""
    uncompared = {*INCREASABLE_ARGUMENTS, *ARGUMENTS_COMPARED_BY_CONTENT}
    if not evaluation_selects_weights(args):
        uncompared |= {*EVALUATION_ARGUMENTS}
    values: dict[str, Any] = {}
    for arguments in (*other_arguments, args):
        values |= non_default_arguments(arguments)
    return {name: value for name, value in values.items() if name not in uncompared}


def run_inputs(run: Run) -> dict[str, Any]:
    """The values that determine the result, by argument name. Files are represented by fingerprints."""
    args = run.args
    values = weight_arguments(args, run.data_args, run.model_args)
    length = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    values[length] = getattr(args, length)
    # The product is compared: more devices with fewer accumulation steps have the same number of batches per step.
    values["gradient_accumulation_steps x devices"] = args.gradient_accumulation_steps * args.world_size // args.tp_size
    values["training set"] = fingerprint(run.corpora["train"])
    if evaluation_selects_weights(args):
        values |= validation_fingerprints(run)
    for name in ("tokenizer", "model_name_or_path"):
        saved = getattr(run.model_args, name)
        if saved is not None:
            values[name] = folder_digest(saved)
    # An argument that is missing in the record, and compared as None, has its default.
    return as_read({name: "None" if value is None else value for name, value in values.items()})


def evaluation_selects_weights(args: TranslationTrainingArguments) -> bool:
    """Whether evaluation affects the result."""
    return args.load_best_model_at_end or args.early_stopping_patience is not None or args.save_strategy == "best"


def fingerprint(corpora: list[Corpus]) -> Any:
    """A digest of a corpus and its languages, or a list of the digests of several corpora."""
    digests = [f"{corpus.fingerprint()} {corpus.direction or ''}".strip() for corpus in corpora]
    return digests[0] if len(digests) == 1 else digests


def validation_fingerprints(run: Run) -> dict[str, Any]:
    """The digest of each validation set, by its name; see `fingerprint`."""
    return {name: fingerprint(run.corpora[name]) for name in run.validation_sets}


def folder_digest(name: str) -> str:
    """A digest of files in a folder, or of a file; the name of a model on the Hub is returned unchanged."""
    saved = Path(name)
    if saved.is_file():
        return file_digest(saved)
    if not saved.is_dir():
        return name
    files = {path.name: file_digest(path) for path in files_in(saved, INITIAL_FILES)}
    return json_digest(dict(sorted(files.items())))

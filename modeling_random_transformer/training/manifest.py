"""The manifest and the result of a run, and the lock on its output folder.

The manifest is a JSON file in the output folder with the inputs and the progress of the run. A resumed run compares its
arguments and data with it. Values that determine the result must be equal. Changes of other values are recorded.
"""

import hashlib
import json
import logging
from contextlib import AbstractContextManager
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..configuration_random_transformer import RandomTransformerConfig
from ..data.mixing import CorpusSpec
from ..data.sources import Corpus, DatasetText
from ..data.validation import ValidationReport
from ..utils.atomic_files import write_atomically
from ..utils.digests import file_digest
from ..utils.distributed import exclusive
from .arguments import DROPOUTS, FILES, LANGUAGES, VOCAB_SIZE, DataArguments, ModelArguments, parse_overrides
from .checkpoints import all_checkpoints, check_checkpoints, newest_complete, step_of
from .recipe import TranslationTrainingArguments

logger = logging.getLogger(__name__)

MANIFEST, LOCK = "training_manifest.json", ".training.lock"
# Files that a run saves. In a folder without a manifest, they are those of another program.
MODEL_FILES = ("*.safetensors", "*.bin", "*.index.json", "config.json", "adapter_config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "README.md")  # fmt: skip
TOKENIZER_FILES = ("tokenizer*", "*.spm", "vocab*", "*merges*")
# Every argument that differs from its default is compared when a run is resumed, except the following ones.
# Arguments that may only increase, to extend the run.
LENGTHS = ("max_steps", "num_train_epochs")
# Arguments of evaluation, which determine the best checkpoint and early stopping; free if neither is used.
SELECTION = ("batch_eval_metrics", "bf16_full_eval", "eval_delay", "eval_on_start", "eval_steps", "eval_strategy",
    "fp16_full_eval", "generation_max_length", "greater_is_better", "length_penalty", "metric_for_best_model",
    "num_beams", "predict_with_generate", "prediction_loss_only")  # fmt: skip
# Which checkpoints exist; free if the final model depends on the last one only.
SAVING = ("save_steps", "save_strategy")
# Free arguments whose changes the history in the manifest records.
RECORDED = (*SELECTION, *SAVING, "gradient_accumulation_steps", "logging_steps", "save_total_limit")
# Arguments that `fixed_values` records in another form.
OTHER_FORM = (*FILES, *LANGUAGES, *LENGTHS, "buffer_pairs", "config_overrides", "dataset_config_name", "dataset_name",
    "dataset_revision", "model_name_or_path", "preset", "resume_from_checkpoint", "source_key", "special_tokens",
    "streaming", "target_key", "test_split", "tokenizer", "train_split", "validation_split", "vocab_size")  # fmt: skip
# Free arguments that are not recorded, by the reason.
FREE = {
    "where the result is saved or published; may be secret": (
        "hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "hub_token",
        "output_dir", "project", "push_to_hub", "report_to", "run_name", "trackio_bucket_id", "trackio_space_id",
        "trackio_static_space_id",
    ),
    "what is logged and shown": (
        "debug", "disable_tqdm", "include_for_metrics", "include_num_input_tokens_seen", "log_level",
        "log_level_replica", "log_on_each_node", "logging_first_step", "logging_nan_inf_filter", "logging_strategy",
        "skip_memory_metrics",
    ),
    "what a checkpoint contains besides the weights": (
        "enable_jit_checkpoint", "restore_callback_states_from_checkpoint", "save_on_each_node", "save_only_model",
    ),
    "speed, memory and communication; the results are equal up to rounding": (
        "activation_checkpointing", "activation_checkpointing_kwargs",
        "dataloader_multiprocessing_context", "dataloader_num_workers", "dataloader_persistent_workers",
        "dataloader_pin_memory", "dataloader_prefetch_factor", "ddp_backend", "ddp_broadcast_buffers",
        "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_static_graph", "ddp_timeout",
        "eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object", "gradient_checkpointing",
        "gradient_checkpointing_kwargs", "per_device_eval_batch_size", "preprocessing_num_workers",
        "torch_empty_cache_steps", "use_cache", "use_cpu",
    ),
    "set by the launcher or by the recipe": ("do_eval", "do_predict", "do_train", "even_batches", "local_rank"),
}  # fmt: skip
_FREE = {name for names in FREE.values() for name in names}


@dataclass
class Manifest:
    """The inputs and the progress of a run.

    Args:
        fixed: the values that determine the result, by argument name.
        free: the values that may change when the run is resumed.
        run_id: the identity of the run, which its checkpoints also contain; `""` in those of earlier versions.
        tokenizer: digest of the `tokenizer.json` that the run trained.
        history: for each call with changed values, the step that it resumed from and the old and new values.
        finished: facts about the final model; `None` until it is saved.
        scores: the evaluation settings and the metrics of each scored set.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]
    run_id: str = ""
    tokenizer: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] | None = None
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest in a folder; `None` if there is none.

        Raises:
            ValueError: the file is damaged.
        """
        path = folder / MANIFEST
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} must be the manifest of a run, got a damaged file: {error}.") from error

    def write(self, folder: Path) -> None:
        """Write the manifest atomically."""
        write_atomically(folder / MANIFEST, [json.dumps(asdict(self), indent=2).encode()])

    def finish(self, folder: Path, **facts: Any) -> None:
        """Record that the final model is saved."""
        files = {path.name: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}
        self.finished = {"files": files, **facts}
        self.write(folder)

    def is_finished(self, folder: Path) -> bool:
        """Whether the folder contains the final model with the recorded weights."""
        if self.finished is None:
            return False
        return not self.changed(folder) and all((folder / name).is_file() for name in self.finished["files"])

    def changed(self, folder: Path) -> list[Path]:
        """The weights in the folder that differ from those of the finished run."""
        files = {} if self.finished is None else self.finished["files"]
        paths = {folder / name: digest for name, digest in files.items()}
        return [path for path, digest in paths.items() if path.is_file() and file_digest(path) != digest]

    def score_of(self, split: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The metrics of a set that was scored with the same evaluation settings; otherwise `None`."""
        entry = self.scores.get(split)
        return entry["metrics"] if entry is not None and entry["scored"] == settings else None


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
        corpora: name, languages (such as `["en", "de"]`), number of pairs, weight and tag of each training corpus.
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
    corpora: list[dict[str, Any]] = field(default_factory=list)
    reports: list[ValidationReport] = field(default_factory=list)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)


def check_folder(folder: Path) -> None:
    """Check that everything in an output folder that a run would overwrite is its own.

    Raises:
        ValueError: the folder contains the model or the checkpoints of another run; the message names the first.
    """
    manifest = Manifest.read(folder)
    files = [path for pattern in MODEL_FILES for path in sorted(folder.glob(pattern))]
    if manifest is None:
        others = [*all_checkpoints(folder), *files]
    elif manifest.finished is not None:
        others = manifest.changed(folder)
    elif all_checkpoints(folder):
        others = []  # a finished run that is extended has a model, as a run that is uploaded with each checkpoint
    else:
        others = [path for path in files if path.match("*.safetensors")]
    if others:
        raise ValueError(
            f"output_dir must be new or contain an earlier attempt of this run, got {folder} with {others[0].name}, "
            "which the run has not written."
        )


def open_manifest(folder: Path, fixed: dict[str, Any], free: dict[str, Any]) -> Manifest:
    """Open the manifest in a folder, or create one if there is nothing to resume.

    Raises:
        ValueError: values that determine the result have changed, the message lists them; or the checkpoints are
            missing, damaged or of another run.
    """
    # Compared after a JSON round trip, like the values in the file.
    fixed, free = json.loads(json.dumps([fixed, free], default=str))
    earlier, newest = Manifest.read(folder), newest_complete(folder)
    manifest = Manifest(fixed, free, uuid4().hex if earlier is None else earlier.run_id)
    finished = earlier is not None and earlier.is_finished(folder)
    if earlier is not None and (finished or newest):
        _check_same(folder, earlier.fixed, fixed)
        manifest.tokenizer, manifest.history = earlier.tokenizer, earlier.history
        earlier_free = {**free, **earlier.free}
        if changes := {name: [earlier_free[name], free[name]] for name in free if earlier_free[name] != free[name]}:
            manifest.history.append({"step": 0 if newest is None else step_of(newest), "changes": changes})
        if finished and not _differences(earlier.fixed, fixed):
            manifest.finished, manifest.scores = earlier.finished, earlier.scores
    elif earlier is not None and not _differences(earlier.fixed, fixed):
        manifest.tokenizer = earlier.tokenizer  # nothing was trained, except the tokenizer with the same values
    if manifest.finished is None:
        check_checkpoints(folder, manifest.run_id)
        if finished and newest is None:
            raise ValueError(
                f"output_dir must contain a checkpoint to extend a finished run, got {folder} without one: use "
                f"another output_dir with model_name_or_path={folder} to train its model further."
            )
    manifest.write(folder)
    return manifest


def _differences(earlier: dict[str, Any], current: dict[str, Any]) -> dict[str, list[Any]]:
    """The earlier and the current value of each argument that has changed; what is not recorded is the default."""
    defaults = {**_DEFAULTS, **dict.fromkeys(LENGTHS)}  # one of the lengths is recorded
    pairs = {
        name: [values.get(name, defaults.get(name)) for values in (earlier, current)]
        for name in sorted({*earlier, *current})
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _check_same(folder: Path, earlier: dict[str, Any], current: dict[str, Any]) -> None:
    differences = _differences(earlier, current)
    for name in {*LENGTHS} & {*earlier} & {*current} & {*differences}:
        if 0 < earlier[name] < current[name]:
            del differences[name]
    if differences:
        listed = "; ".join(f"{name}: was {was}, now {now}" for name, (was, now) in differences.items())
        raise ValueError(
            f"output_dir must be new or contain a run with the same arguments and data, got {folder} with different "
            f"ones ({listed})."
        )


def changed_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a dataclass that differ from their defaults, as values for JSON, without those of `FREE`."""
    values = {entry.name: _plain(getattr(arguments, entry.name)) for entry in fields(arguments)}
    return {
        entry.name: values[entry.name]
        for entry in fields(arguments)
        if entry.name not in _FREE and values[entry.name] != _default(entry)
    }


def determining(args: TranslationTrainingArguments) -> dict[str, Any]:
    """The training arguments that differ from their defaults and determine the weights."""
    free = {*RECORDED, *OTHER_FORM}
    if selects(args):
        free -= {*SELECTION, *SAVING}
    if args.average_last > 1:
        free -= {*SAVING}
    return {name: value for name, value in changed_arguments(args).items() if name not in free}


def fixed_values(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
    corpora: dict[str, list[CorpusSpec]],
) -> dict[str, Any]:
    """The values that determine the result, by argument name. Files are represented by fingerprints."""
    values = changed_arguments(data_args) | changed_arguments(model_args)
    values = {name: value for name, value in values.items() if name not in OTHER_FORM} | determining(args)
    values |= {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}
    # More devices with fewer accumulation steps have the same number of batches per step.
    values["gradient_accumulation_steps x devices"] = args.gradient_accumulation_steps * args.world_size // args.tp_size
    if data_args.streaming:
        values["buffer_pairs"] = data_args.buffer_pairs
    values["training set"] = fingerprint(corpora["train"])
    validation = [corpus for name in corpora if name.startswith("validation") for corpus in corpora[name]]
    if selects(args) and validation:
        values["validation set"] = fingerprint(validation)
    start = args.resume_from_checkpoint
    if isinstance(start, str) and not Path(start).resolve().is_relative_to(Path(args.output_dir).resolve()):
        values["resume_from_checkpoint"] = str(Path(start).resolve())
    return {**values, **_initial_model(model_args)}


def free_values(args: TranslationTrainingArguments, version: str) -> dict[str, Any]:
    """The values that may change when a run is resumed."""
    values = {name: _plain(getattr(args, name, None)) for name in (*RECORDED, *LENGTHS, "world_size")}
    return {**values, "random-transformer": version}


def selects(args: TranslationTrainingArguments) -> bool:
    """Whether evaluation affects the result."""
    return args.load_best_model_at_end or args.early_stopping_patience is not None or args.save_strategy == "best"


def _initial_model(model_args: ModelArguments) -> dict[str, Any]:
    """The architecture and the tokenizer, or the fingerprint of the saved model."""
    if (saved := model_args.model_name_or_path) is not None:
        overrides = parse_overrides(model_args.config_overrides)
        # Not all files: the manifest in the folder, for one, changes when the model is scored on another set.
        files = ("*.safetensors*", "pytorch_model*", "config.json", "generation_config.json", *TOKENIZER_FILES)
        return {**{name: overrides.get(name) for name in DROPOUTS}, "model_name_or_path": _folder_digest(saved, *files)}
    values: dict[str, Any] = {"tokenizer": None}
    vocab_size = model_args.vocab_size or VOCAB_SIZE
    if model_args.special_tokens:
        values["special_tokens"] = model_args.special_tokens
    if model_args.tokenizer is not None:
        values["tokenizer"] = _folder_digest(model_args.tokenizer, *TOKENIZER_FILES)
    config = model_args.config(vocab_size)
    names = vars(RandomTransformerConfig)["__annotations__"]
    return {**values, **{name: _plain(getattr(config, name)) for name in names if hasattr(config, name)}}


def fingerprint(corpora: list[CorpusSpec]) -> Any:
    """A digest of one corpus and its languages, or a list of those of several."""
    digests = [" ".join(filter(None, (_text_fingerprint(corpus.text), corpus.direction))) for corpus in corpora]
    return digests[0] if len(digests) == 1 else digests


def _text_fingerprint(text: Corpus) -> str:
    """A digest of the content of files, or the fingerprint of a dataset."""
    if isinstance(text, DatasetText):
        return f"{text.name} {text.fingerprint()} {text.source_key} {text.target_key}"
    return text.fingerprint()


def locked(folder: Path) -> AbstractContextManager[None]:
    """Lock an output folder: see `exclusive`."""
    return exclusive(folder / LOCK, f"output_dir must not be in use, got {folder} with another run in progress.")


def check_shared(folder: Path) -> None:
    """Check that this process has the manifest that the first process has written.

    Raises:
        ValueError: the output folder is on a file system of another node.
    """
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"output_dir must be on a file system that all nodes share, got {folder} without {MANIFEST}.")


def _plain(value: Any) -> Any:
    """The value of an enumeration member, the changed fields of a dataclass, or the argument itself."""
    return changed_arguments(value) or None if is_dataclass(value) else getattr(value, "value", value)


def _default(entry: Field) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


_DEFAULTS = {
    entry.name: _default(entry)
    for kind in (DataArguments, ModelArguments, TranslationTrainingArguments)
    for entry in fields(kind)
}


def _folder_digest(name: str, *patterns: str) -> str:
    """A digest of files in a folder, or of a file; the name of a model on the Hub is returned unchanged."""
    if Path(name).is_file():
        return file_digest(Path(name))
    if not Path(name).is_dir():
        return name
    files = {path.name: file_digest(path) for pattern in patterns for path in sorted(Path(name).glob(pattern))}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

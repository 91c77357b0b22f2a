"""The manifest and the result of a run, and the lock on its output folder.

The manifest is a JSON file in the output folder with the inputs and the progress of the run. A resumed run compares its
arguments and data with it. Values that determine the result must be equal. Changes of other values are recorded.
"""

import hashlib
import json
import logging
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..configuration_random_transformer import RandomTransformerConfig
from ..data.mixing import CorpusSpec
from ..data.sources import Corpus, DatasetText
from ..data.validation import ValidationReport
from ..utils.atomic_files import write_atomically
from ..utils.digests import file_digest
from ..utils.distributed import exclusive
from .arguments import DROPOUTS, VOCAB_SIZE, DataArguments, ModelArguments, parse_overrides
from .checkpoints import newest_complete, step_of
from .recipe import TranslationTrainingArguments

logger = logging.getLogger(__name__)

MANIFEST, LOCK = "training_manifest.json", ".training.lock"
# Training arguments that determine the weights.
RECIPE = (
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "average_last",
    "bf16",
    "data_seed",
    "early_stopping_patience",
    "fp16",
    "fsdp_size",
    "label_smoothing_factor",
    "learning_rate",
    "load_best_model_at_end",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "max_grad_norm",
    "max_tokens_per_batch",
    "neftune_noise_alpha",
    "optim",
    "optim_args",
    "optim_target_modules",
    "seed",
    "tp_size",
    "warmup_steps",
    "weight_decay",
)
# Training arguments that determine the weights, absent from the manifest if they are unset, as in earlier versions.
REGULARIZATION = ("bpe_dropout", "ema_decay", "r_drop_alpha", "word_dropout")
# Training arguments that determine the best checkpoint and early stopping.
SELECTION = ("eval_steps", "eval_strategy", "greater_is_better", "length_penalty", "metric_for_best_model", "num_beams")
# Training arguments that may only increase, to extend the run.
LENGTHS = ("max_steps", "num_train_epochs")
# Training arguments that may change; the history in the manifest records changes.
FREE = (
    "eval_steps",
    "eval_strategy",
    "gradient_accumulation_steps",
    "length_penalty",
    "logging_steps",
    "num_beams",
    "save_steps",
    "save_strategy",
    "save_total_limit",
    "world_size",
)


@dataclass
class Manifest:
    """The inputs and the progress of a run.

    Args:
        fixed: the values that determine the result, by argument name.
        free: the values that may change when the run is resumed.
        tokenizer: digest of the `tokenizer.json` that the run trained.
        history: for each call with changed values, the step that it resumed from and the old and new values.
        finished: facts about the final model; `None` until it is saved.
        scores: the evaluation settings and the metrics of each scored set.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]
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
        files = self.finished["files"]
        return all((folder / name).is_file() and file_digest(folder / name) == digest for name, digest in files.items())

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


def open_manifest(folder: Path, fixed: dict[str, Any], free: dict[str, Any]) -> Manifest:
    """Open the manifest in a folder, or create one if there is nothing to resume.

    Raises:
        ValueError: values that determine the result have changed; the message lists them.
    """
    # Compared after a JSON round trip, like the values in the file.
    fixed, free = json.loads(json.dumps([fixed, free]))
    earlier, newest = Manifest.read(folder), newest_complete(folder)
    finished = earlier is not None and earlier.is_finished(folder)
    if not (finished or newest):
        # Nothing to resume: start from scratch, but reuse the tokenizer of an earlier call with the same values.
        same = earlier is not None and earlier.fixed == fixed
        manifest = Manifest(fixed, free, tokenizer=earlier.tokenizer if earlier is not None and same else None)
    elif earlier is None:
        logger.warning("%s has checkpoints but no manifest: its arguments and data cannot be compared.", folder)
        tokenizer = folder / "tokenizer.json"
        manifest = Manifest(fixed, free, tokenizer=file_digest(tokenizer) if tokenizer.is_file() else None)
    else:
        _check_same(folder, earlier.fixed, fixed)
        changes = {name: [earlier.free.get(name), value] for name, value in free.items()}
        changes = {name: change for name, change in changes.items() if change[0] != change[1]}
        manifest = Manifest(fixed, free, earlier.tokenizer, earlier.history)
        if changes:
            manifest.history.append({"step": 0 if newest is None else step_of(newest), "changes": changes})
        if finished and earlier.fixed == fixed:
            manifest.finished, manifest.scores = earlier.finished, earlier.scores
    manifest.write(folder)
    return manifest


def _check_same(folder: Path, earlier: dict[str, Any], current: dict[str, Any]) -> None:
    names = sorted(name for name in {*earlier, *current} if earlier.get(name) != current.get(name))
    longer = {name for name in LENGTHS if name in earlier and name in current and 0 < earlier[name] < current[name]}
    different = [f"{name}: was {earlier.get(name)}, now {current.get(name)}" for name in names if name not in longer]
    if different:
        raise ValueError(
            f"output_dir must be new or contain a run with the same arguments and data, got {folder} with different "
            f"ones ({'; '.join(different)})."
        )


def fixed_values(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
    corpora: dict[str, list[CorpusSpec]],
) -> dict[str, Any]:
    """The values that determine the result, by argument name. Files are represented by fingerprints."""
    names = [*RECIPE]
    if args.average_last > 1 or selects(args):
        names += ["save_steps", "save_strategy"]
    if selects(args):
        names += SELECTION
    values = {name: _plain(getattr(args, name)) for name in names}
    values |= {name: getattr(args, name) for name in REGULARIZATION if getattr(args, name)}
    values |= {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}
    # More devices with fewer accumulation steps have the same number of batches per step.
    values["gradient_accumulation_steps x devices"] = args.gradient_accumulation_steps * args.world_size // args.tp_size
    values |= {name: getattr(data_args, name) for name in ("max_source_length", "max_target_length", "on_invalid")}
    if data_args.streaming:
        values["buffer_pairs"] = data_args.buffer_pairs
    values["training set"] = fingerprint(corpora["train"])
    for name in ("max_length_ratio", "train_weights", "train_temperature"):
        if (value := getattr(data_args, name)) is not None:
            values[name] = value
    validation = [corpus for name in corpora if name.startswith("validation") for corpus in corpora[name]]
    if selects(args) and validation:
        values["validation set"] = fingerprint(validation)
    start = args.resume_from_checkpoint
    if isinstance(start, str) and not Path(start).resolve().is_relative_to(Path(args.output_dir).resolve()):
        values["resume_from_checkpoint"] = str(Path(start).resolve())
    return {**values, **_initial_model(model_args)}


def free_values(args: TranslationTrainingArguments, version: str) -> dict[str, Any]:
    """The values that may change when a run is resumed."""
    values = {name: _plain(getattr(args, name)) for name in (*FREE, *LENGTHS)}
    return {**values, "random-transformer": version}


def selects(args: TranslationTrainingArguments) -> bool:
    """Whether evaluation affects the result."""
    return args.load_best_model_at_end or args.early_stopping_patience is not None or args.save_strategy == "best"


def _initial_model(model_args: ModelArguments) -> dict[str, Any]:
    """The architecture and the tokenizer, or the fingerprint of the saved model."""
    if model_args.model_name_or_path is not None:
        values = {name: getattr(model_args, name) for name in vars(ModelArguments()) if name.startswith("lora_")}
        overrides = parse_overrides(model_args.config_overrides)
        values |= {name: overrides.get(name) for name in DROPOUTS}
        return {
            **values,
            "model_name_or_path": _folder_digest(model_args.model_name_or_path, "*.safetensors", "*.json"),
        }
    values = {"tokenizer": None}
    vocab_size = model_args.vocab_size or VOCAB_SIZE
    if model_args.special_tokens:
        values["special_tokens"] = model_args.special_tokens
    if model_args.tokenizer is not None:
        values["tokenizer"] = _folder_digest(model_args.tokenizer, "tokenizer*", "*.spm", "vocab*", "*merges*")
    config = model_args.config(vocab_size)
    fields = vars(RandomTransformerConfig)["__annotations__"]
    return {**values, **{name: _plain(getattr(config, name)) for name in fields if hasattr(config, name)}}


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
    """The value of an enumeration member, or the argument itself."""
    return getattr(value, "value", value)


def _folder_digest(name: str, *patterns: str) -> str:
    """A digest of files in a folder, or of a file; the name of a model on the Hub is returned unchanged."""
    if Path(name).is_file():
        return file_digest(Path(name))
    if not Path(name).is_dir():
        return name
    files = {path.name: file_digest(path) for pattern in patterns for path in sorted(Path(name).glob(pattern))}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

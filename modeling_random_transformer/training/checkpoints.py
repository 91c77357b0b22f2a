"""Atomic checkpoints, and their average (paper 6.1).

transformers' Trainer writes a checkpoint file by file and resumes from the folder with the highest step, even if the
process was killed while writing it. Here, a marker file is written first. It names the run, so that only checkpoints of
this run are removed. When all other files are synced to disk, the marker is renamed. A checkpoint with a renamed marker
is complete.
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_NAME

from ..base.errors import first_line
from ..base.files import StrPath, name_path_in_errors, read_json, write_json
from ..base.saved_files import TOKENIZER_FILE

logger = logging.getLogger(__name__)

COMPLETE_MARKER, UNFINISHED_MARKER = "complete.json", "unfinished.json"
STATE = "trainer_state.json"


def checkpoint_folder(folder: StrPath, step: int) -> Path:
    """The checkpoint of a step in an output folder, with the name that transformers gives it."""
    return Path(folder) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def all_checkpoints(folder: StrPath) -> list[Path]:
    """The checkpoints in an output folder, complete or not, in the order of their steps."""
    by_step = {}
    for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if path.is_dir() and step.isdecimal():
            by_step[int(step)] = path
    return [by_step[step] for step in sorted(by_step)]


def is_complete(checkpoint: Path) -> bool:
    """Whether every file listed in the marker exists with its full size."""
    return not changed_files(checkpoint)


def changed_files(checkpoint: Path) -> list[str]:
    """The files of a finished checkpoint that are missing or have another size than in the marker."""
    sizes = read_marker(checkpoint).get("files")
    if sizes is None:
        return [COMPLETE_MARKER]
    changed = []
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            changed.append(name)
    return changed


def read_marker(checkpoint: Path, name: str = COMPLETE_MARKER) -> dict[str, Any]:
    """The content of a marker; empty if it is missing or damaged."""
    try:
        return read_json(checkpoint / name)
    except ValueError:
        return {}


def check_optimizer(checkpoint: Path) -> None:
    """Raise a `ValueError` if training cannot continue from a checkpoint of the run, which has no optimizer."""
    names = ("optimizer.pt", "optimizer.bin", "latest", "optimizer_*")  # the last two are those of DeepSpeed and FSDP2
    if not any(any(checkpoint.glob(name)) for name in names):
        raise ValueError(
            f"output_dir must contain complete checkpoints to continue from, got {checkpoint} without the state of the "
            f"optimizer (save_only_model): use another output_dir with model_name_or_path={checkpoint} to train its "
            "model further."
        )


def check_checkpoints(folder: StrPath, run_id: str) -> None:
    """Check that a run may replace and remove the checkpoints in a folder.

    Args:
        folder: the output folder.
        run_id: the identity of the run; `""` for a trainer outside of `train_translation`.

    Raises:
        ValueError: this run did not write a checkpoint, or a file of a complete one was changed; the message names it.
    """
    for checkpoint in all_checkpoints(folder):
        check_writer(checkpoint, run_id)
        changed = changed_files(checkpoint)
        if changed and (checkpoint / COMPLETE_MARKER).exists():
            raise ValueError(
                f"output_dir must contain complete checkpoints to continue from, got {checkpoint}, in which "
                f"{', '.join(changed)} is missing or was changed: restore or move it, or use another output_dir."
            )


def resumable_checkpoint(folder: StrPath) -> Path | None:
    """The newest complete checkpoint. Checkpoints that killed processes have not completed are removed."""
    for checkpoint in all_checkpoints(folder):
        if not is_complete(checkpoint):
            remove_checkpoint(checkpoint)
            logger.warning("%s was incomplete and has been removed.", checkpoint)
    return newest_complete(folder)


def complete_checkpoints(folder: StrPath) -> list[Path]:
    """The complete checkpoints in an output folder, in the order of their steps."""
    return [path for path in all_checkpoints(folder) if is_complete(path)]


def newest_complete(folder: StrPath) -> Path | None:
    """The newest complete checkpoint in an output folder; `None` if there is none."""
    return next(reversed(complete_checkpoints(folder)), None)


def state_of(checkpoint: Path) -> TrainerState:
    """The state of the trainer in a complete checkpoint or in another folder."""
    return TrainerState.load_from_json(str(checkpoint / STATE))


def check_writer(checkpoint: Path, run_id: str) -> None:
    writers = [read_marker(checkpoint, name).get("run") for name in (COMPLETE_MARKER, UNFINISHED_MARKER)]
    is_empty = all(path.stat().st_size == 0 for path in checkpoint.iterdir())
    if run_id not in writers and not is_empty:
        raise ValueError(
            f"output_dir must contain only checkpoints of this run, got {checkpoint} of another run: "
            "move it, or use another output_dir."
        )


@contextmanager
def write_checkpoint(checkpoint: Path, run_id: str, is_writer: bool, wait: Callable[[], Any]) -> Iterator[None]:
    """Create a checkpoint, which is complete after the block in all processes. A failure in this process removes it.

    Args:
        checkpoint: its folder.
        run_id: the run that writes it.
        is_writer: whether this process creates and completes the folder; exactly one process of a run does.
        wait: waits for all processes.

    Raises:
        ValueError: the folder contains files that the run did not write.
        OSError: saving failed; the message names the newest complete checkpoint.
    """
    if is_writer:
        begin_checkpoint(checkpoint, run_id)
    wait()  # no process writes a file before the marker
    try:
        yield
        wait()
        if is_writer:
            mark_complete(checkpoint)
    except Exception as error:
        if is_writer:  # another process must not remove what this one still writes
            with suppress(OSError):
                remove_checkpoint(checkpoint)
        newest = newest_complete(checkpoint.parent) or "none"
        message = f"{checkpoint} could not be saved, the newest complete checkpoint is {newest}"
        raise save_error(message, checkpoint.parent, error) from error


def begin_checkpoint(checkpoint: Path, run_id: str) -> None:
    """Create the folder of a checkpoint with the marker of its run. An earlier folder of the same run is replaced.

    Raises:
        ValueError: the folder contains files that the run did not write.
    """
    if checkpoint.exists():
        check_writer(checkpoint, run_id)
        remove_checkpoint(checkpoint)
    checkpoint.mkdir(parents=True)
    # Written in place: a temporary file that a killed process leaves would count as a file of another program.
    (checkpoint / UNFINISHED_MARKER).write_text(json.dumps({"run": run_id}))


def mark_complete(checkpoint: Path) -> None:
    """Sync the files of a checkpoint to disk, then rename its marker."""
    marker = checkpoint / UNFINISHED_MARKER
    sizes = {}
    for name, path in checkpoint_files(checkpoint).items():
        if path != marker:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[name] = path.stat().st_size
    write_json(marker, {**read_marker(checkpoint, UNFINISHED_MARKER), "files": sizes})
    os.replace(marker, checkpoint / COMPLETE_MARKER)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that an interruption leaves no part of it under its name."""
    removed = checkpoint.with_name(".removed")
    shutil.rmtree(removed, ignore_errors=True)  # left by a killed process
    os.replace(checkpoint, removed)
    shutil.rmtree(removed)


def keep_newest(folder: StrPath, limit: int | None, best: str | None = None) -> None:
    """Remove old checkpoints, except the newest `limit` complete checkpoints, the best, and those with other files."""
    if not limit:
        return
    for path in complete_checkpoints(folder)[:-limit]:
        has_other_files = not checkpoint_files(path).keys() <= {COMPLETE_MARKER, *read_marker(path)["files"]}
        if path.name != Path(best or "").name and not has_other_files:
            remove_checkpoint(path)


def checkpoint_files(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint by their relative path."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    return {path.relative_to(checkpoint).as_posix(): path for path in files}


@contextmanager
def save_atomically(folder: Path, is_writer: bool = True) -> Iterator[Path]:
    """Yield a temporary folder, and then move its files into `folder`, the tokenizer last.

    Args:
        folder: the destination.
        is_writer: whether this process creates and moves the files; exactly one process of a run does.

    Raises:
        OSError: saving failed; the message names the folder.
    """
    temporary = folder / ".unfinished"
    if is_writer:
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    try:
        with name_path_in_errors(temporary):
            yield temporary
        if is_writer:
            for path in sorted(temporary.iterdir(), key=lambda path: path.name == TOKENIZER_FILE):
                os.replace(path, folder / path.name)
    except (OSError, RuntimeError) as error:
        raise save_error(f"files could not be saved in {folder}", folder, error) from error
    finally:
        if is_writer:
            shutil.rmtree(temporary, ignore_errors=True)


def save_error(message: str, folder: StrPath, error: Exception) -> OSError:
    """An `OSError` with a message, its cause and the free disk space."""
    code = getattr(error, "errno", None) or errno.EIO
    free = shutil.disk_usage(folder).free // 2**20
    return OSError(code, f"{message} ({first_line(error)}; {free} MiB free)")


def average_weights(checkpoints: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, computed in float64 and returned in their dtype.

    Args:
        checkpoints: folders with `model.safetensors` or with adapter weights.

    Raises:
        ValueError: there is no checkpoint, or names and shapes differ between checkpoints.
    """
    if not checkpoints:
        raise ValueError("checkpoints must name at least one folder, got none.")
    is_adapter = (Path(checkpoints[0]) / ADAPTER_SAFE_WEIGHTS_NAME).exists()
    file = ADAPTER_SAFE_WEIGHTS_NAME if is_adapter else SAFE_WEIGHTS_NAME
    first = load_file(Path(checkpoints[0]) / file)
    total = {name: weight.to(torch.float64) for name, weight in first.items()}
    for folder in checkpoints[1:]:
        weights = load_file(Path(folder) / file)
        if weights.keys() != first.keys() or any(weights[name].shape != total[name].shape for name in weights):
            raise ValueError(f"checkpoints must have the same names and shapes, but those of {folder} differ.")
        for name, weight in weights.items():
            total[name] += weight
    return {name: (weight / len(checkpoints)).to(first[name].dtype) for name, weight in total.items()}


def load_average(model: PreTrainedModel, checkpoints: Sequence[str | Path]) -> PreTrainedModel:
    """Load the mean of the weights of several checkpoints into a model with their configuration, and return it.

    Adapter checkpoints require a model with this adapter. Their LoRA factors are averaged.

    Raises:
        ValueError: the checkpoints do not match the model, its adapter or each other.
    """
    weights = average_weights(checkpoints)
    missing = set()
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict  # installed if the model has an adapter

        result: Any = set_peft_model_state_dict(model, weights)
    else:
        result = model.load_state_dict(to_shards(weights, model), strict=False)
        missing = set(result.missing_keys) - set(model.all_tied_weights_keys)
        model.tie_weights()
    if result.unexpected_keys or missing:
        raise ValueError(
            f"checkpoints must match the model, {type(model).__name__}, got {checkpoints[0]}, which has unexpected "
            f"{sorted(result.unexpected_keys)} and lacks {sorted(missing)}."
        )
    return model


def to_shards(weights: dict[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Replace each weight that the model shards with the shard of this process."""
    for name, parameter in model.state_dict().items():
        if name in weights and isinstance(parameter, DTensor):
            weight = weights[name].to(parameter.device)
            weights[name] = distribute_tensor(weight, parameter.device_mesh, parameter.placements)
    return weights

"""Checkpoints that are whole or do not count.

The library's Trainer writes a checkpoint file by file and resumes from the folder with the highest number, whether or
not the process was killed while it was being written. Here a checkpoint counts from the moment a marker is in it, and
the marker is written last, after everything else has reached the disk.
"""

import json
import os
import re
import shutil
from pathlib import Path

MARKER, STATE = "complete.json", "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def all_checkpoints(run: str | os.PathLike) -> list[Path]:
    """The folders of a run's checkpoints, complete or not, oldest step first."""
    folders = [path for path in Path(run).glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(folders, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The optimizer step after which a checkpoint was written."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"checkpoint must be a folder named checkpoint-STEP, got {checkpoint}.")
    return int(match.group(1))


def is_complete(checkpoint: Path) -> bool:
    """Whether every file that was written is there in its full size."""
    try:
        sizes = json.loads((checkpoint / MARKER).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def newest_complete(run: str | os.PathLike) -> Path | None:
    """The newest checkpoint of a run that can be resumed from; `None` if there is none."""
    complete = [path for path in all_checkpoints(run) if is_complete(path)]
    return complete[-1] if complete else None


def is_last(checkpoint: Path, max_steps: int, epochs: float) -> bool:
    """Whether training ended with this checkpoint: it is of the last step, or training stopped early there.

    Args:
        checkpoint: a complete checkpoint.
        max_steps: the steps of the run; -1 if it counts epochs.
        epochs: the epochs of a run that counts them.
    """
    state = json.loads((checkpoint / STATE).read_text())
    stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if stopping is not None:
        patience, counter = (
            stopping[part][f"early_stopping_patience{suffix}"]
            for part, suffix in (("args", ""), ("attributes", "_counter"))
        )
        if counter >= patience:
            return True
    return state["global_step"] >= max_steps if max_steps > 0 else (state["epoch"] or 0) >= epochs


def best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint of a run until this one, in the same folder; `None` if none was chosen."""
    best = json.loads((checkpoint / STATE).read_text())["best_model_checkpoint"]
    return None if best is None else checkpoint.parent / Path(best).name


def mark_complete(checkpoint: Path) -> None:
    """Make a checkpoint count: put its files on the disk, then the marker, in one step."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    for path in files:
        _to_disk(path)
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}
    unfinished = checkpoint / f"{MARKER}.tmp"
    unfinished.write_text(json.dumps(sizes, indent=2))
    _to_disk(unfinished)
    os.replace(unfinished, checkpoint / MARKER)
    _to_disk(checkpoint)


def remove_incomplete(run: str | os.PathLike) -> list[Path]:
    """Clear away what killed runs left half-written; returns what was removed."""
    incomplete = [path for path in all_checkpoints(run) if not is_complete(path)]
    for path in incomplete:
        shutil.rmtree(path)
    return incomplete


def keep_newest(run: str | os.PathLike, limit: int | None, also: set[Path]) -> None:
    """Remove the oldest complete checkpoints beyond `limit`, but none of those in `also`."""
    if limit is None or limit <= 0:
        return
    complete = [path for path in all_checkpoints(run) if is_complete(path)]
    for path in complete[:-limit]:
        if path.resolve() not in also:
            # Without its marker first: a kill in the middle must not leave half a checkpoint that counts.
            (path / MARKER).unlink()
            shutil.rmtree(path)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

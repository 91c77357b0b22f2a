"""The record of work that can be finished or resumed: for each stage its inputs, its options and the files it wrote.

The record is one JSON file. A stage that is begun again with the same inputs continues, or is skipped if its files are
as it left them; with other inputs, it is an error that lists the differences.

    job = Job(folder / "job.json")
    stage = job.begin("translate", {"input": file_digest(source), "num_beams": 4})
    if not stage.is_finished:
        translate_file(source, output, model, tokenizer)
        stage.finish([output], lines=120)
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import file_digest, read_json
from .atomic_files import write_atomically
from .errors import reraise_as_value_error

RECORDED = ("inputs", "files", "facts", "is_finished")
RESTART = "use another output, or discard the earlier work with restart"


class Job:
    """The record of a job, which is read when the object is made. Only one process may write it: see `exclusive`.

    Args:
        path: the JSON file, which is created when the first stage begins.
        advice: what to do with a record of other work, for error messages.

    Raises:
        ValueError: the file is not a record of a job.
    """

    def __init__(self, path: Path, advice: str = RESTART):
        self.path, self.advice = path, advice
        self.stages: dict[str, Stage] = self.read() if path.exists() else {}

    def begin(
        self,
        name: str,
        inputs: dict[str, Any],
        *,
        restart: bool = False,
        may_change: Callable[[str, Any, Any], bool] = lambda *_: False,
        is_used: bool = True,
    ) -> "Stage":
        """Begin a stage, or continue that of an earlier call.

        Args:
            name: the name of the stage.
            inputs: what determines the files of the stage, by name, as values of JSON.
            restart: forget the stage of an earlier call.
            may_change: whether the stage may continue with a changed input, from its name, its earlier and its current
                value.
            is_used: whether the files of a finished stage are needed; otherwise, they may be missing.

        Raises:
            ValueError: inputs have changed; the message lists them.
        """
        current = json.loads(json.dumps(inputs))  # compared as they are read
        stage = None if restart else self.stages.get(name)
        differences = {} if stage is None else changes(stage.inputs, current)
        other = {key: pair for key, pair in differences.items() if not may_change(key, *pair)}
        if other:
            listed = "; ".join(f"{key} was {was}, now {now}" for key, (was, now) in other.items())
            allowed, found = "an earlier attempt with the same inputs and options", f"one with other values ({listed})"
            raise ValueError(f"{self.path.parent} must contain {allowed}, got {found}: {self.advice}.")
        if stage is None:
            stage = self.stages[name] = Stage(self)
        elif not differences and not (stage.is_finished and is_used and stage.changed_files()):
            return stage
        stage.inputs, stage.is_finished = current, False
        self.write()
        return stage

    def read(self) -> dict[str, "Stage"]:
        """Read the stages of the record; raises a `ValueError` for another file."""
        message = f"{self.path} must be the record of a job, but it is damaged: delete it, or use another output"
        with reraise_as_value_error(message):
            stages = {name: Stage(self, **record) for name, record in read_json(self.path).items()}
            objects = [getattr(stage, name) for stage in stages.values() for name in ("inputs", "files", "facts")]
            if not all(isinstance(each, dict) for each in objects):
                raise ValueError("inputs, files and facts must be objects")
        return stages

    def write(self) -> None:
        """Write the record atomically."""
        content = {key: {name: getattr(stage, name) for name in RECORDED} for key, stage in self.stages.items()}
        write_atomically(self.path, [json.dumps(content, indent=1).encode()])


@dataclass
class Stage:
    """A stage of a job; see `Job.begin`. The record contains all attributes but the job, as values of JSON.

    Attributes:
        job: the job.
        inputs: what determines the files of the stage, by name. Digests represent files and weights.
        files: the digest of each file of the finished stage, by its path relative to the record.
        facts: what the stage has recorded about its progress or its result.
        is_finished: whether the files exist as the stage left them.
    """

    job: Job = field(repr=False)
    inputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    is_finished: bool = False

    def note(self, **facts: Any) -> None:
        """Record facts about the progress."""
        self.facts.update(facts)
        self.job.write()

    def finish(self, files: Iterable[Path] = (), **facts: Any) -> None:
        """Record that the stage is finished, and the digests of its files."""
        self.files = {os.path.relpath(path, self.job.path.parent): file_digest(path) for path in files}
        self.is_finished = True
        self.note(**facts)

    def changed_files(self) -> list[Path]:
        """The files of the finished stage that are missing or differ."""
        paths = {self.job.path.parent / name: digest for name, digest in self.files.items()}
        return [path for path, digest in paths.items() if not path.is_file() or file_digest(path) != digest]


def changes(earlier: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The earlier and the current value of each input that differs; `None` for one that is missing."""
    pairs = {name: (earlier.get(name), current.get(name)) for name in sorted({*earlier, *current})}
    return {name: (was, now) for name, (was, now) in pairs.items() if was != now}

"""The record of a resumable job: one JSON file with the stages of the job.

For each stage, the record contains the inputs, digests of the files that the stage wrote, and facts such as its result.
A later call skips finished stages. A stage that is begun again with the same inputs continues. Changed files are an
error. Changed inputs are an error that lists the differences, unless the stage has no results that would be lost.

There are two ways to work on a stage.

`Job.run` is for work that is one function. Every process of a launcher calls it, and gets the facts. Examples are the
stages of a recipe, the export to int8 and the scores of a test set:

    job = Job(folder / "job.json")
    facts = job.run("int8", {"weights": digests}, export, files)

`Job.begin` and `Stage.finish` are for work that resumes from files of its own: a training from its checkpoints, a
translation from its parts. Only the first process calls them:

    stage = job.begin("translate", {"input": file_digest(source), "num_beams": 4})
    if not stage.is_finished:
        translate_file(source, output, model, tokenizer)
        stage.finish([output], lines=120)

If the other processes need the record too, the first process calls them by `Job.update`, as `Job.run` does.

What happens depends on the stage of an earlier call:

    earlier stage                   Job.begin                           Job.run
    none                            a new stage                         runs the work
    unfinished, same inputs         the same stage                      runs the work
    unfinished, other inputs        an error, unless `may_change`       runs the work
    finished, same inputs, files    the same stage, finished            returns its facts
    finished, other inputs          an error, unless `may_change`       an error, unless `repeats_if_changed`
    finished, a missing file        the same stage, unfinished          runs the work, which must create the file
    finished, a changed file        an error                            an error

With `restart`, there is no earlier stage. Without `needs_files`, files are not examined.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .digests import file_digest
from .distributed import call_on_main_process
from .errors import reraise_as_value_error
from .files import read_json, write_json

RESTART = "use another output, or discard the earlier work with restart"


class Job:
    """The record of a job, which is read when the object is created. Only one process may write it; see `exclusive`.

    Args:
        path: the JSON file, which is created when the first stage begins.
        advice: what to do with a record of other work, for error messages.

    Raises:
        ValueError: the file is not a record of a job.
    """

    def __init__(self, path: Path, advice: str = RESTART):
        self.path = path
        self.advice = advice
        self.stages: dict[str, Stage] = self.read() if path.exists() else {}

    def begin(
        self,
        name: str,
        inputs: dict[str, Any],
        *,
        restart: bool = False,
        may_change: bool | Callable[[str, Any, Any], bool] = False,
        needs_files: bool = True,
    ) -> "Stage":
        """Begin a stage, or continue that of an earlier call.

        Args:
            name: the name of the stage.
            inputs: the values that determine the files of the stage, by name, as JSON values.
            restart: forget the stage of an earlier call, for example because it has no results that would be lost.
            may_change: whether the stage may continue with changed inputs, or a function that decides it for one input,
                from its name, its earlier and its current value.
            needs_files: whether the files of a finished stage are needed. If so, a missing file makes the stage
                unfinished. Otherwise, files may be missing or changed.

        Raises:
            ValueError: inputs have changed (the message lists them), or a file of a finished stage has changed.
        """
        current = as_read(inputs)
        if restart:
            self.stages.pop(name, None)
        stage = self.stages.setdefault(name, Stage(self, inputs=current))
        accepts = may_change if callable(may_change) else lambda *_: may_change
        differences = []
        for input_name in sorted({*stage.inputs, *current}):
            earlier = stage.inputs.get(input_name)
            value = current.get(input_name)
            if earlier != value and not accepts(input_name, earlier, value):
                differences.append(f"{input_name} was {earlier}, now {value}")
        if differences:
            raise ValueError(
                f"{self.path.parent} must contain an earlier attempt with the same inputs and options, "
                f"got one with other values ({'; '.join(differences)}): {self.advice}."
            )
        changed = stage.changed_files() if needs_files and stage.is_finished else []
        for path in changed:
            if path.exists():
                raise ValueError(f"{path} must be unchanged since the stage {name} has finished: {self.advice}.")
        if changed or not stage.is_finished or stage.inputs != current:
            stage.inputs = current
            stage.is_finished = False
            self.write()
        return stage

    def update(self, change: Callable[[], Any]) -> None:
        """Change the record in the first process; every process gets its stages."""

        def changed_stages() -> dict[str, Stage]:
            change()
            return self.stages

        self.stages = call_on_main_process(changed_stages)

    def run(
        self,
        name: str,
        inputs: dict[str, Any],
        work: Callable[[], dict[str, Any] | None],
        files: Iterable[Path] = (),
        *,
        everywhere: bool = False,
        restart: bool = False,
        repeats_if_changed: bool = False,
        needs_files: bool = True,
    ) -> dict[str, Any]:
        """Run the work of a stage, unless an earlier call has finished it with the same inputs. All processes call it.

        The inputs of an unfinished stage may change, since long work has a separate record. Missing files of a finished
        stage are created again.

        Args:
            name: the name of the stage.
            inputs: the values that determine its files.
            work: writes the files, and returns facts for the record.
            files: the files; an iterator is read after the work.
            everywhere: run the work in every process, not only in the first.
            restart: forget the stage of an earlier call.
            repeats_if_changed: run a finished stage again if the inputs have changed, which is an error by default.
            needs_files: see `begin`.

        Returns:
            The facts, in every process.

        Raises:
            ValueError: the inputs or a file of a finished stage have changed, or a file is still missing after the
                work.
        """

        restart = restart or name not in self.stages or not self.stages[name].is_finished
        begin = partial(
            self.begin, name, inputs, restart=restart, may_change=repeats_if_changed, needs_files=needs_files
        )
        self.update(begin)
        stage = self.stages[name]
        if stage.is_finished:
            return stage.facts
        earlier = [self.path.parent / file for file in stage.files]
        missing = [path for path in earlier if not path.exists()]
        facts = (work() if everywhere else call_on_main_process(work)) or {}
        self.update(lambda: self.stages[name].finish(files, **facts))
        for path in missing:
            if not path.exists():
                raise ValueError(f"{path} must be a file of the stage {name}, but it is missing: {self.advice}.")
        return self.stages[name].facts

    def has_finished(self, name: str, inputs: dict[str, Any]) -> bool:
        """Whether a stage is finished with these inputs."""
        stage = self.stages.get(name)
        return stage is not None and stage.is_finished and stage.inputs == as_read(inputs)

    def read(self) -> dict[str, "Stage"]:
        """Read the stages of the record; raises a `ValueError` for another file."""
        message = f"{self.path} must be the record of a job, but it is damaged: delete it, or use another output"
        with reraise_as_value_error(message):
            stages = {name: Stage(self, **record) for name, record in read_json(self.path).items()}
            for stage in stages.values():
                if not all(isinstance(value, dict) for value in (stage.inputs, stage.files, stage.facts)):
                    raise ValueError("inputs, files and facts must be objects")
        return stages

    def write(self) -> None:
        """Write the record atomically."""
        content = {}
        for name, stage in self.stages.items():
            content[name] = {attribute: value for attribute, value in vars(stage).items() if attribute != "job"}
        write_json(self.path, content)


@dataclass
class Stage:
    """A stage of a job; see `Job.begin`. The record contains all attributes except `job`, as JSON values.

    Attributes:
        job: the job.
        inputs: the values that determine the files of the stage, by name. Digests represent files and weights.
        files: the digest of each file of the finished stage, by its path relative to the record.
        facts: values that the stage has recorded about its progress or its result.
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
        changed = []
        for name, digest in self.files.items():
            path = self.job.path.parent / name
            if not path.is_file() or file_digest(path) != digest:
                changed.append(path)
        return changed


def as_read(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs as they are read from the record."""
    return json.loads(json.dumps(inputs))

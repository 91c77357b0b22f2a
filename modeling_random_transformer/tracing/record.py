"""The trace, and the recorder that fills it."""

import difflib
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from .steps import Step, describe


class Trace(Mapping[str, Tensor]):
    """The values that a model computed, by path, in the order of computation.

    Attributes:
        left_out: number of values skipped because of `max_memory`.
    """

    def __init__(self, config: Any, values: Mapping[str, Tensor] | None = None):
        self.config = config
        self.left_out = 0
        self._values: dict[str, Tensor] = dict(values or {})

    def __getitem__(self, path: str) -> Tensor:
        if path in self._values:
            return self._values[path]
        near = difflib.get_close_matches(path, self._values, n=3)
        raise KeyError(f"no value was recorded at {path!r}. " + (f"Similar paths: {', '.join(near)}." if near else ""))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def explain(self, path: str) -> Step:
        """Shape, formula and section of the paper of the value at a path.

        Raises:
            KeyError: no value was recorded at this path.
        """
        return describe(path, self[path], self.config)

    def step(self, index: int) -> "Trace":
        """The values of the decoder's pass `index`, under paths without `step.N.`; the first pass is 0.

        Raises:
            KeyError: there was no such pass.
        """
        paths = {path: step_and_path(path) for path in self}
        found = {paths[path][1]: value for path, value in self.items() if paths[path][0] == index}
        if not found:
            steps = sorted({step for step, _ in paths.values()})
            raise KeyError(f"step must be one of {steps}, got {index!r}.")
        return Trace(self.config, found)

    def select(self, pattern: str) -> "Trace":
        """The values whose paths match, as in `t.select("*.self_attn.head.0.weights")`."""
        return Trace(self.config, {path: value for path, value in self.items() if fnmatchcase(path, pattern)})

    def __str__(self) -> str:
        """One line per value: path, shape, formula, section."""
        steps = [self.explain(path) for path in self]
        width = max((len(step.path) for step in steps), default=0)
        return "\n".join(
            f"{step.path:{width}}  {list(step.shape)!s:18}  {step.formula}  (paper {step.section})" for step in steps
        )

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} values>"


def step_and_path(path: str) -> tuple[int, str]:
    """The index of the decoder's pass that a path belongs to, and the path within it."""
    if not path.startswith("step."):
        return 0, path
    _, index, inner_path = path.split(".", maxsplit=2)
    return int(index), inner_path


@dataclass
class Selection:
    """Layers, heads and decoder passes to record; `None` selects all."""

    layers: Collection[int] | None
    heads: Collection[int] | None
    steps: Collection[int] | None


class Recorder:
    """Fills a trace. Paths of the decoder's second and later passes start with `step.N.`."""

    def __init__(self, trace: Trace, selection: Selection, max_bytes: int):
        self.trace, self.selection = trace, selection
        self.step = 0
        self.bytes_left = max_bytes
        self.max_bytes = max_bytes
        self.started: set[str] = set()

    def start(self, stack: str) -> None:
        """Start a pass of a stack. A repeated pass, or an encoder pass after its decoder, starts a new step."""
        if stack in self.started or "decoder" in self.started:
            self.step += 1
            self.started.clear()
        self.started.add(stack)

    def wants(self, layer: int | None = None) -> bool:
        """Whether a layer, or a value outside the layers, is recorded at this step."""
        this_step = self.selection.steps is None or self.step in self.selection.steps
        return this_step and (layer is None or self.selection.layers is None or layer in self.selection.layers)

    def heads(self, count: int) -> list[int]:
        """The indices of the selected heads, of `count` heads."""
        return [head for head in range(count) if self.selection.heads is None or head in self.selection.heads]

    def __call__(self, path: str, value: Tensor) -> None:
        """Store a copy of a value if the memory limit allows it."""
        size = value.numel() * value.element_size()
        if size > self.bytes_left:
            self.leave_out()
            return
        self.bytes_left -= size
        prefix = f"step.{self.step}." if self.step else ""
        self.trace._values[prefix + path] = value.detach().clone()

    def leave_out(self) -> None:
        """Count a skipped value and warn once."""
        self.trace.left_out += 1
        if self.trace.left_out == 1:
            text = f"the trace has reached max_memory={self.max_bytes} bytes: later values are skipped."
            warnings.warn(f"{text} Select layers, heads or steps.", stacklevel=2)

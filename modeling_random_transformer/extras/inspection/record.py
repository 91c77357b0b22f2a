"""Records intermediate values: `trace`, the trace, and the recorder that fills it."""

import difflib
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from accelerate.utils import convert_file_size_to_int
from torch import Tensor
from transformers import PreTrainedModel

from .hooks import Observer, instrument
from .paths import Step, describe, find_stacks, layer_and_head, step_and_path


@contextmanager
def trace(
    model: PreTrainedModel,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    max_memory: int | str = "1GiB",
) -> Iterator["Trace"]:
    """Record what the model computes within the `with` block, using eager attention.

    All indices start at 0. Paths of the decoder's first pass have no step prefix. Paths of later passes, such as the
    next tokens of `generate()`, start with `step.1.`, `step.2.` and so on. Values are detached copies with the batch
    dimension first: `[batch, length, width]`, and per head `[batch, query_len, key_len]` for scores and weights.

    Args:
        model: a model of this package.
        layers: layers to record, in both stacks; embeddings and outputs are always recorded.
        heads: attention heads to record.
        steps: decoder passes to record; the encoder belongs to the first one.
        max_memory: limit in bytes, or a string such as `"500MB"`. Values beyond it are skipped, with a warning.

    Raises:
        ValueError: the model is not a Random Transformer, is compiled or a part of a traced one, or an index is out of
            range.
    """
    check_indices("layers", layers, max(len(stack.layers) for stack in find_stacks(model).values()))
    check_indices("heads", heads, model.config.num_heads)
    check_indices("steps", steps, None)
    recorded = Trace(model.config)
    recorder = Recorder(recorded, (steps, layers, heads), convert_file_size_to_int(max_memory))
    with instrument(model, recorder):
        yield recorded


def check_indices(name: str, numbers: Collection[int] | None, count: int | None) -> None:
    """Raise a ValueError for indices outside 0 to `count - 1`; `None` means no limit."""
    if numbers is None:
        return
    valid = range(sys.maxsize)
    description = "0 or more"
    if count is not None:
        valid = range(count)
        description = f"from 0 to {count - 1}"
    if not all(number in valid for number in numbers):
        raise ValueError(f"{name} must be {description}, got {list(numbers)}.")


class Trace(dict[str, Tensor]):
    """The values that a model computed, by path, in the order of computation.

    Attributes:
        left_out: number of values skipped because of `max_memory`.
    """

    def __init__(self, config: Any, values: Mapping[str, Tensor] | None = None):
        super().__init__(values or {})
        self.config = config
        self.left_out = 0

    def __missing__(self, path: str) -> Tensor:
        similar = difflib.get_close_matches(path, self, n=3)
        raise KeyError(f"no value was recorded at {path!r}. Similar paths: {', '.join(similar) or 'none'}.")

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
        by_step: dict[int, dict[str, Tensor]] = {}
        for path, value in self.items():
            step, path_in_step = step_and_path(path)
            by_step.setdefault(step or 0, {})[path_in_step] = value
        if index not in by_step:
            raise KeyError(f"step must be one of {sorted(by_step)}, got {index!r}.")
        return Trace(self.config, by_step[index])

    def select(self, pattern: str) -> "Trace":
        """The values whose paths match, as in `t.select("*.self_attn.head.0.weights")`."""
        return Trace(self.config, {path: value for path, value in self.items() if fnmatchcase(path, pattern)})

    def __str__(self) -> str:
        """One line per value: path, shape, formula, section."""
        width = max(map(len, self), default=0)
        lines = []
        for path in self:
            _, shape, formula, section = self.explain(path)
            lines.append(f"{path:{width}}  {list(shape)!s:18}  {formula}  (paper {section})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} values>"


class Recorder(Observer):
    """Fills a trace. Paths of the decoder's second and later passes start with `step.N.`.

    `selection` has the decoder passes, layers and heads to record; `None` selects all.
    """

    def __init__(self, trace: Trace, selection: tuple[Collection[int] | None, ...], max_bytes: int):
        super().__init__()
        self.trace = trace
        self.selection = selection
        self.bytes_left = self.max_bytes = max_bytes

    def receive(self, path: str, value: Tensor) -> None:
        """Store a copy of a value if it is selected and the memory limit allows it."""
        for numbers, index in zip(self.selection, (self.step, *layer_and_head(path)), strict=True):
            if numbers is not None and index is not None and index not in numbers:
                return
        if value.nbytes <= self.bytes_left:
            self.bytes_left -= value.nbytes
            name = f"step.{self.step}.{path}" if self.step else path
            self.trace[name] = value.detach().clone()
            return
        self.trace.left_out += 1
        if self.trace.left_out == 1:
            warnings.warn(
                f"the trace has reached max_memory={self.max_bytes} bytes: later values are skipped. "
                "Select layers, heads or steps.",
                stacklevel=2,
            )

"""Replaces intermediate values: the counterpart of `trace`, by the same paths."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...base.errors import reraise_as_value_error
from .hooks import Observer, instrument
from .paths import step_and_path

Replacement = float | Tensor | Callable[[Tensor], Tensor | float]


@contextmanager
def intervene(model: PreTrainedModel, replacements: Mapping[str, Replacement]) -> Iterator[dict[str, int]]:
    """Replace values that the model computes within the `with` block, using eager attention.

        with intervene(model, {"decoder.layers.1.encoder_attn.head.3.output": 0}):
            model.generate(**inputs, num_beams=4)  # without this head

    Later computations use the new values, and gradients flow through them. Blocks can be nested, also with `trace`,
    which records the new values.

    Args:
        model: a model of this package.
        replacements: by path, as in `trace`, with the wildcards `*`, `?` and `[…]`. A value is replaced in every pass
            of the decoder, or only in pass N if its path starts with `step.N.`. A replacement is a number or a tensor,
            which is broadcast to the value's shape, or a function of the value that returns one. Several replacements
            of a value are applied in their order. With a KV cache, the values of a pass are those of its new tokens,
            except keys, values, scores, masks and weights, which include the earlier tokens.

    Yields:
        The number of replaced values for each path of `replacements`.

    Raises:
        ValueError: the model is not a Random Transformer or is compiled, a path matches no value, or a replacement
            does not have the shape of its value.
    """
    intervention = Intervention()
    with instrument(model, intervention) as paths:
        intervention.find_values(replacements, paths)
        yield intervention.counts


class Intervention(Observer):
    """Replaces values by their paths.

    Attributes:
        counts: number of replaced values for each key of the replacements.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        # Path → the key of each replacement, its step (`None` for all steps), and the replacement.
        self._rules: dict[str, list[tuple[str, int | None, Replacement]]] = {}

    def find_values(self, replacements: Mapping[str, Replacement], paths: list[str]) -> None:
        """Find the values to replace by the paths of all values.

        Raises:
            ValueError: a path matches none of them, or a replacement has another type.
        """
        for key, replacement in replacements.items():
            if not (callable(replacement) or isinstance(replacement, (int, float, Tensor))):
                kind = type(replacement).__name__
                raise ValueError(f"replacements[{key!r}] must be a number, a tensor or a function, got {kind}.")
            self.counts[key] = 0
            step, pattern = step_and_path(key)
            matching = [path for path in paths if fnmatchcase(path, pattern)]
            if not matching:
                similar = ", ".join(difflib.get_close_matches(pattern, paths, n=3, cutoff=0))
                raise ValueError(f"replacements must have paths of this model, such as {similar}, got {pattern!r}.")
            for path in matching:
                self._rules.setdefault(path, []).append((key, step, replacement))

    def replace(self, path: str, value: Tensor) -> Tensor:
        """The new value, the same object if it is not replaced at this step."""
        for key, step, replacement in self._rules.get(path, ()):
            if step in (None, self.step):
                value = new_value(replacement, path, value)
                self.counts[key] += 1
        return value


def new_value(replacement: Replacement, path: str, value: Tensor) -> Tensor:
    """The replacement in the shape, dtype and device of the value.

    Raises:
        ValueError: it cannot be broadcast to this shape.
    """
    new = replacement
    if callable(replacement):
        new = replacement(value)
        if not isinstance(new, (int, float, Tensor)):
            raise ValueError(f"the function for {path!r} must return a tensor or a number, got {type(new).__name__}.")
    new = torch.as_tensor(new).to(value)
    with reraise_as_value_error(f"the value of {path!r} must have shape {[*value.shape]}, got {[*new.shape]}"):
        return new.expand(value.shape)

"""What records or replaces the values of a model."""

from torch import Tensor


class Observer:
    """Base of what records or replaces values by their paths, and counts passes.

    Attributes:
        step: index of the current decoder pass, from 0. The encoder belongs to the decoder pass that follows it.
        only_one: whether a model has at most one observer of this kind.
    """

    only_one = False

    def __init__(self) -> None:
        self.step = 0
        self._started: set[str] = set()

    def start(self, stack: str) -> None:
        """Start a pass of a stack. A repeated pass, or an encoder pass after its decoder, starts a new step."""
        if stack in self._started or "decoder" in self._started:
            self.step += 1
            self._started.clear()
        self._started.add(stack)

    def replace(self, path: str, value: Tensor) -> Tensor:  # noqa: ARG002
        """The new value at a path, the same object if it is not replaced at this step."""
        return value

    def record(self, path: str, value: Tensor) -> None:
        """Record the value at a path if it is selected at this step."""


class Observers(list[Observer]):
    """The observers of a model."""

    def start(self, stack: str) -> None:
        """Start a pass of a stack."""
        for observer in self:
            observer.start(stack)

    def replace(self, path: str, value: Tensor) -> Tensor:
        """The value after all interventions, the same object if there are none."""
        for observer in self:
            value = observer.replace(path, value)
        return value

    def record(self, path: str, value: Tensor) -> None:
        for observer in self:
            observer.record(path, value)

    def pass_value(self, path: str, value: Tensor) -> Tensor:
        """Replace and record a value; the same object if there are no interventions."""
        value = self.replace(path, value)
        self.record(path, value)
        return value

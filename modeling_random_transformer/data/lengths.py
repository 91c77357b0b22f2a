"""The filter of pairs by length, in characters for cleaning and in tokens for training."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ..inputs_random_transformer import check_positive

TOO_LONG = "longer than the maximum length"
UNEQUAL = "with a length ratio above the maximum"


@dataclass(frozen=True)
class LengthLimits:
    """The maximum lengths of pairs.

    Args:
        source: the maximum length of a source, in tokens including the end token, or in characters for
            `clean`; `None` for no limit.
        target: the maximum length of a target.
        ratio: the maximum ratio of the longer to the shorter side of a pair, without the end token; `None` for no
            limit.

    Raises:
        ValueError: a maximum length is not a positive integer.
    """

    source: int | None = None
    target: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        check_positive(or_none=True, source=self.source, target=self.target)

    def within(self, max_length: int | None) -> "LengthLimits":
        """The limits for a model with this number of learned positions; `None` for any number."""
        if max_length is None:
            return self
        source = min(self.source or max_length, max_length)
        target = min(self.target or max_length, max_length)
        return replace(self, source=source, target=target)

    def are_exceeded(self, source: Any, target: Any) -> Any:
        """Whether a pair is too long, from its lengths, or from arrays with the lengths of several pairs."""
        longest_source = inf if self.source is None else self.source
        longest_target = inf if self.target is None else self.target
        return (source > longest_source) | (target > longest_target)

    def is_unequal(self, source: Any, target: Any) -> Any:
        """Whether the ratio of the lengths is above the maximum; see `are_exceeded`."""
        ratio = inf if self.ratio is None else self.ratio
        return (source > ratio * target) | (target > ratio * source)


NO_LIMITS = LengthLimits()

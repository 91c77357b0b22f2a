"""Fixtures of the tests of vocabulary transfer: those of the tests of training."""

from tests.training.conftest import finished, trained

__all__ = ["finished", "trained"]

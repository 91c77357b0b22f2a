"""The package `examples/tutorials` under its installed name: the wheel contains its modules here."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "examples" / "tutorials")]

"""The arguments of commands that translate by an inference engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..export.dispatch import GENERATING
from ..export.engines import ENGINES
from .command_line import existing_file


@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """Arguments of commands that translate by an inference engine.

    Args:
        device: device, such as cpu or cuda:1 (default: an accelerator if available)
        engine: inference engine for CPUs, which computes what it supports; the model is exported to it when it is
            first used
        engine_dtype: dtype of the engine's weights (default: the fastest, int8)
        engine_folder: folder of exported models (default: engines in the folder of the model)
        engine_shortlist: vmap.txt of an export with a shortlist, for speed

    Raises:
        ValueError: arguments contradict each other.
    """

    device: str | None = None
    engine: str | None = field(default=None, metadata={"choices": GENERATING})
    engine_dtype: str | None = field(default=None, metadata={"choices": ENGINES["ctranslate2"]})
    engine_folder: Path | None = field(default=None, metadata={"metavar": "FOLDER"})
    engine_shortlist: Path | None = field(default=None, metadata={"type": existing_file})

    def __post_init__(self) -> None:
        if self.engine is not None and self.device not in (None, "cpu"):
            raise ValueError(f"--device must be cpu with --engine, got {self.device}.")
        if self.engine is None and any(self.engine_options.values()):
            raise ValueError("--engine must be given with --engine_dtype, _folder and _shortlist, got None.")
        if self.engine is not None:
            object.__setattr__(self, "device", "cpu")

    @property
    def engine_options(self) -> dict[str, Any]:
        """The arguments of `load_models`."""
        return {name: value for name, value in vars(self).items() if name.startswith("engine")}

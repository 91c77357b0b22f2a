"""The interface of inference engines for `generate()`. The engines are extras, which are imported by name."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from ..base import ENGINES, load_extra
from ..base.errors import reraise_as_value_error
from ..base.files import StrPath
from ..inputs_random_transformer import check_choice


def attach_engine(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: StrPath,
    engine: str = "ctranslate2",
    dtype: str | None = None,
    shortlist: StrPath | None = None,
) -> None:
    """Let an engine compute `model.generate()` if the result is the same. Otherwise, the reason is logged.

    The engine becomes `model.engine`. Its method `generate` returns `None` for calls that the model must compute.

    Args:
        model: the model, on the CPU. If it cannot be exported, it is not changed.
        tokenizer: its tokenizer.
        folder: the folder of exported models.
        engine: `"ctranslate2"`.
        dtype: dtype of the engine's weights; `None` for the fastest one.
        shortlist: the file `vmap.txt` of an export with a lexical shortlist.

    Raises:
        ValueError: the engine is unknown or not installed, or does not support the dtype; or the folder cannot be
            written, or the shortlist cannot be read.
    """
    import_engine(engine).attach(model, tokenizer, folder, dtype, shortlist)


def import_engine(engine: str) -> Any:
    """Import the module of an engine.

    Raises:
        ValueError: the engine is unknown or not installed.
    """
    check_choice(ENGINES, engine=engine)
    with reraise_as_value_error(f"engine {engine!r} must be installed: pip install 'random-transformer[{engine}]'"):
        return load_extra(ENGINES[engine])

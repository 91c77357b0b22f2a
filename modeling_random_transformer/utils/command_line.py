"""What the command lines of the scripts have in common. It imports nothing that takes long
before the arguments are known to be good."""

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MODEL_TYPE = "random_transformer"

# Where torchao is installed, transformers imports it, and each time it tells which of its kernels this machine has not.
for noisy in ("torchao", "torch.utils._pytree"):
    logging.getLogger(noisy).setLevel(logging.ERROR)


class Parser(argparse.ArgumentParser):
    def __init__(self, script: str, description: str | None):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=script, description=description, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage."""
        complain(self.prog, message)
        sys.exit(2)


def run_script(main: Callable[[], int]) -> NoReturn:
    """Exit with the status of `main`; with 130 after Ctrl-C and 143 after SIGTERM, once partial output is removed.

    Python runs no cleanup when a process dies by a signal. As an exception, SIGTERM ends `with` and `try` blocks first.
    """

    def stop(number: int, _: Any) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the cleanup
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def complain(script: str, message: str) -> None:
    print(f"{script}: error: {message}", file=sys.stderr)


def described_error(error: Exception) -> str:
    """The error in one line; of the operating system's errors, with the path if it is known."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return " ".join(str(error).split("\n"))


def model_folder(text: str) -> Path:
    """The type of an argument that names a saved model, or an adapter for one, with its tokenizer."""
    folder = Path(text)
    for names in (("config.json", "adapter_config.json"), ("tokenizer_config.json",)):
        if not any((folder / name).is_file() for name in names):
            raise argparse.ArgumentTypeError(
                f"must be a folder with a saved model and its tokenizer, got {text!r} without {names[0]}."
            )
    return folder


def own_model_folder(text: str) -> Path:
    """A folder whose configuration is one of ours."""
    folder = model_folder(text)
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"must hold a whole model, got {text!r} with an adapter: merge it first (docs/small_models.md)."
        )
    try:
        kind = json.loads((folder / "config.json").read_bytes()).get("model_type")
    except (ValueError, AttributeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must hold a config.json that can be read, got {text!r}: {error}.") from error
    if kind != MODEL_TYPE:
        raise argparse.ArgumentTypeError(f"must hold a model of type {MODEL_TYPE!r}, got {text!r} of type {kind!r}.")
    return folder


def check_finite(model: Any) -> None:
    """Raise an error for weights with which a model can only compute NaN. Takes one pass over the weights.

    Raises:
        FloatingPointError: a weight holds NaN, or an infinity that is not the -inf of a token never to be chosen.
    """
    for name, weight in model.state_dict().items():
        if not weight.is_floating_point() or weight.is_meta:
            continue
        allowed = weight.isfinite()
        if name.endswith(("lm_head.bias", "final_logits_bias")):
            allowed |= weight.isneginf()
        if not allowed.all():
            raise FloatingPointError(f"the model's weights must be finite, but {name} holds NaN or infinity.")


def input_file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"must be a file that exists, got {text!r}.")
    return Path(text)


def saved_translator(folder: Path) -> tuple[Any, Any]:
    """The model of such a folder, on the CPU in float32, and its tokenizer.

    Raises:
        ValueError: one of the two cannot be read, or weights are missing.
    """
    from modeling_random_transformer.translation.loading import load_translator

    try:
        return load_translator(folder, "float32")
    except ValueError as error:
        raise ValueError(f"FOLDER must hold a model and its tokenizer, got {folder}: {error}") from error

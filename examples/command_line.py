"""What the command lines of several scripts have in common. It imports nothing that takes long."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage."""
        complain(self.prog, message)
        sys.exit(2)


def complain(script: str, message: str) -> None:
    print(f"{script}: error: {message}", file=sys.stderr)


def model_folder(text: str) -> Path:
    """The type of an argument that names a saved model with its tokenizer."""
    for name in ("config.json", "tokenizer_config.json"):
        if not (Path(text) / name).is_file():
            raise argparse.ArgumentTypeError(
                f"must be a folder with a saved model and its tokenizer, got {text!r} without {name}."
            )
    return Path(text)

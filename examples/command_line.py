"""What the command lines of several scripts have in common. It imports nothing that takes long."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def __init__(self, script: str, description: str | None):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=script, description=description, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage."""
        complain(self.prog, message)
        sys.exit(2)


def complain(script: str, message: str) -> None:
    print(f"{script}: error: {message}", file=sys.stderr)


def model_folder(text: str) -> Path:
    """The type of an argument that names a saved model, or an adapter for one, with its tokenizer."""
    folder = Path(text)
    for names in (("config.json", "adapter_config.json"), ("tokenizer_config.json",)):
        if not any((folder / name).is_file() for name in names):
            raise argparse.ArgumentTypeError(
                f"must be a folder with a saved model and its tokenizer, got {text!r} without {names[0]}."
            )
    return folder

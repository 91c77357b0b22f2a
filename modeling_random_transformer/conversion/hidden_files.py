"""Hidden files, which no conversion reads."""

from pathlib import PurePath


def is_hidden(path: PurePath) -> bool:
    """Whether a file is hidden, such as the AppleDouble files `._<name>` that macOS adds to archives."""
    return path.name.startswith(".")

"""Digests of files."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """Size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}"

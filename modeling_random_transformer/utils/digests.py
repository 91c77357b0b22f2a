"""Digests of files and folders."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """Size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}"


def folder_version(folder: Path) -> str:
    """SHA-256 of the resolved path of a folder and of the names, sizes and modification times of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    status = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((str(folder.resolve()), status)).encode()).hexdigest()

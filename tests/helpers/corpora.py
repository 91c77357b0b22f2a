"""Small parallel corpora in every file format, with valid and invalid lines."""

import json
from pathlib import Path
from typing import Any

from modeling_random_transformer.data.sources import ParallelText

PAIRS = [("one dog", "un perro"), ("two  dogs", "dos  perros"), ("a cat\u2028here", "un gato\x0baquí"), ("¿?", "…")]


def write_pairs(folder: Path, file_format: str, pairs: list[tuple[str, str]] = PAIRS) -> ParallelText:
    """Write a corpus as `"aligned"` files, `"tsv"` or `"jsonl"`."""
    if file_format == "aligned":
        for name, side in (("a.en", 0), ("a.es", 1)):
            (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8", newline="")
        return ParallelText(folder / "a.en", folder / "a.es")
    if file_format == "tsv":
        rows = [f"{source}\t{target}\r\n" for source, target in pairs]
    else:
        rows = [json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs]
    (folder / f"a.{file_format}").write_text("".join(rows), encoding="utf-8", newline="")
    return ParallelText(folder / f"a.{file_format}")


def read_pairs(*files: Path | str, **options: Any) -> list[tuple[str, str]]:
    """The texts of all lines of a `ParallelText` with these arguments, valid or not."""
    return [(line.source, line.target) for line in ParallelText(*files, **options).lines()]


def write_invalid_lines(folder: Path) -> ParallelText:
    """Write six lines, of which only the first is valid."""
    (folder / "a.en").write_bytes(b"good\n\ncaf\xe9\n  \nlonely\nmore\n")
    (folder / "a.es").write_bytes("bueno\nvacío\ncafé\nblanco\n\n \n".encode())
    return ParallelText(folder / "a.en", folder / "a.es")

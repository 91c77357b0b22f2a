"""Folders and checkpoints that try to run code where they are loaded."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

TRACE = "trace"  # a file that the code would write
EVIL_MAP = {"AutoConfig": "evil.Evil", "AutoModelForSeq2SeqLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


def hostile(original: Path, folder: Path, file: str, changes: dict[str, Any]) -> Path:
    """A copy of a folder with these values in a file, and a module that writes the file `trace` when it is imported."""
    shutil.copytree(original, folder)
    path = folder / file
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))
    (folder / "evil.py").write_text(f"open({str(folder / TRACE)!r}, 'w')\nclass Evil: pass\n")
    return folder


class Evil:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, trace: Path):
        self.command = f"touch {trace}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)

"""Exports of models that are kept beside their files, and are made again if they are incomplete."""

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...base.digests import file_digest, model_digest
from ...base.files import read_json, write_json
from ...inputs_random_transformer import tokenizer_languages
from .compare import check_equal
from .ctranslate2 import model_scores
from .engines import export_model

ENGINE = "ctranslate2"
RECORD = "export.json"  # the digests of the files of an export, and the scores of the model that was exported
# The code of the export. Whether the model still computes what was exported is compared by scores.
CODE = [Path(__file__).with_name(f"{name}.py") for name in ("compare", "ctranslate2", "engines", "search")]


def cached_export(
    model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, *, dtype: str, shortlist: bytes | None
) -> Path:
    """The folder of an exported model, which is created unless the same model was exported before.

    Its name contains a digest of weights, configuration, vocabulary, shortlist and the code of the export.

    Raises:
        ValueError: the engine does not support the model, or the model does not compute what was exported.
        OSError: the folder cannot be written.
    """
    digest = hashlib.sha256(model_digest(model, tokenizer).encode())
    digest.update(b"" if shortlist is None else hashlib.sha256(shortlist).digest())
    digest.update(metadata.version(ENGINE).encode())
    for file in CODE:
        digest.update(file.read_bytes())
    path = folder / f"{ENGINE}-{dtype}-{digest.hexdigest()[:16]}"
    if not is_complete(path):
        os.makedirs(folder, exist_ok=True)
        with locked(folder) as is_locked:
            if is_locked:  # otherwise another process may be writing them
                remove_abandoned(folder)
            if not is_complete(path):
                export(model, tokenizer, path, dtype, shortlist)
    expected = torch.tensor(read_json(path / RECORD)["scores"])
    # The code may have been edited since the export, in a file or in memory.
    check_equal("its export", model_scores(model), expected)
    return path


def export(model: Any, tokenizer: PreTrainedTokenizerBase, path: Path, dtype: str, shortlist: bytes | None) -> None:
    """Export a model to a folder that replaces an incomplete one, with a record of its files and its scores."""
    exported = copy.deepcopy(tokenizer)
    languages = tokenizer_languages(tokenizer)
    if languages and tokenizer.tgt_lang is None:
        exported.tgt_lang = languages[0]  # any of them: the target language is given to `generate()`
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        export_model(model, exported, scratch, engine=ENGINE, dtype=dtype, shortlist=shortlist)
        write_record(scratch, model_scores(model))
        if path.exists():
            shutil.rmtree(path)
        os.replace(scratch, path)
    except OSError:
        if not is_complete(path):  # without locks, another process may have exported the same model
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_record(folder: Path, scores: Tensor) -> None:
    """Write the record of an export, by which a file that is lost after it is noticed."""
    files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
    write_json(folder / RECORD, {"files": files, "scores": scores.tolist()})


def is_complete(folder: Path) -> bool:
    """Whether a folder contains the files of an export, as they were written."""
    try:
        files = json.loads((folder / RECORD).read_bytes())["files"]
        return all(file_digest(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def remove_abandoned(folder: Path) -> None:
    """Remove temporary exports of processes that were killed. The folder must be locked."""
    for path in folder.glob(f".*{ENGINE}-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for one process, which waits for others. Yields `False` where the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)  # closing it releases the lock
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)

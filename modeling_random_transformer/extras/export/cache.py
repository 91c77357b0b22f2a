"""Exports of models that are cached in the model's folder, and created again if they are incomplete."""

import copy
import shutil
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ...base.digests import bytes_digest, file_digest, json_digest, model_digest
from ...base.distributed import in_turn
from ...base.files import remove_if_empty
from ...base.jobs import Job, Stage
from ...inputs_random_transformer import tokenizer_languages
from .compare import check_equal
from .ctranslate2 import model_scores
from .engines import export_model

ENGINE = "ctranslate2"
EXPORT_LOCK, EXPORT_RECORD = ".lock", "export.json"
STAGE = "export"  # the stage of the record: digests of the files, and scores of the exported model
# The code of the export. Whether the model still computes what was exported is compared by scores.
EXPORTER_FILES = [Path(__file__).with_name(f"{name}.py") for name in ("compare", "ctranslate2", "engines", "search")]


def cached_export(
    model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, *, dtype: str, shortlist: bytes | None
) -> Path:
    """The folder of an exported model, which is created unless the same model was exported before.

    Its name contains a digest of weights, configuration, vocabulary, shortlist and the code of the export.

    Raises:
        ValueError: the engine does not support the model, or the model does not compute what was exported.
        OSError: the folder cannot be written.
    """
    shortlist_digest = None if shortlist is None else bytes_digest(shortlist)
    code = [*map(file_digest, EXPORTER_FILES), metadata.version(ENGINE)]
    digest = json_digest([model_digest(model, tokenizer), shortlist_digest, code])
    path = folder / f"{ENGINE}-{dtype}-{digest[:16]}"
    stage = finished_export(path)
    if stage is None:
        folder.mkdir(parents=True, exist_ok=True)
        with in_turn(folder / EXPORT_LOCK):
            stage = finished_export(path) or export(model, tokenizer, path, dtype, shortlist)
    expected = torch.tensor(stage.facts["scores"])
    # The code may have been edited since the export, in a file or in memory.
    check_equal("its export", model_scores(model), expected)
    return path


def finished_export(path: Path) -> Stage | None:
    """The record of an export, if its files are as they were written."""
    with suppress(ValueError):  # a damaged record
        stage = Job(path / EXPORT_RECORD).stages.get(STAGE)
        if stage is not None and stage.is_finished and not stage.changed_files():
            return stage
    return None


def export(model: Any, tokenizer: PreTrainedTokenizerBase, path: Path, dtype: str, shortlist: bytes | None) -> Stage:
    """Export a model to a folder, and record its files and its scores. An incomplete export is removed."""
    exported = copy.deepcopy(tokenizer)
    languages = tokenizer_languages(tokenizer)
    if languages and tokenizer.tgt_lang is None:
        exported.tgt_lang = languages[0]  # any of them: the target language is given to `generate()`
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        export_model(model, exported, path, engine=ENGINE, dtype=dtype, shortlist=shortlist)
    finally:
        remove_if_empty(path)
    files = sorted(path.iterdir())
    stage = Job(path / EXPORT_RECORD).begin(STAGE, {})
    stage.finish(files, scores=model_scores(model).tolist())
    return stage

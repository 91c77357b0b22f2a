"""Exports that are kept: one per model, made again if they are damaged."""

import errno
import json
import os

import pytest
import torch
from filelock import FileLock

from modeling_random_transformer.extras.export import cache
from modeling_random_transformer.extras.export.cache import finished_export
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.engine import attach_engine
from tests.helpers.engines import SHORT, TEXTS, exportable, needs

pytestmark = needs("ctranslate2")


def test_cache_has_one_folder_per_model_and_dtype(saved, tmp_path):
    model, tokenizer = exportable()
    for dtype in ("float32", "float32", None):
        attach_engine(model, tokenizer, tmp_path / "new" / "engines", dtype=dtype)
    with torch.no_grad():
        model.lm_head.bias[5] += 1
    attach_engine(model, tokenizer, tmp_path / "new" / "engines", dtype="float32")
    names = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "new" / "engines").glob("c*"))
    assert names == ["ctranslate2-float32", "ctranslate2-float32", "ctranslate2-int8"]
    assert [path.name.rpartition("-")[0] for path in (saved / "engines").glob("c*")] == ["ctranslate2-float32"]


@pytest.fixture
def cached(tmp_path):
    """A model, its tokenizer, and the folder of its export."""
    model, tokenizer = exportable()
    attach_engine(model, tokenizer, tmp_path, dtype="float32")
    [path] = tmp_path.glob("c*")
    return model, tokenizer, path


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


DAMAGES = {
    "truncated weights": lambda path: truncate(path / "model.bin"),
    "no weights": lambda path: (path / "model.bin").unlink(),
    "no record": lambda path: (path / "export.json").unlink(),
    "truncated record": lambda path: truncate(path / "export.json"),
    "another record": lambda path: (path / "export.json").write_text("[]"),
    "an empty vocabulary": lambda path: (path / "shared_vocabulary.json").write_bytes(b""),
    "an empty folder": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_export_is_made_again(name, cached):
    model, tokenizer, path = cached
    expected = translate(TEXTS, model, tokenizer, **SHORT)
    DAMAGES[name](path)
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert finished_export(path) is not None
    assert translate(TEXTS, model, tokenizer, **SHORT) == expected
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, ".lock"}


def test_what_a_killed_process_has_left_is_removed(cached):
    model, tokenizer, path = cached
    (path / ".abcd" / "folder").mkdir(parents=True)
    (path / "export.json").unlink()
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert not (path / ".abcd").exists()


def test_a_record_of_an_earlier_version_is_made_again(cached):
    model, tokenizer, path = cached
    record = path / "export.json"
    stage = json.loads(record.read_text())["export"]
    record.write_text(json.dumps({"files": stage["files"], "scores": stage["facts"]["scores"]}))
    assert finished_export(path) is None
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert finished_export(path).facts == stage["facts"]


def test_a_finished_export_is_used_in_a_folder_that_cannot_be_written(cached, monkeypatch):
    model, tokenizer, path = cached
    monkeypatch.setattr(cache, "export", None)
    monkeypatch.setattr(cache, "in_turn", None)
    (path.parent / ".lock").unlink()
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert not (path.parent / ".lock").exists()


def test_without_locks_the_model_is_exported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(FileLock, "acquire", raise_no_locks)
    model, tokenizer = exportable()
    attach_engine(model, tokenizer, tmp_path)
    assert model.engine is not None
    assert "is on a file system without locks" in caplog.text


def raise_no_locks(*_, **__):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("file", cache.EXPORTER_FILES, ids=lambda file: file.name)
def test_code_is_part_of_the_digest(file, cached, monkeypatch, tmp_path_factory):
    model, tokenizer, path = cached
    changed = tmp_path_factory.mktemp("changed") / "code.py"
    changed.write_bytes(file.read_bytes() + b"# changed")
    monkeypatch.setattr(cache, "EXPORTER_FILES", [changed if name == file else name for name in cache.EXPORTER_FILES])
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert len([*path.parent.glob("c*")]) == 2

"""Exports that are kept: one per model, made again if they are damaged."""

import errno
import os
import shutil

import pytest
import torch

from modeling_random_transformer.extras.export import cache
from modeling_random_transformer.extras.export.cache import is_complete
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
    names = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "new" / "engines").iterdir())
    assert names == ["ctranslate2-float32", "ctranslate2-float32", "ctranslate2-int8"]
    assert [path.name.rpartition("-")[0] for path in (saved / "engines").iterdir()] == ["ctranslate2-float32"]


@pytest.fixture
def cached(tmp_path):
    """A model, its tokenizer, and the folder of its export."""
    model, tokenizer = exportable()
    attach_engine(model, tokenizer, tmp_path, dtype="float32")
    [path] = tmp_path.iterdir()
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
    assert is_complete(path)
    assert translate(TEXTS, model, tokenizer, **SHORT) == expected
    assert [*path.parent.iterdir()] == [path]


def test_temporary_exports_of_killed_processes_are_removed(cached):
    model, tokenizer, path = cached
    for name in (f".{path.name}.1234", f"..{path.name}.1234.abcd", f".{path.name}.abcd"):
        (path.parent / name / "folder").mkdir(parents=True)
    (path.parent / ".git").mkdir()
    (path / "export.json").unlink()
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, ".git"}


def test_without_locks_two_processes_export_at_once(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", raise_no_locks)
    model, tokenizer = exportable()
    write_record = cache.write_record

    def slower(folder, scores):
        write_record(folder, scores)
        shutil.copytree(folder, tmp_path / folder.name.removeprefix(".").rpartition(".")[0])  # by another process

    monkeypatch.setattr(cache, "write_record", slower)
    monkeypatch.setattr(cache.shutil, "rmtree", lambda *_, **__: None)  # it ends between the check and the rename
    attach_engine(model, tokenizer, tmp_path)
    assert model.engine is not None


def raise_no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("file", cache.CODE, ids=lambda file: file.name)
def test_code_is_part_of_the_digest(file, cached, monkeypatch, tmp_path_factory):
    model, tokenizer, path = cached
    changed = tmp_path_factory.mktemp("changed") / "code.py"
    changed.write_bytes(file.read_bytes() + b"# changed")
    monkeypatch.setattr(cache, "CODE", [changed if name == file else name for name in cache.CODE])
    attach_engine(model, tokenizer, path.parent, dtype="float32")
    assert len([*path.parent.iterdir()]) == 2

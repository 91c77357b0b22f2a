"""The folder of an interrupted translation."""

import pytest

from modeling_random_transformer.inference import translate_file
from modeling_random_transformer.inference import translation_files as files
from tests.helpers.interruption import interrupt_at
from tests.helpers.translation import some_texts

OPTIONS = {"chunk_size": 4, "max_new_tokens": 4, "num_beams": 1}
FOREIGN = ("notes.txt", "data.tmp", "00000000.bak", "0.txt", "00000003.txt", "job.json.old")

pytestmark = pytest.mark.usefixtures("_state_on_cpu")


@pytest.fixture
def parts(tmp_path):
    return tmp_path / "output.txt.parts"


@pytest.fixture
def stopped(tmp_path, translator, tokenizer, monkeypatch):
    """A function that resumes a translation which was interrupted after two of four parts."""
    source = tmp_path / "source.txt"
    source.write_text("\n".join(some_texts(16)))

    def resume(**options):
        translate_file(source, tmp_path / "output.txt", translator, tokenizer, **{**OPTIONS, **options})
        return (tmp_path / "output.txt").read_text()

    with monkeypatch.context() as patch:
        interrupt_at(3, files, "candidate_lines", patch)
        with pytest.raises(KeyboardInterrupt):
            resume()
    return resume


@pytest.mark.parametrize("restart", [True, False])
def test_foreign_files_are_kept(stopped, parts, restart):
    """Also after the translation is complete."""
    (parts / "folder").mkdir()
    for name in FOREIGN:
        (parts / name).write_text(f"mine: {name}")
    (parts / "00000003.0123abcd.txt.0123abcd.tmp").write_text("of a kill")
    output = stopped(restart=restart)
    assert output.count("\n") == 16
    assert "mine" not in output
    assert sorted(path.name for path in parts.iterdir()) == sorted([*FOREIGN, "folder"])
    assert all((parts / name).read_text() == f"mine: {name}" for name in FOREIGN)


def test_restart_with_fewer_chunks_deletes_all_parts(stopped, parts):
    assert stopped(restart=True, chunk_size=16).count("\n") == 16
    assert not parts.exists()


@pytest.mark.parametrize("restart", [True, False])
def test_files_with_a_damaged_record_are_kept(stopped, parts, restart):
    before = (parts / "job.json").read_bytes()
    (parts / "job.json").write_text("[1]")
    files = {path.name: path.read_bytes() for path in parts.iterdir()}
    with pytest.raises(ValueError, match=r"job.json must be the record of a job, but it is damaged: delete it, or"):
        stopped(restart=restart)
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == files
    (parts / "job.json").write_bytes(before)
    assert stopped().count("\n") == 16

"""The record of a job: stages that continue, are skipped or are an error."""

import json

import pytest

from modeling_random_transformer.base import jobs
from modeling_random_transformer.base.digests import file_digest
from modeling_random_transformer.base.jobs import Job

INPUTS = {"input": "3 bytes", "num_beams": 4, "options": {"seed": (1, 2)}}


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "out" / "lines.txt"
    path.parent.mkdir()
    path.write_text("a line")
    return path


def begin(output, inputs=INPUTS, **options):
    return Job(output.parent / "job.json").begin("translate", inputs, **options)


def test_finished_stage_is_skipped_and_keeps_its_facts(output):
    stage = begin(output)
    assert not stage.is_finished
    stage.note(chunks=1)
    assert not begin(output).is_finished
    begin(output).finish([output], lines=1)
    again = begin(output)
    assert again.is_finished
    assert again.facts == {"chunks": 1, "lines": 1}
    [stage] = json.loads((output.parent / "job.json").read_text()).values()
    assert list(stage) == ["inputs", "files", "facts", "is_finished"]


def test_missing_files_are_made_again_and_changed_ones_are_an_error(output):
    begin(output).finish([output])
    output.write_text("other")
    with pytest.raises(ValueError, match=r"lines\.txt must be unchanged since the stage translate has finished"):
        begin(output)
    assert begin(output, needs_files=False).is_finished
    output.unlink()
    assert not begin(output).is_finished


def test_the_files_of_a_finished_stage_are_read_once(output, monkeypatch):
    record = output.parent / "job.json"
    Job(record).run("translate", {}, lambda: None, [output])
    digests = []
    monkeypatch.setattr(jobs, "file_digest", lambda path: digests.append(path) or file_digest(path))
    Job(record).run("translate", {}, lambda: None, [output])
    assert len(digests) == 1


def test_a_changed_file_outside_of_the_folder_is_noticed(output, tmp_path):
    outside = tmp_path / "other.txt"
    outside.write_text("b")
    begin(output).finish([output, outside])
    assert begin(output).is_finished
    outside.write_text("c")
    assert begin(output, needs_files=False).changed_files() == [output.parent / "../other.txt"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (INPUTS | {"num_beams": 2}, "num_beams was 4, now 2"),
        (INPUTS | {"do_sample": True}, "do_sample was None, now True"),
        ({"input": "4 bytes", "num_beams": 4}, r"input was 3 bytes, now 4 bytes; options was \{.*\}, now None"),
    ],
)
def test_other_inputs_are_an_error_unless_restarted(output, inputs, message):
    begin(output).finish([output], lines=1)
    before = (output.parent / "job.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        begin(output, inputs)
    assert (output.parent / "job.json").read_bytes() == before
    assert not begin(output, inputs, restart=True).is_finished
    assert not begin(output, inputs).facts


def test_inputs_that_may_change_continue_the_stage(output):
    begin(output, {"steps": 10}).finish([output], lines=1)

    def longer(name, was, now):
        return name == "steps" and was < now

    stage = begin(output, {"steps": 20}, may_change=longer)
    assert not stage.is_finished
    assert stage.facts == {"lines": 1}
    with pytest.raises(ValueError, match="steps was 20, now 10"):
        begin(output, {"steps": 10}, may_change=longer)


def test_inputs_of_work_that_has_failed_may_change(output):
    def fail():
        raise FloatingPointError

    record = output.parent / "job.json"
    with pytest.raises(FloatingPointError):
        Job(record).run("translate", {"steps": 10}, fail)
    with pytest.raises(ValueError, match="steps was 10, now 5"):
        begin(output, {"steps": 5})
    assert Job(record).run("translate", {"steps": 5}, lambda: {"lines": 1}, [output]) == {"lines": 1}


def test_a_stage_runs_once_and_again_with_inputs_that_may_change(output):
    record, calls = output.parent / "job.json", []

    def work():
        calls.append(None)
        return {"lines": len(calls)}

    for expected, steps, options in (
        (1, 1, {}),
        (1, 1, {}),
        (2, 2, {"repeats_if_changed": True}),
        (3, 3, {"restart": True}),
    ):
        assert Job(record).run("translate", {"steps": steps}, work, [output], **options) == {"lines": expected}
    with pytest.raises(ValueError, match=r"steps was 3, now 1.*: use another output, or discard the earlier work"):
        Job(record).run("translate", {"steps": 1}, work, [output])
    output.unlink()
    assert Job(record).run("translate", {"steps": 3}, work, needs_files=False) == {"lines": 3}


def test_a_missing_file_of_a_stage_is_made_again_and_a_changed_one_is_an_error(output):
    record = output.parent / "job.json"
    Job(record).run("translate", {}, lambda: None, [output])
    output.write_text("edited")
    with pytest.raises(ValueError, match=r"must be unchanged since the stage translate has finished"):
        Job(record).run("translate", {}, output.unlink, [output])
    assert output.read_text() == "edited"
    output.unlink()
    Job(record).run("translate", {}, lambda: output.write_text("a line") and None, [output])
    output.unlink()
    with pytest.raises(ValueError, match=r"must be a file of the stage translate, but it is missing: another folder"):
        Job(record, "another folder").run("translate", {}, lambda: None, output.parent.glob(output.name))


@pytest.mark.parametrize(
    "content", ["", "[]", "7", '{"a": 7}', '{"a": {"b": 1}}', '{"a": {"inputs": []}}', "[" * 100000]
)
def test_damaged_record_is_an_error(tmp_path, content):
    path = tmp_path / "job.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"job\.json must be the record of a job, but it is damaged: delete it"):
        Job(path)

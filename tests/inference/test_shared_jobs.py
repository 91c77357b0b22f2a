"""The parts of an output, which the processes of one launcher write."""

import json

import pytest
from filelock import FileLock

from modeling_random_transformer.inference.translation_files import Parts, open_parts

LINES, CHUNK = 35, 3
INPUTS = {"lines": LINES, "chunk_size": CHUNK, "input": "digest"}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output.txt"


def begin(output, rank=0, world=1, inputs=INPUTS, restart=False):
    parts = Parts(output, CHUNK, rank, world)
    parts.folder.mkdir(exist_ok=True)
    parts.lock.touch()
    parts.lines, parts.missing = parts.begin(inputs, restart)
    return parts


@pytest.mark.parametrize("world", [1, 2, 5, 20])
def test_every_line_belongs_to_one_process(output, world):
    processes = [Parts(output, CHUNK, rank, world) for rank in range(world)]
    begin(output)
    for parts in processes:
        parts.lines, parts.missing = LINES, list(range(12))
        for number, lines in parts.own(map(str, range(LINES)), "input"):
            parts.write(number, lines)
    assert sum(parts.share for parts in processes) == LINES
    processes[0].finish()
    assert output.read_text() == "".join(f"{index}\n" for index in range(LINES))
    assert list(output.parent.iterdir()) == [output]


def test_only_missing_chunks_are_distributed(output):
    begin(output).write(4, ["a", "b", "c"])
    parts = begin(output, rank=1, world=2)
    assert parts.missing == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert parts.mine == [1, 3, 6, 8, 10]
    assert parts.share == 15


@pytest.mark.parametrize("count", [5, 30])
def test_an_input_that_has_become_shorter(output, count):
    with pytest.raises(ValueError, match="input must not change while it is read, but has become shorter"):
        list(begin(output).own(range(count), "input"))


@pytest.mark.usefixtures("_state_on_cpu")
def test_a_second_call_is_an_error(output):
    parts = begin(output)
    with (
        FileLock(parts.lock),
        pytest.raises(ValueError, match=r"output_file must not be in use, got .*output.txt' with another call"),
        open_parts(output, lambda: dict(INPUTS), "cpu", CHUNK, restart=True),
    ):
        pass
    assert json.loads(parts.record.read_bytes())["lines"]["inputs"] == INPUTS

"""The parts of an output, which the processes of one launcher write."""

from types import SimpleNamespace

import pytest
from filelock import FileLock

from modeling_random_transformer.inference import translation_files as files

ITEMS = [str(index) for index in range(35)]


@pytest.fixture
def output(tmp_path, monkeypatch):
    """An output that three processes write, which run after each other: each waits for none of the others."""
    monkeypatch.setattr(files, "process_state", process_state)
    monkeypatch.setattr(files, "call_on_main_process", lambda function: function())
    monkeypatch.setattr(files.Parts, "finish", lambda *_: None)
    return tmp_path / "output.txt"


def process_state(rank):
    return SimpleNamespace(num_processes=3, process_index=rank, is_main_process=rank == 0)


def write(output, rank, process=lambda items, *_: items, readings=(ITEMS, ITEMS)):
    texts = iter(readings)
    work = SimpleNamespace(source="in.txt", output=output, model=SimpleNamespace(device=rank), unit="text")
    work.read = lambda: iter(next(texts))
    work.describe = lambda: {"model": "digest"}
    work.lines = process
    files.write_in_parts(work, chunk_size=3, restart=False, progress=False)


@pytest.mark.usefixtures("_state_on_cpu")
class TestProcesses:
    def test_missing_chunks_are_distributed(self, output):
        written = []

        def process(items, first, _):
            assert items == ITEMS[first : first + 3]
            written.append(first // 3)
            return items

        for rank in (0, 0, 1):
            write(output, rank, process)
        assert written == [0, 3, 6, 9, 1, 5, 10, 4, 11]
        parts = files.Parts(output, {}, []).folder
        assert sorted(path.name[:8] for path in parts.glob("*.txt")) == [f"{n:08}" for n in sorted(written)]

    @pytest.mark.parametrize("changed", [ITEMS[:5], [*ITEMS[:-1], "x"]])
    def test_an_input_that_changes(self, output, changed):
        with pytest.raises(ValueError, match=r"the input must not change while .*output.txt is written"):
            write(output, 2, readings=(ITEMS, changed))

    def test_a_second_call_is_an_error(self, output):
        write(output, 0)
        message = r"output_file must not be in use, got .*output.txt' with another call"
        with FileLock(files.Parts(output, {}, []).lock_file), pytest.raises(ValueError, match=message):
            write(output, 0)

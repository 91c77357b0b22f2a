"""Processing of streams in chunks, under a progress bar."""

import pytest

from modeling_random_transformer.base.progress import process_stream, progress_bar


def doubled(chunk, first, count):
    count(len(chunk))
    return [(first, 2 * item) for item in chunk]


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 7])
def test_results_are_in_order(chunk_size):
    results = list(process_stream(range(5), doubled, chunk_size, progress=False, total=5))
    assert [value for _, value in results] == [0, 2, 4, 6, 8]
    assert [first for first, _ in results] == [i - i % chunk_size for i in range(5)]


def test_one_chunk_at_a_time_is_read():
    read = []

    def items():
        for i in range(10):
            read.append(i)
            yield i

    results = process_stream(items(), doubled, 2, progress=False, total=0)
    assert read == []
    assert next(results) == (0, 0)
    assert len(read) <= 3


def test_the_size_of_chunks_is_checked_before_the_first_result():
    with pytest.raises(ValueError, match="chunk_size must be a positive integer, got 0"):
        process_stream([], doubled, 0, progress=False, total=0)


@pytest.mark.parametrize("total", [None, 0, 3])
def test_the_bar_counts_items(total, capsys):
    with progress_bar(total, shown=True, unit="pair") as bar:
        bar.update(3)
        bar.refresh()
    shown = capsys.readouterr().err
    assert "3/3" in shown if total else "3pair" in shown


@pytest.mark.parametrize(("interactive", "seconds"), [(True, 1), (False, 60)])
def test_a_log_file_shows_a_bar_of_long_work_only(interactive, seconds, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: interactive)
    with progress_bar(3) as bar:
        assert bar.delay == seconds


def test_a_hidden_bar_writes_nothing(capsys):
    with progress_bar(3, shown=False) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""

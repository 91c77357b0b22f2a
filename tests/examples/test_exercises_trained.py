"""Exercises 9 to 12 and 15: complexity, heads, ablations, key-value memory, sinusoids."""

import pytest
import torch

from modeling_random_transformer.tutorials.exercises import complexity


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# 9. Complexity


def test_operations_of_table_1():
    """Multiplications and additions: attention n²·d, recurrence n·d², convolution k·n·d², times a constant."""
    for n, d in complexity.SIZES:
        assert complexity.count_operations(complexity.ATTENTION, n, d) == 4 * n**2 * d
        assert complexity.count_operations(complexity.RECURRENCE, n, d) == 4 * n * d**2
        assert complexity.count_operations(complexity.CONVOLUTION, n, d) == 2 * complexity.KERNEL * n * d**2


def test_sequential_steps_and_path_lengths_of_table_1():
    steps, paths = ({} for _ in range(2))
    for kind in complexity.KINDS:
        costs = [complexity.measure_cost(kind, length) for length in (9, 27)]
        steps[kind], paths[kind] = ([getattr(cost, name) for cost in costs] for name in ("steps", "path"))
    assert steps == {
        complexity.ATTENTION: [4, 4],  # projection, scores, weighted sum, output projection
        complexity.RECURRENCE: [9, 27],
        complexity.CONVOLUTION: [1, 1],
        complexity.DILATED: [1, 1],
    }
    assert paths == {
        complexity.ATTENTION: [1, 1],
        complexity.RECURRENCE: [9, 27],
        complexity.CONVOLUTION: [4, 13],  # (n - 1) / (k - 1)
        complexity.DILATED: [2, 3],  # log of n to the base k
    }


def test_gradients_reach_the_first_token_if_the_stack_does():
    torch.manual_seed(0)
    gradients = {kind: complexity.token_gradients(kind, length=64) for kind in complexity.KINDS}
    nonzero = {kind: sum(value > 0 for value in values) for kind, values in gradients.items()}
    reach = 1 + complexity.RECALL_LAYERS * (complexity.KERNEL - 1)
    assert nonzero == {
        complexity.ATTENTION: 64,
        complexity.RECURRENCE: 64,
        complexity.CONVOLUTION: reach,
        complexity.DILATED: 64,
    }
    first = {kind: values[0] / values[-1] for kind, values in gradients.items()}
    assert first[complexity.RECURRENCE] < first[complexity.ATTENTION] / 100


@pytest.mark.slow
def test_recall_requires_a_short_path():
    accuracy = {kind: complexity.train_recall(kind, 64, seed=0, steps=100) for kind in complexity.KINDS}
    assert accuracy[complexity.ATTENTION] > 0.9
    assert accuracy[complexity.DILATED] > 0.9
    assert accuracy[complexity.RECURRENCE] < 0.3
    assert accuracy[complexity.CONVOLUTION] < 0.3


def test_plots_are_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(complexity, "RECALL_LENGTHS", (4,))
    complexity.show_complexity(complexity.compare_complexity(seed=0, lengths=(4,), training_steps=1), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"complexity.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())

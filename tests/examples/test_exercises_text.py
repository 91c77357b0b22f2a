"""Exercises 13, 14, 16 and 17: word vectors, subwords, long inputs, compression."""

import pytest
import torch

from modeling_random_transformer.tutorials.exercises import long_inputs


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# 16. Long inputs


def test_copying_task():
    ids, labels = long_inputs.Copying(length=5).sample(10)
    assert ids.shape == labels.shape == (10, 12)
    assert torch.equal(ids[:, 1:6], ids[:, 7:])
    assert (labels[:, :7] == -100).all()
    assert torch.equal(labels[:, 7:], ids[:, 7:])


def test_memory_of_long_inputs():
    """Four times the length: eager attention needs 16 times the memory, the others about four times."""
    short, long = (long_inputs.measure_costs(length, seed=0, repeats=1) for length in (1024, 4096))
    growth = {name: long[name].megabytes / short[name].megabytes for name in short}
    assert growth.pop("eager") > 12
    assert all(3 < factor < 5 for factor in growth.values())


def test_peak_memory_counts_each_storage_once():
    with long_inputs.PeakMemory() as memory:
        first = torch.zeros(1000)
        _second = first.view(10, 100) + 1
        del first
        torch.zeros(500)
    assert memory.peak == 8000
    assert memory.total == 4000


@pytest.mark.slow
def test_attention_must_reach_what_it_copies():
    near, far = long_inputs.COPY_LENGTHS[0], long_inputs.COPY_LENGTHS[-1]
    accuracy = {name: long_inputs.learn_to_copy(name, far, seed=0, steps=250) for name in ("sdpa", "copy_local")}
    accuracy["copy_strided"] = long_inputs.learn_to_copy("copy_strided", far, seed=0, steps=100)
    assert accuracy["sdpa"] > 0.7
    assert accuracy["copy_strided"] > 0.9
    assert accuracy["copy_local"] < 0.15  # 1/16 by chance
    assert long_inputs.learn_to_copy("copy_local", near, seed=0, steps=250) > 0.9


def test_plot_of_long_inputs(tmp_path, capsys):
    result = long_inputs.compare_long_attentions(seed=0, lengths=(64, 128), copy_lengths=(2,), repeats=1, steps=1)
    long_inputs.show_long_attentions(result, tmp_path)
    assert (tmp_path / "long_inputs.png").read_bytes().startswith(b"\x89PNG")
    assert "strided" in capsys.readouterr().out

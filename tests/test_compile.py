"""`torch.compile` over batches of varying sizes: no graph breaks, at most two recompilations, the same results."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch._dynamo.utils import counters
from transformers import CompileConfig

from modeling_random_transformer.data import TokenBudgetSampler
from tests.helpers import trainer as trainer_module
from tests.helpers.models import exact_model, padded_batch, random_ids
from tests.helpers.trainer import new_trainer

pytestmark = pytest.mark.long

ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}  # compile time grows with the layers
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
BACKEND = {"backend": "aot_eager", "fullgraph": True}  # a graph break raises an error


@pytest.fixture(autouse=True)
def reset():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def recompilations():
    return counters["stats"]["unique_graphs"] - 1


def random_lengths(longest, pairs=160):
    """Lengths of sources and targets, `[2, pairs]`."""
    random = np.random.default_rng(0)
    source = random.integers(2, longest, pairs)
    return np.stack([source, np.maximum(2, source + random.integers(-3, 4, pairs))])


def grouped_batches(longest, max_tokens):
    """Batches of pairs of similar length, without those of a single pair, which PyTorch compiles separately."""
    source, target = random_lengths(longest)
    for rows in (rows for rows in TokenBudgetSampler(np.stack([source, target], axis=1), max_tokens) if len(rows) > 1):
        batch = padded_batch(source[rows].tolist())
        ignored = torch.arange(target[rows].max()) >= torch.tensor(target[rows])[:, None]
        yield batch | {"labels": random_ids(len(rows), ignored.shape[1]).masked_fill(ignored, -100)}


def loss_and_gradient(model, weight, batch):
    loss = model(**batch).loss
    return loss.detach(), torch.autograd.grad(loss, weight)[0]


# Training


@pytest.mark.parametrize(("norm_order", "dropout"), [("post", {}), ("pre", {}), ("post", DROPOUT)])
def test_a_compiled_model_has_the_loss_and_gradients_of_eager_mode(norm_order, dropout):
    model = exact_model(norm_order=norm_order, max_position_embeddings=20, **ONE_LAYER, **dropout).train()
    compiled = torch.compile(model, **BACKEND)
    batches = [*grouped_batches(longest=40, max_tokens=240)]  # shorter and longer than the table of positions
    assert len({batch["input_ids"].shape for batch in batches}) > 20
    for batch in batches:
        actual = loss_and_gradient(compiled, model.lm_head.weight, batch)
        if not dropout:
            torch.testing.assert_close(actual, loss_and_gradient(model, model.lm_head.weight, batch))
    assert recompilations() <= 2


def pairs(_):
    lengths = random_lengths(longest=150, pairs=60).tolist()
    sources, targets = ([[5] * (length - 1) + [2] for length in row] for row in lengths)
    columns = {"input_ids": sources, "labels": targets, "source_length": lengths[0], "target_length": lengths[1]}
    return Dataset.from_dict(columns)


def test_the_trainer_compiles_at_most_two_graphs(tmp_path, monkeypatch):
    """One graph, and one for batches of a single pair, below and above the lengths at which eager mode changes kernels.

    The logits keep their dtype until the loss.
    """
    monkeypatch.setattr(trainer_module, "pairs", pairs)
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager", "bf16": True, "max_steps": 25}
    trainer = new_trainer(tmp_path, max_tokens_per_batch=310, **options)
    compute_loss, dtypes, sizes = trainer.compute_loss_func, set(), set()

    def recorded(outputs, labels, **kwargs):
        dtypes.add(outputs["logits"].dtype)
        sizes.add(len(labels))
        return compute_loss(outputs, labels, **kwargs)

    trainer.compute_loss_func = recorded
    trainer.train()
    assert dtypes == {torch.bfloat16}
    assert len(sizes) > 2
    assert 1 in sizes
    assert not counters["graph_break"]
    assert recompilations() <= 2


# generate() with a static cache


def source_batches(*sizes):
    """Sources of varying lengths."""
    return [padded_batch([2 + (5 * i + 7 * size) % 19 for i in range(size)], seed=size) for size in sizes]


def static(model, batch, **options):
    options = {"max_new_tokens": 10, "do_sample": False} | options
    return model.generate(**batch, cache_implementation="static", **options)


@pytest.mark.parametrize(("dynamic", "sizes"), [(None, (4, 5, 3, 6, 5, 2)), (True, (4, 5, 3, 1, 6, 2, 1))])
def test_compiled_greedy_search_equals_eager_mode(dynamic, sizes):
    model = exact_model(spread=2.0, **ONE_LAYER)
    config = CompileConfig(**BACKEND, dynamic=dynamic, mode=None)
    config._compile_all_devices = True
    for batch in source_batches(*sizes):
        compiled = static(model, batch, compile_config=config)
        assert torch.equal(compiled, static(model, batch, disable_compile=True))
    assert 0 <= recompilations() <= 2

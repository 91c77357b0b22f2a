"""The model under `torch.compile`, `torch.export` and `torch.func`, and its dropout."""

import pytest
import torch
from torch.export import Dim, export
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import DynamicCache

from modeling_random_transformer import RandomTransformerForCausalLM, ops_random_transformer
from modeling_random_transformer.modeling_random_transformer import fast_dropout, sinusoids
from modeling_random_transformer.training import SmoothedCrossEntropy
from modeling_random_transformer.versions_random_transformer import named_cache
from tests.helpers.models import padded_batch, random_ids, tiny_model

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}  # compile time grows with the layers


def training_batch(rows=3):
    return padded_batch([7, 4, 6][:rows]) | {"labels": random_ids(rows, 5)}


# torch.compile and torch.export


@pytest.mark.long
def test_a_compiled_training_step_equals_an_uncompiled_one():
    torch._dynamo.reset()
    model = tiny_model(**ONE_LAYER).double()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for labels in (random_ids(3, 5), torch.full((3, 5), -100)):
        batch = training_batch() | {"labels": labels, "decoder_input_ids": random_ids(3, 5)}
        losses = [step(**batch).loss for step in (model, compiled)]
        gradients = [torch.autograd.grad(loss, model.lm_head.weight)[0] for loss in losses]
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        assert gradients[1].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "dtype"), [("sinusoidal", torch.float64), ("learned", torch.bfloat16)])
def test_export_with_a_dynamic_batch_and_dynamic_lengths(positions, dtype):
    model = tiny_model(position_embedding=positions, max_position_embeddings=256, **ONE_LAYER).to(dtype)
    batch, source, target = Dim("batch", max=512), Dim("source", max=256), Dim("target", max=256)
    shapes = {"input_ids": {0: batch, 1: source}, "attention_mask": {0: batch, 1: source}}
    shapes |= {"decoder_input_ids": {0: batch, 1: target}, "use_cache": None}
    inputs = {**padded_batch([7, 4, 6]), "decoder_input_ids": random_ids(3, 5), "use_cache": False}
    exported = export(model, (), inputs, dynamic_shapes=shapes).module()
    larger_inputs = {**padded_batch([150, 3, 6, 2, 5]), "decoder_input_ids": random_ids(5, 8), "use_cache": False}
    with torch.no_grad():
        expected = model(**larger_inputs).logits
        tolerance = 1e-9 if dtype == torch.float64 else 0.05 * expected.abs().max().item()
        torch.testing.assert_close(exported(**larger_inputs).logits, expected, rtol=0, atol=tolerance)


# Derivatives


def test_second_derivatives_of_the_loss_raise():
    output = tiny_model()(**training_batch())
    with pytest.raises(RuntimeError, match="create_graph must be False for this loss"):
        torch.autograd.grad(output.loss, output.logits, create_graph=True)


def test_functional_gradients_of_the_model_are_those_of_backward():
    model = tiny_model().double()
    batch = training_batch()
    parameters = dict(model.named_parameters())
    gradients, loss = grad_and_value(lambda weights: functional_call(model, weights, (), batch).loss)(parameters)
    expected = model(**batch).loss
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, parameter in parameters.items():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_gradients_of_each_example_by_vmap():
    logits = torch.randn(4, 2, 3, 7, dtype=torch.float64)
    labels = torch.randint(0, 7, (4, 2, 3)).index_fill(2, torch.tensor([1]), -100)
    labels[3] = -100
    loss = SmoothedCrossEntropy(0.1)
    together = vmap(grad(lambda row, label: loss({"logits": row}, label)))(logits, labels)
    for row in range(4):
        leaf = logits[row].clone().requires_grad_()
        loss({"logits": leaf}, labels[row]).backward()
        torch.testing.assert_close(together[row], leaf.grad)


# Dropout


def test_dropout_under_vmap():
    for randomness in ("same", "different"):
        dropped = vmap(lambda states: fast_dropout(states, 0.5, True), randomness=randomness)(torch.ones(4, 256))
        assert (dropped[0] == dropped[1]).all() == (randomness == "same")
        assert 0.3 < (dropped == 0).float().mean() < 0.7


@pytest.mark.parametrize("rate", [1.0, 1 - 2**-18, 1 - 2**-16, 0.5, 1e-7])
def test_dropout_rate_and_scale(rate):
    """Kept values are scaled by 1 / (1 - rate), up to the resolution of 16 bits."""
    kept = fast_dropout(torch.ones(100_000), rate, True)
    kept = kept[kept != 0]
    assert abs(len(kept) / 100_000 - (1 - rate)) < 0.01
    if len(kept) and rate < 1:
        assert (kept * (1 - rate) - 1).abs().max() < 1e-4 or rate > 0.9999


# Devices without float64


class NoFloat64(TorchFunctionMode):
    """A meta device that raises for float64, as MPS does. Copies of its tensors to the CPU count from 0."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to and args[0].is_meta and args[1] == torch.device("cpu"):
            return torch.arange(args[0].numel()).view(args[0].shape).to(*args[1:])
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_meta and result.dtype == torch.float64:
            raise TypeError("this device has no float64")
        return result


def test_sinusoids_on_a_device_without_float64(monkeypatch):
    monkeypatch.setattr(ops_random_transformer, "FLOAT64_DEVICES", {"cpu"})
    with NoFloat64():
        encodings = sinusoids(torch.arange(9, device="meta"), 6)
        assert (encodings.device.type, encodings.dtype, encodings.shape) == ("meta", torch.float32, (9, 6))
        with torch.device("meta"):
            model = tiny_model(max_position_embeddings=8)
        ids = random_ids(2, 12).to("meta")  # longer than the precomputed table
        assert model(ids, decoder_input_ids=ids).logits.is_meta


def test_a_training_step_on_a_meta_device_reads_no_value():
    """A tensor on the meta device has no values: reading one, which would synchronize a GPU, raises.

    Inputs that transformers itself reads are omitted: the padding mask, and the positions in a decoder without a cache.
    """
    with torch.device("meta"):
        model = tiny_model(**DROPOUT).train()
        ids = torch.ones(2, 5, dtype=torch.long)
        language_model = RandomTransformerForCausalLM(model.config).eval()
    for count in (None, 0, torch.tensor(0, device="meta")):
        model(ids, labels=ids, num_items_in_batch=count).loss.backward()
    assert language_model(ids, position_ids=ids, **named_cache(DynamicCache())).logits.is_meta

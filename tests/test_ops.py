"""Functional and packed layers against the modules they replace."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.decoding_random_transformer import functional_linear, fused_linear
from modeling_random_transformer.ops_random_transformer import PackedLinear, can_pack
from tests.helpers.models import assert_near, assert_same_generation, fixed_scores, padded_batch, tiny_model

packing = pytest.mark.skipif(not ops.mkldnn_packing_available(), reason="PyTorch was built without oneDNN, which packs")
BATCH_SIZE = 3
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture
def pack_all(monkeypatch):
    """Pack layers of any size, in any dtype that oneDNN supports."""
    monkeypatch.setattr(ops, "MIN_PACKED_ELEMENTS", 0)
    monkeypatch.setattr(ops, "MIN_PACKED_ELEMENTS_HALF", 0)
    monkeypatch.setattr(ops, "supports_native_matmul", lambda dtype: dtype in DTYPES)


def layer(width=12, outputs=20, bias=True, dtype=torch.float32, kind=nn.Linear):
    torch.manual_seed(outputs)
    return kind(width, outputs, bias=bias).to(dtype)


def native(dtype):
    """Whether this CPU has instructions for the dtype, regardless of `pack_all`."""
    supported = ops.NATIVE_MATMUL_CHECKS.get(dtype)
    return supported is None or getattr(torch.ops.mkldnn, supported)()


def assert_close(actual, expected):
    """Equal up to the order of summation, relative to the largest value."""
    assert_near(actual, expected, {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[expected.dtype])


@packing
@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 50), st.booleans(), st.sampled_from(DTYPES[:2]), st.data()
)
def test_packed_linear_equals_the_modules(width, outputs, rows, bias, dtype, data):
    """For any shape, and for the batch size given for packing or another one."""
    assume(native(dtype))
    with torch.inference_mode():
        first, second = layer(width, outputs, bias, dtype), layer(width, outputs + 1, bias, dtype)
        states, residual = torch.randn(rows, width, dtype=dtype), torch.randn(rows, outputs, dtype=dtype)
        packed_for = data.draw(st.sampled_from([rows, 1, 7]))
        assert_close(PackedLinear((first,), packed_for)(states), first(states))
        assert_close(PackedLinear((first,), packed_for).add_residual(residual, states), residual + first(states))
        assert_close(
            PackedLinear((first, second), packed_for)(states), torch.cat([first(states), second(states)], dim=-1)
        )


def test_large_layers_are_packed(monkeypatch):
    """In half precision, also smaller ones, if the CPU has instructions for it."""
    monkeypatch.setattr(ops, "supports_native_matmul", lambda _: True)
    available = ops.mkldnn_packing_available()
    assert can_pack(layer(512, 256)) == can_pack(layer(512, 128), layer(512, 128)) == available
    assert can_pack(layer(128, 64).bfloat16()) == available
    assert not can_pack(layer(512, 255))
    assert not can_pack(layer(128, 63).bfloat16())
    assert isinstance(functional_linear(layer(512, 256), BATCH_SIZE), PackedLinear) == available
    assert not isinstance(functional_linear(layer(512, 256), 0), PackedLinear)


def test_float64_and_removed_operations_have_no_native_products(monkeypatch):
    assert ops.supports_native_matmul(torch.float32)
    assert not ops.supports_native_matmul(torch.float64)
    monkeypatch.setitem(ops.NATIVE_MATMUL_CHECKS, torch.bfloat16, "an operation that PyTorch removed")
    assert not ops.supports_native_matmul(torch.bfloat16)


class Doubled(nn.Linear):
    """A projection with a different output, as adapters have."""

    def forward(self, states):
        return 2 * super().forward(states)


def hooked_layer():
    module = layer()
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("module", [layer(kind=Doubled), hooked_layer()], ids=lambda module: str(module))
@pytest.mark.usefixtures("pack_all")
def test_modified_modules_are_called_and_not_packed(module):
    assert not can_pack(module)
    assert not can_pack(layer(), module)
    states = torch.randn(BATCH_SIZE, 12)
    wanted = module(states)
    assert_close(functional_linear(module, BATCH_SIZE)(states), wanted)
    assert_close(fused_linear((module, module), BATCH_SIZE)(states)[1], wanted)
    assert_close(functional_linear(module, BATCH_SIZE).add_residual(torch.ones(()), states), 1 + wanted)


@pytest.mark.usefixtures("pack_all")
def test_no_packing_with_autocast_gradients_or_mixed_biases():
    module = layer()
    assert can_pack(module) == ops.mkldnn_packing_available()
    assert not can_pack(module, layer(bias=False))
    assert not can_pack(layer(dtype=torch.float64))
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert not can_pack(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_pack(module)
    with torch.inference_mode(False), torch.enable_grad():
        assert not can_pack(module)


@packing
@pytest.mark.parametrize("config", [{}, {"attention_bias": False, "lm_head_bias": True}], ids=str)
@pytest.mark.usefixtures("pack_all")
def test_generation_with_packed_weights(config, monkeypatch):
    """The same logits up to rounding as without packing. Weights are packed for long generations only."""
    packed, init = [], PackedLinear.__init__
    monkeypatch.setattr(
        PackedLinear,
        "__init__",
        lambda self, layers, size: packed.append(layers) or init(self, layers, size),
    )
    model = tiny_model(spread=2.0, **config)
    options = {"num_beams": 3, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": -1}
    options["logits_processor"] = [fixed_scores]
    batch = padded_batch([8, 5, 3])
    model.generate(**batch, **options, max_new_tokens=ops.MIN_STEPS_TO_PACK - 1)
    assert not packed
    ours = model.generate(**batch, **options, max_new_tokens=ops.MIN_STEPS_TO_PACK + 2)
    assert len(packed) == 1 + 3 * 6  # the output layer; in each of three layers Q, K and V as one, and five others
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        theirs = model.generate(**batch, **options, max_new_tokens=ops.MIN_STEPS_TO_PACK + 2)
    assert len(packed) == 1 + 3 * 6
    assert_same_generation(ours, theirs, 1e-3)


def test_float64_is_computed_where_it_is_supported():
    assert [ops.float64_device(torch.device(kind)).type for kind in ("cpu", "cuda", "mps")] == ["cpu", "cuda", "cpu"]

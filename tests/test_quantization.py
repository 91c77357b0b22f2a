"""Dynamic int8 quantization through `from_pretrained(quantization_config=DynamicInt8Config())`."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling_random_transformer import (
    DynamicInt8Config,
    RandomTransformerForCausalLM,
    RandomTransformerForSequenceClassification,
)
from modeling_random_transformer import decoding_random_transformer as decoding
from modeling_random_transformer import quantization_random_transformer as quantization
from modeling_random_transformer.inference.loading import load_translator
from modeling_random_transformer.quantization_random_transformer import (
    Int8Kernels,
    Int8Linear,
    int8_kernels,
    is_exact,
    quantize_rows,
)
from tests.helpers.foreign import foreign_model
from tests.helpers.models import assert_near, padded_batch, random_ids, tiny_config, tiny_model

TEXTS = ["the red house", "a cat sleeps in the house", "the cat is red"]
INPUTS = {**padded_batch([8, 5, 3]), "decoder_input_ids": random_ids(3, 6, seed=1)}
UNTIED = {"tie_word_embeddings": False, "lm_head_bias": True}
MODELS = {
    "tied": {},
    "untied": UNTIED,
    "two embeddings": {"share_embeddings": False},
    "no bias": {"attention_bias": False},
    "tied with a bias": {"lm_head_bias": True},
}


# The bits of activations; the largest quantized one; the limit of the error of the logits, relative to their standard
# deviation. The limits are 1.25 times the largest error of `MODELS`, which is 0.0194, 0.0316 and 0.0123. It is the same
# with FBGEMM and oneDNN, at the levels AVX-512 with VNNI, AVX2 and SSE4.1.
LEVELS = {"8 bits": (127, 0.024), "7 bits": (63, 0.040), "floating point": (0, 0.016)}


@pytest.fixture(params=LEVELS)
def kernels(request, monkeypatch):
    """For layers of any size, use the int8 kernels that are exact with this many bits, or none. Returns the limit.

    A CPU without VNNI has kernels for 7 bits only. With 7 bits, they are tested on every CPU.
    """
    largest, limit = LEVELS[request.param]
    exact_kernels = tuple(
        kernel for kernel in (quantization.FbgemmInt8, quantization.OneDnnInt8) if largest and is_exact(kernel, largest)
    )
    if largest and not exact_kernels:
        pytest.skip(f"no int8 kernel of this CPU is exact with {request.param}")
    monkeypatch.setattr(quantization, "int8_kernels", lambda: Int8Kernels(largest or 127, exact_kernels))
    monkeypatch.setattr(quantization, "FASTEST_INT8", {})
    monkeypatch.setattr(quantization, "MIN_PACKED_ELEMENTS", 1)
    return limit


def quantized(model, folder):
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, quantization_config=DynamicInt8Config())


def logits(model, **inputs):
    with torch.no_grad():
        return model(**(inputs or INPUTS)).logits


def int8_layer(outputs=24, inputs=40, bias=True, seed=0):
    torch.manual_seed(seed)
    return Int8Linear.from_linear(nn.Linear(inputs, outputs, bias))


@pytest.mark.parametrize("config", MODELS)
def test_quantized_saved_and_loaded_again(config, kernels, tmp_path):
    model = tiny_model(**MODELS[config])
    if model.lm_head.bias is not None:
        nn.init.normal_(model.lm_head.bias)
    exact, model = logits(model), quantized(model, tmp_path / "float")
    assert 0 < (logits(model) - exact).std() < kernels * exact.std()
    assert model.is_quantized
    assert model.dtype == torch.float32
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert not any(weight.requires_grad for weight in model.parameters())
    model.save_pretrained(tmp_path / "int8")
    weights = load_file(tmp_path / "int8" / "model.safetensors")
    assert ("lm_head.weight" in weights) == (config == "untied")
    assert weights["model.encoder.layers.0.fc1.weight"].dtype == torch.int8
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    tied_again = copy.deepcopy(model)
    tied_again.tie_weights()
    for copied in (again, tied_again):
        assert copied.lm_head.weight.dtype == torch.int8
        assert torch.equal(logits(copied), logits(model))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generate_takes_the_fast_path_and_equals_the_modules(search, tmp_path, monkeypatch):
    """Up to rounding: attention sums in another order, after which an activation can be rounded up instead of down."""
    model = quantized(tiny_model(spread=2.0), tmp_path)
    options = {"max_new_tokens": 20, "output_scores": True, "return_dict_in_generate": True, **search}
    assert model.fallback_reason() is None

    def scores():
        torch.manual_seed(0)
        return model.generate(INPUTS["input_ids"], attention_mask=INPUTS["attention_mask"], **options).scores[0]

    fast = scores()
    monkeypatch.setattr(type(model), "fallback_reason", lambda _: "test")
    assert_near(fast, scores(), 0.02)


def test_generation_under_autocast(tmp_path, monkeypatch):
    """The layers are smaller than `MIN_PACKED_ELEMENTS`, so their weights in float32 meet activations in bfloat16."""
    model = quantized(tiny_model(spread=2.0), tmp_path)
    with torch.autocast("cpu", torch.bfloat16):
        fast = model.generate(INPUTS["input_ids"], max_new_tokens=6)
        monkeypatch.setattr(type(model), "fallback_reason", lambda _: "test")
        assert torch.equal(model.generate(INPUTS["input_ids"], max_new_tokens=6), fast)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rows", [1, 33])
def test_products_are_exact(rows):
    """The result is that of the integers, computed in float64."""
    layer, states = int8_layer(), torch.randn(2, rows, 40)
    with torch.no_grad():
        actual = layer(states)
    largest, available_kernels = quantization.int8_kernels()
    if available_kernels:
        scale = states.abs().amax(dim=-1, keepdim=True) / largest
        states = (states / scale).round() * scale
    expected = states.double() @ layer.dequantized_weight().double().t() + layer.bias
    assert_near(actual, expected.float(), 1e-5)


def test_kernels_round_alike():
    """Just below and above .5, where the result depends on whether the zero point is added before rounding."""
    largest, kernels = int8_kernels()
    if len(kernels) < 2:
        pytest.skip("this CPU has one kernel at most")
    halves = torch.arange(-largest, largest, dtype=torch.float32) + 0.5
    infinity = torch.tensor(torch.inf)
    states = torch.stack([halves, halves.nextafter(infinity), halves.nextafter(-infinity)], dim=1)
    weight, scale = quantize_rows(torch.eye(3))
    first, second = (kernel(weight, scale, largest)(states) for kernel in kernels)
    assert_near(first, second, 1e-6)  # rounding otherwise differs by 1 / largest at least


def test_cpus_without_vnni_or_operators(monkeypatch):
    """A kernel that saturates sums of two products above 2**15, as CPUs without VNNI do."""

    class Saturating:
        def __init__(self, weight, _, largest):
            self.weight, self.shift = weight.float(), largest + 1

        def __call__(self, states):
            products = (states + self.shift)[:, None] * self.weight
            pairs = products.unflatten(2, (-1, 2)).sum(dim=3).clamp(-(2**15), 2**15 - 1)
            return pairs.sum(dim=2) - self.shift * self.weight.sum(dim=1)

    assert not is_exact(Saturating, 127)
    assert is_exact(Saturating, 63)
    monkeypatch.setattr(quantization, "FbgemmInt8", Saturating)
    monkeypatch.setattr(quantization, "OneDnnInt8", Saturating)
    assert int8_kernels.__wrapped__().max_activation == 63
    for kernel in ("FbgemmInt8", "OneDnnInt8"):
        monkeypatch.setattr(quantization, kernel, lambda *_: torch.ops.quantized.an_operator_that_was_removed())
    assert int8_kernels.__wrapped__() == (127, ())


@pytest.mark.usefixtures("kernels")
def test_a_row_does_not_depend_on_the_others_nor_on_copies():
    layer, states = int8_layer(), torch.randn(5, 40)
    states[1] *= 1000
    with torch.no_grad():
        expected = layer(states)
        assert_near(torch.cat([layer(row[None]) for row in states]), expected, 1e-6)
        for duplicate in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(duplicate(states), expected)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_zeros_and_no_rows(bias):
    layer = int8_layer(bias=bias)
    states = torch.zeros(2, 40)
    states[1, 0] = 1.0
    with torch.no_grad():
        assert torch.equal(layer(states)[0], layer.bias if bias else torch.zeros(24))
        assert layer(torch.zeros(0, 40)).shape == (0, 24)
        assert layer(torch.zeros(40)).shape == (24,)
        assert layer(torch.full((1, 40), torch.nan)).isnan().all()


@pytest.mark.parametrize("kernel", [quantization.FbgemmInt8, quantization.OneDnnInt8])
def test_an_empty_batch_keeps_its_shape(kernel, monkeypatch):
    if not is_exact(kernel, 63):
        pytest.skip(f"{kernel.__name__} is not exact on this CPU")
    monkeypatch.setattr(quantization, "MIN_PACKED_ELEMENTS", 0)
    monkeypatch.setattr(quantization, "FASTEST_INT8", {})
    monkeypatch.setattr(quantization, "int8_kernels", lambda: Int8Kernels(63, (kernel,)))
    with torch.no_grad():
        assert int8_layer()(torch.zeros(0, 3, 40)).shape == (0, 3, 24)


def test_weight_rows_of_zeros():
    weight, scale = quantize_rows(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert weight.tolist() == [[0, 0], [64, -127]]
    assert scale.tolist() == pytest.approx([0.0, 2 / 127])


@pytest.mark.usefixtures("kernels")
def test_packed_weights_follow_each_of_their_layers():
    layers, states = (int8_layer(seed=0), int8_layer(seed=1)), torch.randn(3, 40)
    changes = (
        lambda: None,
        lambda: layers[0].load_state_dict(int8_layer(seed=3).state_dict()),
        lambda: layers[1].load_state_dict(int8_layer(seed=2).state_dict()),
        lambda: setattr(layers[1], "bias", nn.Parameter(torch.ones(24), requires_grad=False)),
        lambda: layers[0].weight_scale.mul_(3),
        lambda: setattr(layers[1].weight, "data", -layers[1].weight.data),
        lambda: layers[0].weight_scale.data.mul_(3),  # PyTorch does not count writes through `data` and `numpy()`
        lambda: layers[1].weight.numpy().fill(1),
    )
    with torch.no_grad():
        for change in changes:
            change()
            copies = copy.deepcopy(layers)  # without packed weights
            assert torch.equal(layers[0](states), copies[0](states))
            fused = [decoding.fused_linear(stack, 0)(states) for stack in (layers, copies)]
            assert all(map(torch.equal, *fused))


def test_fused_and_single_layers_use_the_same_kernels(monkeypatch):
    """Below the limit each, but above it together: as the queries, keys and values of d_model 256."""
    layers, states = [int8_layer(seed=i) for i in range(3)], torch.randn(3, 40)
    monkeypatch.setattr(quantization, "MIN_PACKED_ELEMENTS", 2 * layers[0].weight.numel())
    with torch.no_grad():
        fused, single = decoding.fused_linear(tuple(layers), 0)(states), [layer(states) for layer in layers]
    assert_near(torch.cat(fused), torch.cat(single), 1e-6)


@pytest.mark.parametrize("config", MODELS)
def test_a_dequantized_model_has_the_rounded_weights(config, tmp_path):
    model = quantized(tiny_model(**MODELS[config]), tmp_path / "float")
    model.save_pretrained(tmp_path / "int8")
    weight = model.model.encoder.layers[0].fc1.dequantized_weight()
    model.dequantize()
    assert torch.equal(model.model.encoder.layers[0].fc1.weight, weight)
    assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == (config != "untied")
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.resize_token_embeddings(70)
    model.save_pretrained(tmp_path / "dequantized")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "dequantized")
    assert type(again.lm_head) is nn.Linear
    assert torch.equal(logits(again), logits(model))


def test_training_and_resizing_the_vocabulary_are_errors(tmp_path):
    model = quantized(tiny_model(), tmp_path)
    with pytest.raises(ValueError, match="output layer must not be quantized to resize the vocabulary"):
        model.resize_token_embeddings(70)
    with pytest.raises(ValueError, match="purely quantized"):
        Trainer(model, TrainingArguments(tmp_path / "out", report_to="none"))
    model.model.shared.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="int8 weights cannot be trained"):
        model(**INPUTS)


def test_a_classification_layer_is_not_quantized_and_an_output_layer_is(tmp_path):
    config = tiny_config(num_labels=3)
    torch.manual_seed(0)
    model = quantized(RandomTransformerForSequenceClassification(config), tmp_path)
    assert type(model.score) is nn.Linear
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path, quantization_config=DynamicInt8Config())
    ids = random_ids(2, 5)
    assert torch.equal(logits(again, input_ids=ids), logits(model, input_ids=ids))
    assert isinstance(quantized(RandomTransformerForCausalLM(config), tmp_path).lm_head, Int8Linear)


def test_other_architectures_are_an_error(tmp_path):
    foreign_model("BART", vocab_size=8).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="quantization_config must be of another method for BartFor"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization_config=DynamicInt8Config())


@pytest.fixture
def int8_folder(translator_folder, tmp_path):
    for saved in load_translator(translator_folder, "int8"):
        saved.save_pretrained(tmp_path / "int8")
    return tmp_path / "int8"


def test_translator_and_pipeline(int8_folder, translator_folder, tokenizer, recwarn):
    """A folder in int8 needs no quantization, and accepts it."""
    expected = logits(load_translator(translator_folder, "int8")[0])
    for options in ((), ("int8",)):
        assert torch.equal(logits(load_translator(int8_folder, *options)[0]), expected)
    assert not [warning for warning in recwarn if "quantization_config" in str(warning.message)]
    method = {"model_kwargs": {"quantization_config": DynamicInt8Config()}}
    answers = [
        pipeline("seq2seq", model=str(path), tokenizer=tokenizer, max_new_tokens=9, **options)(TEXTS, num_beams=2)
        for path, options in ((translator_folder, method), (int8_folder, {}))
    ]
    assert answers[0] == answers[1]


def test_int8_for_an_adapter_is_an_error(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    with pytest.raises(ValueError, match="dtype must be of floating point for an adapter that is not merged, got int8"):
        load_translator(tmp_path, "int8")


def test_missing_weights_are_an_error(int8_folder):
    weights = load_file(int8_folder / "model.safetensors")
    for name in ("weight", "weight_scale"):
        del weights[f"model.encoder.layers.0.fc1.{name}"]
    save_file(weights, int8_folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"must contain all weights of the model.* got none for .*fc1\.weight_scale"):
        load_translator(int8_folder)
    layer = AutoModelForSeq2SeqLM.from_pretrained(int8_folder).model.encoder.layers[0].fc1
    assert layer.weight.dtype == torch.int8
    assert not layer.weight_scale.any()

"""What is specific to GPUs: kernels, several devices, checkpoints, synchronizations. Results are those of the CPU."""

import copy

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import modeling_random_transformer as package
from modeling_random_transformer.inference import translate
from tests.device.simulated_device import synchronizations
from tests.device.test_same_results import SEARCHES
from tests.helpers.models import VOCAB_SIZE, exact_model, padded_batch, random_ids, tiny_config, tiny_model
from tests.helpers.translation import some_texts

BATCH = padded_batch([7, 4])
LABELS = random_ids(2, 6, seed=1)
NEAR = {"rtol": 1e-9, "atol": 1e-9}


def on(device, inputs):
    return {name: value.to(device) for name, value in inputs.items()}


def on_both(model):
    """The model on the CPU and a copy on the GPU."""
    return model, copy.deepcopy(model).to("cuda")


def test_forward_with_flex_attention():
    """Forward only: PyTorch's kernel for CPUs, which runs here, has no backward pass."""
    cpu, gpu = on_both(exact_model(d_model=32))  # it requires d_k of at least 16
    gpu.set_attn_implementation("flex_attention")
    inputs = BATCH | {"decoder_input_ids": LABELS}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(gpu(**on("cuda", inputs)).logits.cpu(), cpu(**inputs).logits, **NEAR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_finite(dtype):
    model = tiny_model().to("cuda", dtype).train()
    loss = model(**on("cuda", BATCH | {"labels": LABELS})).loss
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("shape", [(0, 5), (0, 1)])
def test_an_empty_batch(shape, implementation):
    model = tiny_model().to("cuda")
    model.set_attn_implementation(implementation)
    ids = torch.zeros(shape, dtype=torch.long, device="cuda")
    assert model(input_ids=ids, attention_mask=ids, decoder_input_ids=ids).logits.shape == (*shape, VOCAB_SIZE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_checkpoints_move_between_devices(device, tmp_path):
    model = tiny_model().to("cuda" if device == "cpu" else "cpu")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=device)
    assert loaded.device.type == device
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", map_location=device)
    torch.testing.assert_close(loaded.state_dict(), weights, rtol=0, atol=0)


UNTIED = {"share_embeddings": False, "tie_word_embeddings": False}
ON_TWO = {
    "balanced": ("balanced", {}),
    "auto": ("auto", {}),
    "stacks": ({"model.encoder": 0, "model.decoder": 1, "lm_head": 1}, UNTIED),
}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("name", ON_TWO)
def test_a_model_split_over_two_devices_equals_the_whole_model(name, quantized, tmp_path):
    """The layers are split by Accelerate. An output layer that int8 replaces gets its hook too."""
    devices, options = ON_TWO[name]
    exact_model(**options).save_pretrained(tmp_path)
    method = {"quantization_config": package.DynamicInt8Config()} if quantized else {"dtype": torch.float64}
    # The limit separates the decoder's embedding from its positions.
    limits = {"max_memory": {0: 30_000 if quantized else 60_000, 1: 10**9}} if name == "auto" else {}
    split = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=devices, **limits, **method)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **method)
    assert len({weight.device for weight in split.parameters()}) == 2
    near = {"rtol": 1e-5, "atol": 1e-5} if quantized else NEAR  # int8 loads other weights in float32
    with torch.no_grad():
        expected, actual = whole(**BATCH, labels=LABELS), split(**on("cuda:0", BATCH), labels=LABELS.to("cuda:0"))
    torch.testing.assert_close(actual.logits.cpu(), expected.logits, **near)
    torch.testing.assert_close(actual.loss.cpu(), expected.loss, **near)
    for search in ({}, {"num_beams": 3}):
        outputs = split.generate(**on("cuda:0", BATCH), max_new_tokens=8, **search)
        assert torch.equal(outputs.cpu(), whole.generate(**BATCH, max_new_tokens=8, **search))


def test_steps_are_captured_on_the_device_of_each_model():
    """PyTorch captures on the device of the first capture by default: elsewhere, a graph would be empty."""
    model = exact_model(spread=2.0)
    options = {"max_new_tokens": 8, "return_dict_in_generate": True, "output_logits": True}
    expected = torch.stack(model.generate(**BATCH, **options).logits)
    for device in ("cuda:0", "cuda:1"):
        outputs = model.to(device).generate(**on(device, BATCH), **options, cache_implementation="static")
        torch.testing.assert_close(torch.stack(outputs.logits).cpu(), expected, **NEAR)


def test_an_int8_checkpoint_of_a_gpu_loads_on_a_cpu(translator_folder, tmp_path):
    method = {"quantization_config": package.DynamicInt8Config()}
    gpu = AutoModelForSeq2SeqLM.from_pretrained(translator_folder, device_map="cuda", **method)
    gpu.save_pretrained(tmp_path / "int8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    weights = {name: weight.cpu() for name, weight in gpu.state_dict().items()}
    torch.testing.assert_close(loaded.state_dict(), weights, rtol=0, atol=0)
    assert gpu.dequantize().device.type == "cuda"


# Synchronizations


def counts_of(function):
    with synchronizations() as counts:
        function()
    return counts


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("extra_inputs", [{}, {"decoder_attention_mask": torch.ones(2, 6)}, {"encoder": True}])
def test_a_training_pass_does_not_synchronize(extra_inputs, implementation):
    model = tiny_model().to("cuda").train()
    model.set_attn_implementation(implementation)
    inputs = on(
        "cuda", BATCH | {"labels": LABELS} | {name: mask for name, mask in extra_inputs.items() if name != "encoder"}
    )
    if "encoder" in extra_inputs:
        model = package.RandomTransformerForMaskedLM(tiny_config()).to("cuda").train()
        inputs["labels"] = inputs["input_ids"]
    assert not counts_of(lambda: model(**inputs).loss.backward())


@pytest.mark.parametrize("side", ["right", "left"])
def test_training_a_causal_model_does_not_synchronize(side):
    model = package.RandomTransformerForCausalLM(tiny_config()).to("cuda").train()
    inputs = on("cuda", {name: value.flip(1) if side == "left" else value for name, value in BATCH.items()})
    assert not counts_of(lambda: model(**inputs, labels=inputs["input_ids"]).loss.backward())


@pytest.mark.parametrize("search", SEARCHES.keys() - {"assisted"})  # which reads what tokens are accepted
def test_at_most_one_synchronization_per_token(search):
    """The one with which transformers finds out whether all rows have ended."""
    model, inputs = tiny_model().to("cuda"), on("cuda", BATCH)
    assert per_token(model, inputs, SEARCHES[search]) <= 1


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static", "disable_compile": True}])
@pytest.mark.parametrize("max_position_embeddings", [64, 8])
def test_at_most_one_synchronization_per_token_of_a_causal_model(options, max_position_embeddings):
    model = package.RandomTransformerForCausalLM(tiny_config(max_position_embeddings=max_position_embeddings))
    inputs = on("cuda", {name: value.flip(1) for name, value in BATCH.items()})  # padding on the left
    assert per_token(model.to("cuda").eval(), inputs, options) <= 1


def per_token(model, inputs, options, few=9, many=41):
    """Synchronizations per token, without those of the start and the end."""
    counts = [
        counts_of(lambda: model.generate(**inputs, **{**options, "min_new_tokens": tokens, "max_new_tokens": tokens}))  # noqa: B023
        for tokens in (few, many)
    ]
    return (counts[1] - counts[0]).total() / (many - few)


def test_translation_does_not_wait_for_each_batch_of_inputs(model, tokenizer):
    """The steps of the search synchronize once each; everything else is bounded per batch."""
    _, gpu = on_both(model)
    with synchronizations() as counts:
        translate(some_texts(4), gpu, tokenizer, num_beams=1, min_new_tokens=30, max_new_tokens=30, progress=False)
    assert counts.total() <= 30 + 30, counts

"""The model on a device that is neither a CPU nor CUDA and has no float64 (PyTorch's PrivateUse1, named "sim")."""

import pytest
import torch

import modeling_random_transformer as package
from modeling_random_transformer import DynamicInt8Config
from modeling_random_transformer.inference import score_pairs, translate
from modeling_random_transformer.inspection import trace
from modeling_random_transformer.training.loss import SmoothedCrossEntropy
from modeling_random_transformer.training.r_drop import RDropLoss
from tests.helpers.models import padded_batch, random_ids, tiny_model
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

BATCH = padded_batch([7, 4])
LABELS = random_ids(2, 6, seed=1)
TEXTS = some_texts(4)


def to_device(value):
    """Move a model or a batch. PyTorch's `.to()` unties shared weights on this kind of device."""
    if isinstance(value, dict):
        return {name: tensor.to("sim") for name, tensor in value.items()}
    value.to("sim")
    value.tie_weights()
    return value


def test_the_device_has_no_float64():
    with pytest.raises(RuntimeError, match="no float64"):
        torch.ones(2, device="sim").double()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_forward_and_backward(implementation):
    losses = []
    for moved in (lambda value: value, to_device):
        model = moved(tiny_model())
        model.set_attn_implementation(implementation)
        losses.append(model(**moved(BATCH | {"labels": LABELS})).loss)
        losses[-1].backward()
        assert all(weight.grad.isfinite().all() for weight in model.parameters())
    torch.testing.assert_close(losses[1].cpu(), losses[0])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}, {"cache_implementation": "static"}])
def test_generate(options):
    outputs = []
    for moved in (lambda value: value, to_device):
        model = moved(tiny_model(spread=2.0))
        torch.manual_seed(0)
        outputs.append(model.generate(**moved(BATCH), max_new_tokens=12, **options).cpu())
    assert torch.equal(*outputs)


@pytest.mark.parametrize("loss", [SmoothedCrossEntropy(0.1), RDropLoss(0.1, 5.0)])
def test_training(loss):
    """Without `Trainer`: Accelerate does not select a device of this kind."""
    losses = []
    for moved in (lambda value: value, to_device):
        model, batch = moved(tiny_model()).train(), moved(BATCH | {"labels": LABELS})
        labels = batch.pop("labels")
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        if isinstance(loss, RDropLoss):
            batch = {name: value.repeat(2, 1) for name, value in batch.items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(4):
            losses.append(loss(model(**batch), labels))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert losses[3] < losses[0]
    torch.testing.assert_close([value.cpu() for value in losses[4:]], losses[:4], rtol=1e-3, atol=0)


def test_translation_and_scoring():
    tokenizer, found = random_tokenizer(), []
    for moved in (lambda value: value, to_device):
        model = moved(random_translator())
        found.append((
            translate(TEXTS, model, tokenizer, max_new_tokens=10, num_beams=3),
            [score.log_probability for score in score_pairs(model, tokenizer, list(zip(TEXTS, TEXTS, strict=True)))],
        ))  # fmt: skip
    assert found[1][0] == found[0][0]
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)


def test_trace():
    model = to_device(tiny_model())
    with torch.no_grad(), trace(model) as found:
        model(**to_device(BATCH | {"decoder_input_ids": LABELS}))
    assert all(value.device.type in ("sim", "cpu") for value in found.values())


def test_int8(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    kind = package.RandomTransformerForConditionalGeneration
    model = kind.from_pretrained(tmp_path, quantization_config=DynamicInt8Config())
    expected = model(**BATCH, decoder_input_ids=LABELS).logits
    actual = model.to("sim")(**to_device(BATCH | {"decoder_input_ids": LABELS})).logits
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)

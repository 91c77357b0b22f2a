"""Results on a device equal those on the CPU, for both kinds of device; "private" has no float64."""

import contextlib
import os

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM

import modeling_random_transformer as package
from modeling_random_transformer import DynamicInt8Config
from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.extras.inspection import intervene, trace
from modeling_random_transformer.inference import score_pairs, translate, translate_n_best
from modeling_random_transformer.training.methods.loss import SmoothedCrossEntropy
from modeling_random_transformer.training.methods.r_drop import RDropLoss
from tests.helpers.models import padded_batch, random_ids, tiny_config, tiny_model
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

KIND = os.environ.get("SIMULATED_DEVICE", "")
DEVICE, DTYPE = {"private": ("sim", torch.float32)}.get(KIND, ("cuda", torch.float64))
NEAR = {"rtol": 1e-9, "atol": 1e-9} if torch.float64 == DTYPE else {"rtol": 1e-4, "atol": 1e-4}
BATCH, LABELS = padded_batch([7, 4]), random_ids(2, 6, seed=1)
INPUTS = BATCH | {"decoder_input_ids": LABELS}
TEXTS = some_texts(8)
TOKENIZER = random_tokenizer()
CONFIGS = {
    "post-norm": {},
    "pre-norm, learned positions": {"norm_order": "pre", "position_embedding": "learned"},
    "untied, no positions": {"share_embeddings": False, "tie_word_embeddings": False, "position_embedding": "none"},
}
HEADS = {
    "RandomTransformerForSequenceClassification": {"labels": torch.tensor([0, 1])},
    "RandomTransformerForTokenClassification": {"labels": torch.randint(0, 2, (2, 7))},
    "RandomTransformerForQuestionAnswering": {
        "start_positions": torch.tensor([1, 0]),
        "end_positions": torch.tensor([2, 3]),
    },
    "RandomTransformerForMaskedLM": {"labels": random_ids(2, 7, seed=2)},
    "RandomTransformerForCausalLM": {"labels": random_ids(2, 7, seed=2)},
}
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "beams, stopped early": {"num_beams": 3, "early_stopping": True, "min_new_tokens": 2},
    "beams with patience": {"num_beams": 3, "early_stopping": True, "patience": 2, "length_penalty": 2.0},
    "long, of beams whose cache is compacted": {"num_beams": 4, "min_new_tokens": 90, "max_new_tokens": 90},
    "uncached": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "static cache, captured": {"cache_implementation": "static"},
    "static cache of beams, captured": {"cache_implementation": "static", "num_beams": 3},
    "all scores": {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    "processors": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[7], [8, 9]]},
    "sampling": {"do_sample": True, "top_k": 5, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 2},
    "assisted": {"prompt_lookup_num_tokens": 2},
}


def place(value, device):
    """Move a model or a batch. PyTorch's `.to()` unties shared weights on a private device."""
    if isinstance(value, dict):
        return {name: tensor.to(device) for name, tensor in value.items()}
    value.to(device)
    value.tie_weights()
    return value


def on_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return {name: on_cpu(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def on_both(run):
    """The results of `run(device)` on the CPU and on the device, with the same random numbers."""
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        results.append(on_cpu(run(device)))
    return results


def assert_same(run, **near):
    expected, actual = on_both(run)
    torch.testing.assert_close(actual, expected, **NEAR | near)


def model_on(device, kind=package.RandomTransformerForConditionalGeneration, **config):
    torch.manual_seed(0)
    return place(kind(tiny_config(**config)).to(DTYPE).eval(), device)


def translator_on(device):
    return place(random_translator().to(DTYPE), device)


def gradients(model, inputs):
    loss = model(**inputs).loss
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None} | {"loss": loss}


@pytest.mark.skipif(KIND != "private", reason="of the private device")
def test_the_device_has_no_float64():
    with pytest.raises(RuntimeError, match="no float64"):
        torch.ones(2, device=DEVICE).double()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("config", CONFIGS)
def test_forward_and_backward(config, implementation):
    def run(device):
        model = model_on(device, **CONFIGS[config])
        model.set_attn_implementation(implementation)
        return gradients(model, place(BATCH | {"labels": LABELS}, device))

    assert_same(run)


@pytest.mark.parametrize("name", HEADS)
def test_gradients_of_the_heads_are_equal(name):
    kind = getattr(package, name)
    assert_same(lambda device: gradients(model_on(device, kind, num_labels=2), place(BATCH | HEADS[name], device)))


@pytest.mark.parametrize("search", SEARCHES)
def test_generated_tokens_are_equal(search):
    def run(device):
        model = place(tiny_model(spread=2.0).to(DTYPE), device)
        inputs = place(padded_batch([7]) if search == "assisted" else BATCH, device)
        torch.manual_seed(0)
        output = model.generate(**inputs, **{"max_new_tokens": 12, **SEARCHES[search]})
        return getattr(output, "sequences", output)

    assert torch.equal(*on_both(run))


@pytest.mark.parametrize("loss", [SmoothedCrossEntropy(0.1), RDropLoss(0.1, 5.0)])
@pytest.mark.parametrize("labels_on", ["the device", "the CPU"])
def test_training_without_trainer(loss, labels_on):
    """Also with labels on the CPU."""

    def run(device):
        model, batch = model_on(device).train(), place(BATCH, device)
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(LABELS).to(device)
        if isinstance(loss, RDropLoss):
            batch = {name: value.repeat(2, 1) for name, value in batch.items()}
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
        for _ in range(4):
            losses.append(loss(model(**batch), LABELS.to(device) if labels_on == "the device" else LABELS))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses)

    assert_same(run, rtol=1e-3)


@pytest.mark.parametrize(
    "search", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "num_beams": 1, "seed": 3}], ids=str
)
@pytest.mark.parametrize("members", [1, 2])
def test_translation_and_ensembles(members, search):
    def run(device):
        models = [translator_on(device) for _ in range(members)]
        model = models[0] if members == 1 else EnsembleForSeq2SeqLM(models)
        prefixes = ["the", *[""] * (len(TEXTS) - 1)]
        return translate(TEXTS, model, TOKENIZER, prefixes=prefixes, max_new_tokens=10, **search)

    expected, actual = on_both(run)
    assert actual == expected


def test_n_best_lists_and_scores():
    def run(device):
        model, pairs = translator_on(device), list(zip(TEXTS, reversed(TEXTS), strict=True))
        n_best_lists = translate_n_best(TEXTS, model, TOKENIZER, num_beams=3, n_best=2, max_new_tokens=8)
        candidates = [candidate for texts in n_best_lists for candidate in texts]
        scores = [score.log_probability for score in score_pairs(model, TOKENIZER, pairs)]
        scores += [candidate.score for candidate in candidates]
        return [candidate.translation for candidate in candidates], scores

    (expected, expected_scores), (actual, actual_scores) = on_both(run)
    assert actual == expected
    assert actual_scores == pytest.approx(expected_scores, rel=1e-4)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("replaced", [False, True])
def test_trace_and_intervene(replaced, implementation):
    def run(device):
        model = model_on(device)
        model.set_attn_implementation(implementation)
        changes = {"encoder.layers.0.self_attn.output": lambda value: value * 2}
        intervention = intervene(model, changes) if replaced else contextlib.nullcontext()
        with torch.no_grad(), trace(model) as recorded, intervention:
            model(**place(INPUTS, device))
        return {name: recorded[name] for name in recorded}

    assert_same(run)


def test_int8_multiplies_in_floating_point(translator_folder):
    """The CPU without kernels for int8 is the reference."""

    def run(device):
        model = AutoModelForSeq2SeqLM.from_pretrained(translator_folder, quantization_config=DynamicInt8Config())
        model.to(device)
        return model(**place(INPUTS, device)).logits

    assert_same(run, rtol=1e-4, atol=1e-4)


def test_gradients_of_a_lora_adapter_are_equal():
    def run(device):
        model = translator_on(device)
        config = LoraConfig(task_type="SEQ_2_SEQ_LM", init_lora_weights=False)
        torch.manual_seed(0)
        adapted = get_peft_model(model, config)
        inputs = place(padded_batch([6, 4]), device)
        adapted.eval().generate(**inputs, max_new_tokens=5)
        output = adapted(**inputs, labels=inputs["input_ids"])
        output.loss.backward()
        assert model.device == adapted.device
        return output.loss.isfinite()

    assert all(on_both(run))

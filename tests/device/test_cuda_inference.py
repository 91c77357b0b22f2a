"""Pipeline, translation, scoring, ensembles, int8, trace and intervene on the simulated GPU, compared with the CPU."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, pipeline

from modeling_random_transformer import DynamicInt8Config
from modeling_random_transformer.inference import score_pairs, translate, translate_n_best
from modeling_random_transformer.inference.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.inspection import intervene, trace
from tests.device.simulated_device import synchronizations
from tests.helpers.models import exact_model, padded_batch, random_ids
from tests.helpers.translation import some_texts

TEXTS = some_texts(8)
INPUTS = {**padded_batch([6, 4]), "decoder_input_ids": random_ids(2, 3, seed=1)}
SEARCHES = {"greedy": {"num_beams": 1}, "beams": {"num_beams": 3}, "sampling": {"do_sample": True, "num_beams": 1}}


@pytest.fixture(scope="module")
def models(exact_translator):
    """A model on the CPU, and a copy on the GPU."""
    return exact_translator, copy.deepcopy(exact_translator).to("cuda")


def on_gpu(inputs):
    return {name: value.to("cuda") for name, value in inputs.items()}


@pytest.mark.parametrize("search", SEARCHES)
def test_pipeline(search, models, tokenizer):
    options = SEARCHES[search] | {"max_new_tokens": 12}
    found = []
    for model in models:
        pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device=model.device)
        torch.manual_seed(0)
        found.append([pipe(TEXTS, batch_size=3, **options), pipe(TEXTS[0], target_prefix="the", **options)])
    assert found[1] == found[0]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("members", [1, 2])
def test_translation_and_ensembles(members, search, models, tokenizer):
    found = []
    for model in models:
        other = copy.deepcopy(model)
        ensemble = model if members == 1 else EnsembleForSeq2SeqLM([model, other])
        found.append(translate(TEXTS, ensemble, tokenizer, max_new_tokens=10, seed=3, **SEARCHES[search]))
    assert found[1] == found[0]


def test_n_best_lists_and_scores(models, tokenizer):
    n_best, scores = [], []
    for model in models:
        n_best.append(list(translate_n_best(TEXTS, model, tokenizer, num_beams=3, n_best=2, max_new_tokens=8)))
        pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
        scores.append([score.log_probability for score in score_pairs(model, tokenizer, pairs)])
    assert str(n_best[1]) == str(n_best[0])
    assert scores[1] == pytest.approx(scores[0], rel=1e-9)


@pytest.fixture
def int8(translator_folder):
    """An int8 model on the CPU without kernels for int8, and on the GPU."""
    options = {"quantization_config": DynamicInt8Config()}
    devices = ("cpu", "cuda")
    return [AutoModelForSeq2SeqLM.from_pretrained(translator_folder, **options, device_map=name) for name in devices]


def test_int8_multiplies_in_floating_point(int8, tokenizer):
    cpu, gpu = int8
    with torch.no_grad():
        expected, actual = cpu(**INPUTS).logits, gpu(**on_gpu(INPUTS)).logits.cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    options = {"num_beams": 3, "max_new_tokens": 8, "progress": False}
    assert translate(TEXTS, gpu, tokenizer, **options) == translate(TEXTS, cpu, tokenizer, **options)


def test_an_int8_checkpoint_of_a_gpu_loads_on_a_cpu(int8, tmp_path):
    _, gpu = int8
    gpu.save_pretrained(tmp_path / "int8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    weights = {name: weight.cpu() for name, weight in gpu.state_dict().items()}
    torch.testing.assert_close(loaded.state_dict(), weights, rtol=0, atol=0)
    assert gpu.dequantize().device.type == "cuda"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_trace_and_intervene(implementation):
    found = []
    for device in ("cpu", "cuda"):
        model = exact_model().to(device)
        model.set_attn_implementation(implementation)
        inputs = {name: value.to(device) for name, value in INPUTS.items()}
        path = "encoder.layers.0.self_attn.out"
        with torch.no_grad(), trace(model) as plain:
            model(**inputs)
        replaced = {name: (lambda value: value * 2) for name in [next(name for name in plain if name.startswith(path))]}
        with torch.no_grad(), trace(model) as changed, intervene(model, replaced):
            model(**inputs)
        found.append([{name: values[name].cpu() for name in values} for values in (plain, changed)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_lora_adapter(models):
    outputs = []
    for model in models:
        torch.manual_seed(0)
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="SEQ_2_SEQ_LM", init_lora_weights=False))
        inputs = {name: value.to(model.device) for name, value in padded_batch([6, 4]).items()}
        adapted.eval().generate(**inputs, max_new_tokens=5)
        outputs.append(adapted(**inputs, labels=inputs["input_ids"]))
        outputs[-1].loss.backward()
        assert model.device == adapted.device
    assert all(output.loss.isfinite() for output in outputs)


def test_translation_does_not_wait_for_each_batch_of_inputs(models, tokenizer):
    """The steps of the search synchronize once each; everything else is bounded per batch."""
    _, gpu = models
    with synchronizations() as found:
        translate(TEXTS[:4], gpu, tokenizer, num_beams=1, min_new_tokens=30, max_new_tokens=30, progress=False)
    assert found.total() <= 30 + 30, found

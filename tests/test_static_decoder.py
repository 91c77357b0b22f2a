"""`generate(cache_implementation="static")`: steps of fixed shapes, and as CUDA graphs, against the usual ones."""

import contextlib
import gc
import logging
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import CompileConfig

from modeling_random_transformer import decoding_random_transformer as decoding
from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer.decoding_random_transformer import (
    BeamKVCache,
    CapturedStep,
    FastStep,
    StaticKVCache,
    bucket,
    step_pool,
)
from tests.helpers.cuda_graphs import graph as capture_graph
from tests.helpers.cuda_graphs import simulated
from tests.helpers.models import assert_same_generation, exact_model, padded_batch, tiny_model
from tests.test_fast_decoder import (
    BATCH,
    CONFIGS,
    SEARCHES,
    assert_same_caches,
    check_cache,
    generate,
)

STATIC = {"cache_implementation": "static"}
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="requires a GPU")


@pytest.fixture
def caches(monkeypatch):
    """The classes of the caches on which steps are taken."""
    classes, compute = [], FastStep.compute
    monkeypatch.setattr(FastStep, "compute", lambda self, ids: classes.append(type(self.target)) or compute(self, ids))
    monkeypatch.setattr(generation, "step_difference", lambda _: None)
    return classes


@pytest.fixture
def captures():
    """Lets steps on the CPU be captured by the simulation, and lists those that were."""
    captured, capture = [], CapturedStep.capture
    with pytest.MonkeyPatch.context() as patched, simulated():
        patched.setattr(generation, "can_capture", can_capture_on_cpu)
        patched.setattr(CapturedStep, "capture", lambda self: captured.append(self) or capture(self))
        yield captured


CAN_CAPTURE = generation.can_capture


def can_capture_on_cpu(model, max_length):
    """The conditions for a graph, for a model that pretends to be on a GPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(model), "device", torch.device("cuda"))
        return CAN_CAPTURE(model, max_length)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_static_steps_equal_fast_steps(config, search, caches):
    model = exact_model(spread=2.0, **CONFIGS[config])
    ours = generate(model, **STATIC, **SEARCHES[search])
    assert set(caches) == {StaticKVCache}
    caches.clear()
    theirs = generate(model, **SEARCHES[search])
    assert set(caches) == {BeamKVCache}
    assert_same_generation(ours, theirs)
    assert_same_caches(ours.past_key_values, theirs.past_key_values)


LEFT = {name: value.flip(1) for name, value in BATCH.items()}
FULL = padded_batch([6, 6])
EMPTY = BATCH | {"attention_mask": BATCH["attention_mask"] * torch.tensor([[1], [0], [1]])}
LONG = padded_batch([40, 3])  # above the smallest bucket


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("batch", [LEFT, FULL, EMPTY, LONG], ids=["left", "without padding", "all padding", "long"])
def test_padding_of_the_source(batch, num_beams, caches):
    model = exact_model(spread=2.0)
    ours = generate(model, batch, num_beams=num_beams, **STATIC)
    assert set(caches) == {StaticKVCache}
    assert_same_generation(ours, generate(model, batch, num_beams=num_beams))


@pytest.mark.parametrize("beams", [1, 3])
def test_static_cache_equals_copied_caches(beams):
    torch.manual_seed(0)
    keys, values = torch.randn(2 * beams, 2, 4, 3), torch.randn(2 * beams, 2, 4, 4)
    check_cache(StaticKVCache([(keys, values)], beams, max_length=20), keys, values, kept_beams=beams)


@pytest.mark.parametrize(("length", "capacity"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128)])
def test_capacities_are_rounded_up_to_buckets(length, capacity):
    assert bucket(length) == capacity


def test_bfloat16_is_finite():
    outputs = generate(tiny_model().to(torch.bfloat16), num_beams=3, **STATIC)
    assert torch.stack(outputs.logits).isfinite().all()


def test_options_for_the_compiler_of_transformers_run_the_modules(caplog):
    model = exact_model(spread=2.0)
    with caplog.at_level(logging.DEBUG, generation.logger.name):
        ours = generate(model, **STATIC, compile_config=CompileConfig())
    assert "compile_config was requested" in caplog.text
    assert_same_generation(ours, generate(model))


# CUDA graphs, simulated


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", ["post-norm", "pre-norm", "widths", "learned positions", "no positions"])
def test_captured_steps_equal_fast_steps(config, search, captures):
    model = exact_model(spread=2.0, **CONFIGS[config])
    ours = generate(model, **STATIC, **SEARCHES[search])
    (step,) = captures
    assert step.graph.replays == len(ours.logits) - 1
    assert_same_generation(ours, generate(model, **SEARCHES[search]))


def test_a_graph_computes_later_calls_with_the_same_shapes(captures):
    model = exact_model(spread=2.0)
    batches = [padded_batch(lengths, seed) for seed, lengths in enumerate([[8, 5, 3], [4, 9, 2], [7, 7, 7]])]
    for batch in batches:
        assert_same_generation(generate(model, batch, num_beams=2, **STATIC), generate(model, batch, num_beams=2))
    assert len(captures) == 1
    new_shapes = [(padded_batch([4]), {}), (BATCH, {"num_beams": 3}), (BATCH, {"max_new_tokens": 40}), (LONG, {})]
    for count, (batch, options) in enumerate(new_shapes, start=2):
        assert_same_generation(generate(model, batch, **options, **STATIC), generate(model, batch, **options))
        assert len(captures) == count


@pytest.mark.usefixtures("captures")
def test_calls_at_the_same_time_have_different_graphs():
    """A logits processor generates with the same model."""
    model = exact_model(spread=2.0)
    inner = []

    def call_again(_, scores):
        if len(inner) < 4:
            inner.append(None)
            inner[-1] = generate(model, logits_processor=[], **STATIC)
        return scores

    ours = generate(model, logits_processor=[call_again], **STATIC)
    expected = generate(model)
    for outputs in (ours, *inner):
        assert_same_generation(outputs, expected)


@pytest.mark.usefixtures("captures")
def test_a_capture_that_failed_is_repeated():
    model = exact_model(spread=2.0)
    failure = patch.object(torch.cuda, "graph", side_effect=torch.OutOfMemoryError)
    with failure, pytest.raises(torch.OutOfMemoryError):
        generate(model, **STATIC)
    assert_same_generation(generate(model, **STATIC), generate(model))


@pytest.mark.usefixtures("captures")
def test_threads_capture_one_after_the_other(monkeypatch):
    """PyTorch allows one capture at a time in a process."""
    model = exact_model(spread=2.0)
    expected = generate(model)
    running = []

    @contextlib.contextmanager
    def alone(target, **options):
        assert not running
        running.append(target)
        with capture_graph(target, **options):
            time.sleep(0.1)  # the other threads run
            yield
        running.remove(target)

    monkeypatch.setattr(torch.cuda, "graph", alone)
    monkeypatch.setattr(generation, "can_capture", lambda *_: True)  # `can_capture_on_cpu` is not thread-safe
    with ThreadPoolExecutor(3) as threads:
        for outputs in threads.map(lambda _: generate(model, **STATIC), range(3)):
            assert_same_generation(outputs, expected)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_inference_mode_has_graphs_of_its_own(num_beams, captures):
    """Its tensors cannot be changed outside of it."""
    model = exact_model(spread=2.0)
    expected = generate(model, num_beams=num_beams)
    for count in (1, 2, 2):
        with torch.inference_mode(count == 1):
            assert_same_generation(generate(model, num_beams=num_beams, **STATIC), expected)
        assert len(captures) == count


def test_changed_weights_are_captured_again(captures):
    model = exact_model(spread=2.0)
    generate(model, **STATIC)
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.mul_(-1)
    assert_same_generation(generate(model, **STATIC), generate(model))
    assert len(captures) == 2


def test_few_graphs_are_kept_and_freed_with_the_model(captures):
    model = exact_model(spread=2.0)
    for rows in range(1, decoding.MAX_CAPTURED_STEPS + 4):
        generate(model, padded_batch([3] * rows), **STATIC)
    kept = step_pool(model).steps
    assert len(kept) == decoding.MAX_CAPTURED_STEPS
    steps = [weakref.ref(step) for step in captures]
    captures.clear()
    gc.collect()
    assert sum(step() is not None for step in steps) == decoding.MAX_CAPTURED_STEPS
    del model, kept
    gc.collect()
    assert not any(step() for step in steps)


@pytest.mark.parametrize("search", SEARCHES)
def test_repeated_calls_are_captured_by_default(search, captures):
    """From the second one with the same shapes on."""
    model = exact_model(spread=2.0)
    outputs = []
    for _ in range(3):
        torch.manual_seed(0)
        outputs.append(generate(model, **SEARCHES[search]))
    assert len(captures) == 1
    assert_same_generation(outputs[1], outputs[0])
    assert_same_generation(outputs[2], outputs[0])


@pytest.mark.parametrize("options", [{"disable_compile": True}, {"cache_implementation": "dynamic"}], ids=str)
def test_calls_that_exclude_graphs_are_not_captured(options, captures):
    model = exact_model(spread=2.0)
    for _ in range(3):
        generate(model, **options)
    assert not captures


def test_calls_of_many_shapes_are_not_captured_by_default(captures, monkeypatch):
    """Their graphs would need much memory, as would those of large caches."""
    monkeypatch.setattr(decoding, "MAX_CAPTURED_STEPS", 2)
    model = exact_model(spread=2.0)
    for _ in range(3):
        for rows in (1, 2, 3):
            generate(model, padded_batch([3] * rows))
    assert [len(step.ids) for step in captures] == [1, 2]
    monkeypatch.setattr(decoding, "MAX_DEFAULT_ENTRIES", 31)
    second_model = exact_model(spread=2.0)
    for _ in range(3):
        generate(second_model, padded_batch([3]))
    assert len(captures) == 2


def with_adapter(model):
    get_peft_model(model, LoraConfig(target_modules=["fc1"], init_lora_weights=False)).double().eval()


def with_wrapped_forward(model):
    forward = type(model).forward

    def wrapped(self, *args, **kwargs):
        return forward(self, *args, **kwargs)

    wrapped.__wrapped__ = forward
    model.forward = wrapped.__get__(model)


@pytest.mark.parametrize("change", [with_adapter, with_wrapped_forward])
def test_foreign_code_is_not_captured(change, captures):
    model = exact_model(spread=2.0)
    change(model)
    assert model.fallback_reason() is None
    assert_same_generation(generate(model, **STATIC), generate(model))
    assert not captures


@pytest.mark.parametrize(
    ("config", "options"),
    [({"max_position_embeddings": 8}, {}), ({}, {"disable_compile": True}), ({}, {"cache_implementation": "dynamic"})],
    ids=str,
)
def test_what_is_not_captured(config, options, captures):
    model = exact_model(spread=2.0, **config)
    assert_same_generation(generate(model, **STATIC | options), generate(model))
    assert not captures


def test_steps_under_autocast_are_not_captured(captures):
    model = tiny_model()
    with torch.autocast("cpu", torch.bfloat16):
        generate(model, **STATIC)
    assert not captures


@ON_GPU
@pytest.mark.parametrize("search", SEARCHES)
def test_captured_steps_on_a_gpu(search):
    model = exact_model(spread=2.0).to("cuda")
    options = {name: value.to("cuda") if torch.is_tensor(value) else value for name, value in SEARCHES[search].items()}
    batch = {name: value.to("cuda") for name, value in BATCH.items()}
    ours = generate(model, batch, **STATIC, **options)
    kept = step_pool(model).steps
    assert len(kept) == 1
    assert_same_generation(ours, generate(model, batch, **options))

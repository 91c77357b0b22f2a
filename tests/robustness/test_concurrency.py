"""Concurrent calls with one model and one tokenizer equal sequential calls and restore all state."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import PreTrainedTokenizerFast, pipeline

from modeling_random_transformer import inputs_random_transformer as inputs
from modeling_random_transformer.inference import translate
from modeling_random_transformer.pipeline_random_transformer import evaluation_mode
from tests.helpers.translation import random_translator, some_texts

THREADS, ROUNDS = 8, 3
TEXTS = [some_texts(6, seed) for seed in range(THREADS)]
SHORT = {"max_new_tokens": 5}
# For half of the threads, texts are truncated: a state of the backend of a fast tokenizer.
OPTIONS = [
    {"num_beams": 1 + thread % 3, **({"max_source_tokens": 5} if thread % 2 else {})} for thread in range(THREADS)
]


@pytest.fixture(params=["training", "partly training", "evaluation"])
def model(request):
    model = random_translator(dropout=0.5).train(request.param != "evaluation")
    if request.param == "partly training":
        model.eval()
        model.model.decoder.layers.train()
    return model


def state_of(model, tokenizer):
    modes = [(name, module.training) for name, module in model.named_modules()]
    return modes, model.generation_config.to_dict(), model.config.to_dict(), tokenizer.padding_side


def run_in_threads(work):
    """Call `work` with the number of the thread in several threads at once, for several rounds."""
    barrier = threading.Barrier(THREADS)

    def repeated(thread):
        barrier.wait()
        return [work(thread) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(repeated, range(THREADS)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*texts were truncated")
@pytest.mark.parametrize("batch_size", [None, pytest.param(1, marks=pytest.mark.long), 3])
def test_calls_in_threads(model, tokenizer, batch_size):
    """Calls of `translate`, or of the pipeline with a batch size."""
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu", batch_size=batch_size or 1)

    def work(thread):
        if batch_size is None:
            return translate(TEXTS[thread], model, tokenizer, **OPTIONS[thread], **SHORT)
        return pipe(TEXTS[thread], **OPTIONS[thread], **SHORT)

    before = copy.deepcopy(state_of(model, tokenizer))
    expected = [[work(thread)] * ROUNDS for thread in range(THREADS)]
    assert run_in_threads(work) == expected
    assert state_of(model, tokenizer) == before


def test_modes_are_restored_after_the_last_call():
    """Calls may end in any order and may use models that share modules."""
    model = random_translator(dropout=0.5).train()
    model.model.encoder.eval()
    before = [module.training for module in model.modules()]
    first, second = evaluation_mode(model), evaluation_mode(model.model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.model.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == before


def test_modes_are_restored_after_an_error():
    model = random_translator(dropout=0.5).train()
    with pytest.raises(ValueError, match="wrong"), evaluation_mode(model):
        raise ValueError("wrong")
    assert all(module.training for module in model.modules())


def test_truncation_is_a_state_of_another_backend(tokenizer, monkeypatch):
    """Each call changes the truncation of a backend, which would affect concurrent calls."""
    calls = []
    call = type(tokenizer).__call__

    def recorded(self, *args, **options):
        calls.append(self)
        return call(self, *args, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", recorded)
    translate(TEXTS[0], random_translator(), tokenizer, max_source_tokens=5, **SHORT)
    assert len(calls) > 1
    assert not any(copied.backend_tokenizer is tokenizer.backend_tokenizer for copied in calls)


def test_calls_of_other_tokenizers_are_serialized(tokenizer, monkeypatch):
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    )
    locked = []

    def recorded(name):
        method = getattr(PreTrainedTokenizerFast, name)

        def call(*args, **options):
            locked.append(inputs.TOKENIZER_LOCK.locked())
            return method(*args, **options)

        monkeypatch.setattr(PreTrainedTokenizerFast, name, call)

    recorded("__call__")
    recorded("batch_decode")
    translate(TEXTS[0], random_translator(), fast_tokenizer, max_source_tokens=5, **SHORT)
    assert len(locked) > 2
    assert all(locked)

"""The tasks of transformers v4 that v5 has removed: their registration, arguments, defaults and outputs."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import NllbTokenizer, pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from modeling_random_transformer import register_v4_tasks
from modeling_random_transformer.extras.pipelines import v4_tasks as module
from tests.helpers.foreign import foreign_model
from tests.helpers.translation import random_tokenizer, some_texts

TEXTS = some_texts(3)
PARAMS = {"prefix": "summarize: ", "max_length": 5, "num_beams": 2}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(PIPELINE_REGISTRY, "supported_tasks", dict(PIPELINE_REGISTRY.supported_tasks))
    monkeypatch.setattr(PIPELINE_REGISTRY, "check_task", PIPELINE_REGISTRY.check_task)
    register_v4_tasks()


def make(task, model, tokenizer, **options):
    return pipeline(task, model=model, tokenizer=tokenizer, device="cpu", **options)


def expected(model, tokenizer, text, **options) -> list[str]:
    output = model.generate(**tokenizer(text, return_tensors="pt"), **options)
    return tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("task", "name"),
    [("translation", "translation"), ("summarization", "summary"), ("text2text-generation", "generated")],
)
def test_outputs(task, name, model, tokenizer):
    pipe, key = make(task, model, tokenizer, max_new_tokens=6), f"{name}_text"
    options = {"num_beams": 4, "max_new_tokens": 6}
    answers = [{key: expected(model, tokenizer, text, **options)[0]} for text in TEXTS]
    assert pipe(TEXTS[0]) == answers[:1]
    assert pipe(TEXTS) == pipe(TEXTS, batch_size=2) == pipe(tuple(TEXTS)) == answers
    assert list(pipe(text for text in TEXTS)) == [[answer] for answer in answers]
    several = [{key: text} for text in expected(model, tokenizer, TEXTS[0], num_return_sequences=2, **options)]
    assert pipe(TEXTS[0], num_return_sequences=2) == several
    assert pipe(TEXTS[:1], num_return_sequences=2) == [several]
    (answer,) = pipe(TEXTS[0], return_tensors=True)
    assert torch.equal(
        answer[f"{name}_token_ids"], model.generate(**tokenizer(TEXTS[0], return_tensors="pt"), **options)[0]
    )


def test_texts_without_letters(model, tokenizer):
    """They are unchanged, in the form of the other answers."""
    pipe = make("translation", model, tokenizer, max_new_tokens=6)
    assert pipe("42") == pipe(["42"]) == [{"translation_text": "42"}]
    assert pipe("42", num_return_sequences=2) == [{"translation_text": "42"}] * 2
    (answer,) = pipe("42", return_tensors=True)
    assert answer["translation_token_ids"].ndim == 1


def test_options_come_from_the_call_the_task_the_model_and_v4(tokenizer, tmp_path):
    specific = {"summarization": PARAMS, "translation_en_to_fr": PARAMS}
    t5 = foreign_model("T5", vocab_size=len(tokenizer), task_specific_params=specific)

    def text(task, **options):
        [[answer]] = [list(output.values()) for output in make(task, t5, tokenizer, **options)(TEXTS[0])]
        return [answer]

    limits = {"num_beams": 2, "max_length": 5}
    for task in specific:
        assert text(task) == expected(t5, tokenizer, PARAMS["prefix"] + TEXTS[0], **limits)
    shorter = {"num_beams": 1, "max_new_tokens": 2}
    assert text("summarization", **shorter) == expected(t5, tokenizer, PARAMS["prefix"] + TEXTS[0], **shorter)
    assert text("text2text-generation") == expected(t5, tokenizer, TEXTS[0], num_beams=4, max_new_tokens=256)
    pipe = make("translation_en_to_fr", t5, tokenizer)
    pipe.save_pretrained(tmp_path)  # needs no remote code
    assert not json.loads((tmp_path / "config.json").read_text()).get("custom_pipelines")
    assert not (tmp_path / "v4_tasks.py").exists()
    t5.generation_config.update(num_beams=1, max_length=4)
    assert text("text2text-generation") == expected(t5, tokenizer, TEXTS[0], num_beams=1, max_length=4)


def test_texts_are_only_truncated_on_request(model, recwarn):
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 4
    pipe, text = make("translation", model, tokenizer, max_new_tokens=3), "we want to buy two red apples"
    assert pipe(text) == pipe(text, truncation="do_not_truncate")
    assert not recwarn.list
    for options, limit in (({"truncation": "longest_first"}, 4), ({"max_source_tokens": 3}, 3)):
        with pytest.warns(UserWarning, match=f"truncated to {limit} tokens"):
            pipe(text, **options)


def test_languages(model, tokenizer):
    tokens = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "▁": 4, "a": 5, "b": 6}
    ids = {"bos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 2}
    nllb = foreign_model("M2M100", vocab_size=300, **ids), NllbTokenizer(vocab=tokens, merges=[])
    languages = {"src_lang": "deu_Latn", "tgt_lang": "fra_Latn"}
    built = nllb[1]._build_translation_inputs("ab", return_tensors="pt", **languages)
    output = nllb[0].generate(**built, num_beams=4, max_new_tokens=5)
    answer = [{"translation_text": nllb[1].decode(output[0], skip_special_tokens=True)}]
    assert make("translation", *nllb, max_new_tokens=5)("ab", **languages) == answer
    assert make("translation_de_to_fr", *nllb, max_new_tokens=5, **languages)("ab") == answer
    with pytest.raises(ValueError, match=r"src_lang must be one of .*, got 'de'"):
        make("translation_de_to_fr", *nllb)
    without_tags = make("translation_en_to_de", model, tokenizer, max_new_tokens=4)
    assert without_tags(TEXTS) == without_tags(TEXTS, src_lang="en", tgt_lang="de")


def test_tasks_of_transformers_are_not_replaced(monkeypatch):
    existing = {"impl": object, "pt": (), "type": "text"}
    monkeypatch.setattr(PIPELINE_REGISTRY, "supported_tasks", {"translation": existing, "summarization": existing})
    monkeypatch.setattr(PIPELINE_REGISTRY, "check_task", None)
    register_v4_tasks()
    assert [PIPELINE_REGISTRY.supported_tasks[task]["impl"] for task in module.TASKS] == [
        module.Text2TextGenerationPipeline,
        object,
        object,
    ]
    assert PIPELINE_REGISTRY.check_task is None


@pytest.mark.long
def test_importing_the_package_does_not_change_the_tasks_of_transformers():
    code = """
from transformers import pipelines
before = dict(pipelines.PIPELINE_REGISTRY.supported_tasks), dict(getattr(pipelines, "REMOVED_TASKS", {}))
import modeling_random_transformer
after = dict(pipelines.PIPELINE_REGISTRY.supported_tasks), dict(getattr(pipelines, "REMOVED_TASKS", {}))
assert after[1] == before[1] and set(after[0]) - set(before[0]) == {"seq2seq"}, after
assert "check_task" not in vars(pipelines.PIPELINE_REGISTRY)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""The tasks of transformers v4 that v5 has removed: their arguments, defaults and outputs."""

import json

import pytest
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY

from modeling_random_transformer import pipeline_aliases_random_transformer as module
from tests.helpers.models import EOS
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

TEXTS = some_texts(3)
KEYS = {"translation": "translation", "summarization": "summary", "text2text-generation": "generated"}
PARAMS = {
    "summarization": {"prefix": "summarize: ", "max_length": 5, "num_beams": 2},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 7, "num_beams": 1},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "max_length": 6, "num_beams": 3},
}


@pytest.fixture(scope="module")
def tokenizer():
    return random_tokenizer()


@pytest.fixture(scope="module")
def model():
    return random_translator().double()


@pytest.fixture(scope="module")
def t5(tokenizer):
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "initializer_factor": 20.0}
    ids = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": EOS}
    config = T5Config(vocab_size=len(tokenizer), **sizes, **ids, task_specific_params=PARAMS)
    return T5ForConditionalGeneration(config).eval().double()


@pytest.fixture(scope="module")
def nllb():
    tokens = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "▁": 4, "a": 5, "b": 6}
    stacks = {f"{stack}_{name}": 1 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = M2M100Config(vocab_size=300, decoder_start_token_id=2, **stacks, **sizes)
    return M2M100ForConditionalGeneration(config).eval().double(), NllbTokenizer(vocab=tokens, merges=[])


def make(task, model, tokenizer, **options):
    return pipeline(task, model=model, tokenizer=tokenizer, device="cpu", **options)


def expected(model, tokenizer, text, **options) -> list[str]:
    output = model.generate(**tokenizer(text, return_tensors="pt"), **options)
    return tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("task", KEYS)
def test_outputs(task, model, tokenizer):
    pipe, key = make(task, model, tokenizer, max_new_tokens=6), f"{KEYS[task]}_text"
    options = {"num_beams": 4, "max_new_tokens": 6}
    answers = [{key: expected(model, tokenizer, text, **options)[0]} for text in TEXTS]
    assert pipe(TEXTS[0]) == answers[:1]
    assert pipe(TEXTS) == pipe(TEXTS, batch_size=2) == pipe(tuple(TEXTS)) == answers
    assert list(pipe(text for text in TEXTS)) == [[answer] for answer in answers]
    several = [{key: text} for text in expected(model, tokenizer, TEXTS[0], num_return_sequences=2, **options)]
    assert pipe(TEXTS[0], num_return_sequences=2) == several
    assert pipe(TEXTS[:1], num_return_sequences=2) == [several]


def test_nested_lists(model, tokenizer):
    pipe = make("translation", model, tokenizer, max_new_tokens=6)
    first, second, third = pipe(TEXTS)
    assert pipe([TEXTS[:2], TEXTS[2:]]) == [[first, second], [third]]
    assert pipe([]) == []


def test_token_ids(model, tokenizer):
    pipe = make("summarization", model, tokenizer, max_new_tokens=6)
    (answer,) = pipe(TEXTS[0], return_tensors=True)
    ids = model.generate(**tokenizer(TEXTS[0], return_tensors="pt"), num_beams=4, max_new_tokens=6)[0]
    assert answer.keys() == {"summary_token_ids"}
    assert torch.equal(answer["summary_token_ids"], ids)
    assert pipe(TEXTS[0], return_tensors=False) == pipe(TEXTS[0], return_text=True) == pipe(TEXTS[0])


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("summarization", PARAMS["summarization"]),
        ("translation_en_to_fr", PARAMS["translation_en_to_fr"]),
    ],
)
def test_task_specific_params(task, params, t5, tokenizer, recwarn):
    prefix, options = params["prefix"], {name: value for name, value in params.items() if name != "prefix"}
    (answer,) = make(task, t5, tokenizer)(TEXTS[0])
    assert [*answer.values()] == expected(t5, tokenizer, prefix + TEXTS[0], **options)
    assert not recwarn.list
    assert t5.config.task_specific_params == PARAMS
    shorter = make(task, t5, tokenizer, max_new_tokens=2, num_beams=1)(TEXTS[0])
    assert [*shorter[0].values()] == expected(t5, tokenizer, prefix + TEXTS[0], max_new_tokens=2, num_beams=1)


def test_translation_without_languages_is_the_first_of_the_model(t5, tokenizer):
    with pytest.warns(UserWarning, match="'translation_en_to_de' by default"):
        pipe = make("translation", t5, tokenizer)
    assert pipe(TEXTS) == make("translation_en_to_de", t5, tokenizer)(TEXTS)


def test_defaults(model, tokenizer):
    (answer,) = make("text2text-generation", model, tokenizer)(TEXTS[0])
    assert [answer["generated_text"]] == expected(model, tokenizer, TEXTS[0], num_beams=4, max_new_tokens=256)


def test_generation_config_of_the_model_overrides_the_defaults(tokenizer):
    model = random_translator().double()
    model.generation_config.update(num_beams=1, max_length=4)
    (answer,) = make("translation", model, tokenizer)(TEXTS[0])
    assert [answer["translation_text"]] == expected(model, tokenizer, TEXTS[0], num_beams=1, max_length=4)


def test_stop_sequence_and_blank_texts(model, tokenizer):
    pipe = make("text2text-generation", model, tokenizer, max_new_tokens=6)
    stop = tokenizer.encode("boy", add_special_tokens=False)[0]
    answers = expected(model, tokenizer, TEXTS[0], eos_token_id=stop, num_beams=4, max_new_tokens=6)
    assert pipe(TEXTS[0], stop_sequence="boy") == [{"generated_text": answers[0]}]
    assert len(pipe(["", " ", TEXTS[0]])) == 3
    with pytest.raises(ValueError, match="texts must be strings"):
        pipe([1])


@pytest.mark.parametrize("truncation", [True, "longest_first"])
def test_texts_are_only_truncated_on_request(truncation, model, monkeypatch):
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 4
    pipe = make("translation", model, tokenizer, max_new_tokens=3)
    lengths = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **inputs: lengths.append(inputs["input_ids"].shape[1]) or generate(**inputs)
    )
    pipe("we want to buy two red apples")
    with pytest.warns(UserWarning, match="truncated to 4 tokens"):
        pipe("we want to buy two red apples", truncation=truncation)
    with pytest.warns(UserWarning, match="truncated to 3 tokens"):
        pipe("we want to buy two red apples", max_source_tokens=3)
    pipe("we want to buy two red apples", truncation="do_not_truncate")
    assert lengths[0] == lengths[3] > 4
    assert lengths[1:3] == [4, 3]


class TestLanguages:
    def test_of_the_call_and_of_the_pipeline(self, nllb):
        model, tokenizer = nllb
        languages = {"src_lang": "deu_Latn", "tgt_lang": "fra_Latn"}
        built = tokenizer._build_translation_inputs("ab", return_tensors="pt", **languages)
        output = model.generate(**built, num_beams=4, max_new_tokens=5)
        answer = [{"translation_text": tokenizer.decode(output[0], skip_special_tokens=True)}]
        assert make("translation", model, tokenizer, max_new_tokens=5)("ab", **languages) == answer
        assert make("translation", model, tokenizer, max_new_tokens=5, **languages)("ab") == answer
        (ids,) = make("translation", model, tokenizer, max_new_tokens=5)("ab", return_tensors=True, **languages)
        assert torch.equal(ids["translation_token_ids"], output[0])

    def test_of_the_name_of_the_task(self, nllb):
        with pytest.raises(ValueError, match=r"src_lang must be one of .*, got 'de'"):
            make("translation_de_to_fr", *nllb)
        pipe = make("translation_de_to_fr", *nllb, src_lang="deu_Latn", tgt_lang="fra_Latn")
        assert pipe("ab")

    def test_are_ignored_by_other_models(self, model, tokenizer):
        pipe = make("translation_en_to_de", model, tokenizer, max_new_tokens=4)
        assert pipe(TEXTS) == pipe(TEXTS, src_lang="en", tgt_lang="de")


class TestRegistration:
    @pytest.mark.parametrize("task", ["translation_en", "translation_en_to", "translation_a_b_to_c_d"])
    def test_unknown_task(self, task, model, tokenizer):
        with pytest.raises(KeyError):
            make(task, model, tokenizer)

    def test_default_models(self):
        name, entry, options = pipelines.check_task("translation_en_to_fr")
        assert name == "translation"
        assert pipelines.get_default_model_and_revision(entry, options)[0] == "google-t5/t5-base"
        entry = pipelines.check_task("summarization")[1]
        assert pipelines.get_default_model_and_revision(entry, None)[0] == "sshleifer/distilbart-cnn-12-6"

    def test_tasks_of_transformers_are_not_replaced(self, monkeypatch):
        own = {"impl": object, "pt": (), "type": "text"}
        monkeypatch.setattr(PIPELINE_REGISTRY, "supported_tasks", {"translation": own, "summarization": own})
        monkeypatch.setattr(PIPELINE_REGISTRY, "check_task", None)
        module.register_tasks()
        tasks = PIPELINE_REGISTRY.supported_tasks
        assert [tasks[task]["impl"] for task in KEYS] == [object, object, module.Text2TextGenerationPipeline]
        assert PIPELINE_REGISTRY.check_task is None

    def test_saved_pipeline_needs_no_remote_code(self, t5, tokenizer, tmp_path):
        pipe = make("translation_en_to_fr", t5, tokenizer)
        pipe.save_pretrained(tmp_path)
        assert not json.loads((tmp_path / "config.json").read_text()).get("custom_pipelines")
        assert pipeline("translation_en_to_fr", str(tmp_path), device="cpu")(TEXTS) == pipe(TEXTS)

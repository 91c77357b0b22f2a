"""An engine computes `generate()` of a loaded model where it computes the same; otherwise the model does."""

import copy
import inspect
import logging
from itertools import chain

import pytest
import torch
from transformers import GenerationConfig

from modeling_random_transformer.extras.export import ctranslate2_engine
from modeling_random_transformer.extras.export.ctranslate2_engine import (
    SEARCH_DEFAULTS,
    CTranslate2Engine,
    options_of_call,
)
from modeling_random_transformer.extras.export.search import token_names
from modeling_random_transformer.extras.export.shortlist import vmap
from modeling_random_transformer.extras.wrappers import Glossary
from modeling_random_transformer.inference import load_translator, translate, translate_n_best
from modeling_random_transformer.inference.engine import attach_engine
from modeling_random_transformer.inference.loading import load_models
from modeling_random_transformer.inputs_random_transformer import longest_target
from modeling_random_transformer.modeling_random_transformer import RandomTransformerEncoderLayer
from tests.helpers.edits import EDITS
from tests.helpers.engines import CONFIGS, GREEDY, SHORT, TEXTS, exportable, needs
from tests.helpers.models import tiny_model
from tests.helpers.trainer import new_trainer, pairs
from tests.helpers.translation import multilingual_translator

pytestmark = needs("ctranslate2")


@pytest.fixture
def models(saved):
    """The model without and with the engine, and their tokenizer."""
    model, tokenizer = load_translator(saved)
    engine, _ = load_translator(saved, engine="ctranslate2", engine_dtype="float32")
    return model, engine, tokenizer


@pytest.fixture
def reasons(monkeypatch):
    """The reasons why the model runs, each time."""

    messages = []
    monkeypatch.setattr(
        ctranslate2_engine.logger, "warning_once", lambda message, *args: messages.append(message % args)
    )
    return messages


# Options that the engine computes.
COMPUTED = {
    "greedy": {**GREEDY},
    "beams": {"num_beams": 4},
    "patience": {"num_beams": 4, "patience": 2, "length_penalty": 2.0},
    "prefixes": {**GREEDY, "prefixes": ["the", ""] * (len(TEXTS) // 2)},
    "suppress_tokens": {**GREEDY, "suppress_tokens": [20, 21, 22]},
    "min_new_tokens": {**GREEDY, "min_new_tokens": 6},
    "no_repeat_ngram_size": {**GREEDY, "no_repeat_ngram_size": 2},
    "longest": {**GREEDY, "max_new_tokens": 3},
    "longest, then the end": {**GREEDY, "max_new_tokens": 3, "forced_eos_token_id": 2},
    "longest, then an end": {**GREEDY, "max_new_tokens": 3, "forced_eos_token_id": [9, 2]},
}


def test_the_limit_on_new_tokens_belongs_to_the_sentence(models, reasons):
    """Alone, in a batch with longer sentences, and with the engine."""
    model, engine, tokenizer = models
    texts = [TEXTS[0], " ".join([TEXTS[0]] * 5), " ".join([TEXTS[0]] * 9)]
    limits = [longest_target(len(row), model.config) for row in tokenizer(texts)["input_ids"]]
    assert len(set(limits)) == len(texts)
    options = {"num_beams": 1, "suppress_tokens": [tokenizer.eos_token_id], "n_best": None}
    together, alone, by_engine = (
        [candidate.tokens for [candidate] in n_best_lists]
        for n_best_lists in (
            translate_n_best(texts, model, tokenizer, **options),
            (candidates for text in texts for candidates in translate_n_best([text], model, tokenizer, **options)),
            translate_n_best(texts, engine, tokenizer, **options),
        )
    )
    assert together == alone == by_engine
    assert [len(tokens) - 1 for tokens in together] == limits
    assert not reasons


OF_CALLS = [
    (None, {}),
    (None, {"num_beams": 3, "max_new_tokens": 7, "labels": None}),
    ({"num_beams": 2, "length_penalty": 0.5}, {}),
    ({"max_length": 9, "do_sample": True}, {"num_beams": 4, "encoder_outputs": "states"}),
]


@pytest.mark.parametrize(("of_call", "arguments"), OF_CALLS)
@pytest.mark.parametrize("of_model", [{}, {"num_beams": 5, "length_penalty": 0.6, "max_new_tokens": 30}])
def test_options_of_a_call_are_those_of_generate(of_model, of_call, arguments):
    model = tiny_model()
    model.generation_config.update(**of_model)
    config = None if of_call is None else GenerationConfig(**of_call)
    options, remaining_arguments = options_of_call(model.generation_config, config, arguments)
    expected, other_arguments = model._prepare_generation_config(config, **arguments)
    assert remaining_arguments == other_arguments
    compared = ["max_new_tokens", "eos_token_id", "pad_token_id", "early_stopping", "forced_bos_token_id"]
    for name in [*SEARCH_DEFAULTS, *compared]:
        default = SEARCH_DEFAULTS["patience"] if name == "patience" else None  # which transformers does not have
        assert (getattr(options, name) or None) == (getattr(expected, name, default) or None), name


@pytest.mark.parametrize(("early_stopping", "of_model", "patience"), [(True, None, 1), (True, 3, 3), (False, 3, 2)])
def test_the_engine_gets_the_patience_of_the_search(early_stopping, of_model, patience, models, monkeypatch):
    _, engine, tokenizer = models
    search, used = engine.engine.translate, []
    monkeypatch.setattr(
        engine.engine,
        "translate",
        lambda *rows, **options: used.append(options["patience"]) or search(*rows, **options),
    )
    monkeypatch.setattr(engine.generation_config, "patience", of_model, raising=False)
    options = {**SHORT, "early_stopping": early_stopping, "num_beams": 4, "length_penalty": 0.6}
    translate(TEXTS[:2], engine, tokenizer, **options)
    assert used == [patience]


def test_a_call_may_leave_the_patience_to_the_model(models, reasons):
    _, engine, tokenizer = models
    options = {**SHORT, "num_beams": 4, "length_penalty": 2.0}
    expected = translate(TEXTS, engine, tokenizer, **options)
    assert translate(TEXTS, engine, tokenizer, **options, patience=None) == expected
    assert not reasons


@pytest.mark.parametrize("name", COMPUTED)
def test_engine_returns_what_the_model_returns(name, models, reasons, monkeypatch):
    model, engine, tokenizer = models
    options = {"n_best": None, **SHORT, **COMPUTED[name]}
    expected = list(translate_n_best(TEXTS, model, tokenizer, **options))
    monkeypatch.setattr(engine.model.decoder, "forward", None)  # after which the model itself cannot generate
    engine.engine.model_reason = lambda _: None
    actual = list(translate_n_best(TEXTS, engine, tokenizer, **options))
    assert not reasons
    for ours, reference in zip(chain(*actual), chain(*expected), strict=True):
        assert ours.translation == reference.translation
        assert ours.tokens == reference.tokens[: len(ours.tokens)]  # transformers may repeat the end token
        assert set(reference.tokens[len(ours.tokens) :]) <= {tokenizer.eos_token}
        assert ours.score == pytest.approx(reference.score, abs=1e-3)


def test_the_engine_translates_into_each_language(tmp_path, reasons):
    model, tokenizer = multilingual_translator()
    options = {**SHORT, **GREEDY}  # with beams, the engine misses empty translations after a forced token
    expected = [translate(TEXTS, model, tokenizer, src_lang="en", tgt_lang=code, **options) for code in ("es", "fr")]
    assert expected[0] != expected[1]
    attach_engine(model, tokenizer, tmp_path, dtype="float32")
    assert model.engine is not None
    assert tokenizer.tgt_lang is None
    assert expected == [
        translate(TEXTS, model, tokenizer, src_lang="en", tgt_lang=code, **options) for code in ("es", "fr")
    ]
    assert not reasons


# By reason: options of `translate` that only the model computes.
REQUESTS = {
    "the generation mode 'sample' was requested": {**GREEDY, "do_sample": True, "seed": 1},
    "early_stopping=False with a length penalty above 0.8 was requested": {
        "num_beams": 4,
        "length_penalty": 1.0,
        "early_stopping": False,
    },
    "early_stopping='never' was requested": {"early_stopping": "never"},
    "repetition_penalty must be 1 for CTranslate2, got 1.5": {"repetition_penalty": 1.5},
    "prefix_allowed_tokens_fn was requested": {"prefix_allowed_tokens_fn": lambda *_: [5, 6]},
    "the start token or the end token is another one than at the export": {"eos_token_id": [2, 9]},
    "the first token is an end token": {"forced_bos_token_id": 2},
    "sequences were forbidden that contain the start token": {"bad_words_ids": [[1, 9]]},
    "1030 tokens exceed its 1024 positions": {**GREEDY, "max_new_tokens": 1030},
}


@pytest.mark.parametrize("reason", REQUESTS)
def test_requests_that_the_engine_lacks_are_computed_by_the_model(reason, models, reasons):
    model, engine, tokenizer = models
    options = {"n_best": None, **SHORT, **REQUESTS[reason]}
    texts = TEXTS[:2] if "tokens exceed" in reason else TEXTS
    actual = list(translate_n_best(texts, engine, tokenizer, **options))
    assert actual == list(translate_n_best(texts, model, tokenizer, **options))
    assert set(reasons) == {f"generate() runs the model, not CTranslate2: {reason}."}
    reasons.clear()
    translate(TEXTS[:2], engine, tokenizer, **SHORT)  # again by the engine
    assert not reasons


def test_scores_of_each_token_are_computed_by_the_model(models, reasons):
    model, engine, tokenizer = models
    batch = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    options = {**SHORT, "num_beams": 2, "return_dict_in_generate": True, "output_scores": True}
    actual, expected = engine.generate(**batch, **options), model.generate(**batch, **options)
    assert torch.equal(torch.stack(actual.scores), torch.stack(expected.scores))
    assert reasons == ["generate() runs the model, not CTranslate2: output_scores was requested."]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_scores_of_candidates_are_computed_by_the_engine(num_beams, models, reasons):
    model, engine, tokenizer = models
    options = {**SHORT, "early_stopping": num_beams > 1, "num_beams": num_beams, "n_best": min(num_beams, 3)}
    for actual, expected in zip(
        translate_n_best(TEXTS, engine, tokenizer, **options),
        translate_n_best(TEXTS, model, tokenizer, **options),
        strict=True,
    ):
        assert [candidate.translation for candidate in actual] == [candidate.translation for candidate in expected]
        scores = [candidate.score for candidate in expected]
        assert [candidate.score for candidate in actual] == pytest.approx(scores, rel=1e-3, abs=1e-3)
    assert not reasons


def test_left_padding_is_computed_by_the_model(models, reasons):
    model, engine, tokenizer = models
    batch = tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    flipped = {name: rows.flip(1) for name, rows in batch.items()}
    assert torch.equal(engine.generate(**flipped, **SHORT), model.generate(**flipped, **SHORT))
    assert reasons == ["generate() runs the model, not CTranslate2: a source has padding before its last token."]


def test_a_prefix_of_another_source_changes_nothing(tmp_path):
    engine, tokenizer = exportable(**CONFIGS["wide heads"])
    attach_engine(engine, tokenizer, tmp_path, dtype="float32")
    rows = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    options = {"beam_size": 5, "num_hypotheses": 5, "min_decoding_length": 0, "max_decoding_length": 8}
    prefixes = [[], ["t"], []] * (len(TEXTS) // 3)
    together = engine.engine.translate(rows, prefixes, **options)
    for row, prefix, result in zip(rows, prefixes, together, strict=True):
        [alone] = engine.engine.translate([row], [prefix], **options)
        assert result.hypotheses == alone.hypotheses


@pytest.mark.parametrize("token", [-1, 9999])
def test_token_outside_of_the_vocabulary(token, models):
    with pytest.raises(ValueError, match=f"input_ids must be in the vocabulary, 0 to .*, got ids from .*{token}"):
        models[1].generate(torch.tensor([[5, token]]), attention_mask=torch.ones(1, 2), max_new_tokens=3)


def replace_forward(model):
    model.model.encoder.layers[0].fc1.forward = lambda states: torch.zeros(*states.shape[:-1], model.config.d_ff)


CHANGES = {
    "model.encoder.layers.0 has a hook": lambda model: model.model.encoder.layers[0].register_forward_hook(
        lambda *_: None
    ),
    "layers.0.fc1 has a hook or a replaced": replace_forward,
    "the code or the weights": lambda model: model.to(torch.bfloat16),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_models_do_not_use_the_engine(name, models, reasons):
    edited = copy.deepcopy(models[1])
    assert translate(TEXTS, edited, models[2], **SHORT)
    assert not reasons  # the copy is equal to the export
    EDITS[name](edited)
    without_engine = copy.deepcopy(edited)
    without_engine.engine = None
    assert translate(TEXTS, edited, models[2], **SHORT) == translate(TEXTS, without_engine, models[2], **SHORT)
    assert set(reasons) == {
        "generate() runs the model, not CTranslate2: the code or the weights have changed since the export."
    }
    reasons.clear()
    assert translate(TEXTS[:2], models[1], models[2], **SHORT)  # the original is unchanged
    assert not reasons


@pytest.mark.parametrize("name", EDITS)
def test_edits_after_a_translation_are_noticed(name, models, reasons):
    _, engine, tokenizer = models
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    EDITS[name](engine)
    assert not reasons
    for _ in range(2):
        translate(TEXTS[:2], engine, tokenizer, **SHORT)
    assert len(reasons) == 2


def test_an_edit_of_the_configuration_is_noticed(models, reasons):
    _, engine, tokenizer = models
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    engine.config.scale_embedding = not engine.config.scale_embedding
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    assert "the code or the weights have changed" in reasons[0]


@pytest.mark.parametrize("use", ["save", "capture attention"])
def test_a_model_that_is_saved_or_observed_is_not_changed(use, models, reasons, tmp_path):
    _, engine, tokenizer = models
    if use == "save":
        engine.save_pretrained(tmp_path)
    else:
        ids = torch.tensor([[4, 2]])
        engine(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    assert not reasons


def test_a_search_is_prepared_once_for_equal_options(models, reasons, monkeypatch):
    _, engine, tokenizer = models
    prepared, search = [], ctranslate2_engine.engine_search
    monkeypatch.setattr(ctranslate2_engine, "engine_search", lambda *args: prepared.append(args) or search(*args))
    for _ in range(3):
        translate(TEXTS[:1], engine, tokenizer, num_beams=2, **SHORT)
    assert len(prepared) == 1
    batch = tokenizer(TEXTS[:1], return_tensors="pt")

    def first_token():
        [ids] = engine.generate(batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1, **SHORT)
        return ids[1].item()

    token = first_token()
    assert token == first_token()
    assert len(prepared) == 2
    suppressed = engine.generation_config.suppress_tokens = [9]
    assert first_token() == token != 9
    suppressed.append(token)  # in place
    assert first_token() != token
    assert len(prepared) == 4
    assert not reasons


def test_restored_weights_are_those_of_the_export(models, reasons):
    model, engine, tokenizer = models
    EDITS[".data ="](engine)
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    engine.load_state_dict(model.state_dict(), assign=True)
    reasons.clear()
    translate(TEXTS[:2], engine, tokenizer, **SHORT)
    assert not reasons


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("reason", CHANGES)
def test_changed_models_do_not_use_the_engine(reason, is_copy, models, reasons):
    """Copies, and a model that the engine has translated for."""
    changed = copy.deepcopy(models[1]) if is_copy else models[1]
    if not is_copy:
        translate(TEXTS, changed, models[2], **SHORT)
        assert not reasons
    CHANGES[reason](changed)
    without_engine = copy.deepcopy(changed)
    without_engine.engine = None
    assert translate(TEXTS, changed, models[2], **SHORT) == translate(TEXTS, without_engine, models[2], **SHORT)
    assert reasons
    assert all(reason in message for message in reasons)


def identity(_, states, *__, **___):
    return states


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_edited_code_of_a_class(is_reloaded, models, reasons, monkeypatch):
    """Also the code of a function, which IPython's autoreload replaces, and after a translation."""
    translate(TEXTS, models[1], models[2], **SHORT)
    assert not reasons
    method = RandomTransformerEncoderLayer.forward
    if is_reloaded:
        monkeypatch.setattr(inspect.unwrap(method), "__code__", identity.__code__)
    else:
        monkeypatch.setattr(RandomTransformerEncoderLayer, "forward", identity)
    assert translate(TEXTS, models[1], models[2], **SHORT) == translate(TEXTS, models[0], models[2], **SHORT)
    assert "the code or the weights have changed" in reasons[0]


def test_class_patched_before_loading(saved, reasons, monkeypatch):
    monkeypatch.setattr(RandomTransformerEncoderLayer, "forward", lambda _, states, *__, **___: states)
    model, _ = load_translator(saved, engine="ctranslate2", engine_dtype="float32")
    assert model.engine is None
    assert "model must compute what its export computes" in reasons[0]


SHORTLISTS = {
    "got ''": b"",
    "got bytes that are not": b"\xff\xfe\x00\x01",
    "source tokens, a tab and target tokens in each line, got 'a b'": b"a b\n",
    "got 'a\\\\t'": b"a\t\n",
    "tokens of the model, got 'Ausland' in line 1": b"\tAusland\n",
    "tokens of the model, got 'Quelle' in line 1": b"Quelle\ta\n",
}


@pytest.mark.parametrize("message", SHORTLISTS)
def test_invalid_shortlist(message, tmp_path):
    model, tokenizer = exportable()
    file = tmp_path / "vmap.txt"
    file.write_bytes(SHORTLISTS[message])
    with pytest.raises(ValueError, match=message):
        attach_engine(model, tokenizer, tmp_path / "engines", shortlist=file)
    assert not (tmp_path / "engines").exists()
    attach_engine(model, tokenizer, tmp_path / "engines")
    assert translate(TEXTS[:2], model, tokenizer, **SHORT)


def test_shortlist_limits_the_target_tokens(tmp_path):
    model, tokenizer = exportable()
    plain, names = translate(TEXTS, model, tokenizer, **SHORT | GREEDY), token_names(tokenizer, 320)
    file, only = tmp_path / "vmap.txt", tokenizer("a")["input_ids"][0]
    file.write_bytes(vmap({None: list(range(320))}, *names))
    attach_engine(model, tokenizer, tmp_path, dtype="float32", shortlist=file)
    assert translate(TEXTS, model, tokenizer, **SHORT | GREEDY) == plain
    file.write_bytes(vmap({None: [only]}, *names))
    attach_engine(model, tokenizer, tmp_path, dtype="float32", shortlist=file)
    n_best_lists = list(translate_n_best(TEXTS, model, tokenizer, n_best=None, **SHORT | GREEDY))
    special = {*tokenizer.all_special_tokens, tokenizer.convert_ids_to_tokens(only)}
    assert {token for [candidate] in n_best_lists for token in candidate.tokens} <= special


def test_models_that_cannot_be_exported(tmp_path, caplog):
    model, tokenizer = exportable()
    model.generation_config.repetition_penalty = 2.0
    ctranslate2_engine.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        ctranslate2_engine.logger.addHandler(caplog.handler)
        attach_engine(model, tokenizer, tmp_path)
    assert model.engine is None
    assert "runs the model, not CTranslate2: repetition_penalty must be 1 for CTranslate2, got 2.0." in caplog.text
    assert not list(tmp_path.glob("c*"))


def test_invalid_arguments(saved, tmp_path):
    (tmp_path / "file").touch()
    for options, message in {
        ("engine", "onnx"): "engine must be one of ctranslate2, got 'onnx'.",
        ("engine_dtype", "int4"): "dtype must be one of .*, got 'int4'",
        (
            "engine_shortlist",
            "nowhere",
        ): "engine_shortlist must be vmap.txt of an export of this model, got 'nowhere': .*No such file",
        ("engine_folder", tmp_path / "file" / "x"): "engine_folder must be a folder that can be written, got .*file/x",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_translator(saved, **({"engine": "ctranslate2"} | dict([options])))
    with pytest.raises(ValueError, match="folders must be one model with an engine, got 2"):
        load_models([saved, saved], engine="ctranslate2")


# Parts of the core that use an engine


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_an_engine_translates_in_evaluation(options, tmp_path, monkeypatch):
    searches = []
    search = CTranslate2Engine.run_search
    monkeypatch.setattr(CTranslate2Engine, "run_search", lambda *args: searches.append(1) or search(*args))
    outputs = []
    for engine in (None, "ctranslate2"):
        trainer = new_trainer(tmp_path / str(engine), eval_dataset=pairs(9), engine=engine, **options)
        trainer.train()
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight.mul_(4)  # so that no two tokens have nearly equal logits
        trainer.args.bf16 = False
        trainer.accelerator.state._mixed_precision = "no"  # in which the model would round its logits
        outputs.append(trainer.predict(trainer.eval_dataset, num_beams=1))
        assert trainer.model.engine is None
        assert bool(searches) == (engine is not None)
    assert outputs[0].predictions.tolist() == outputs[1].predictions.tolist()
    assert outputs[0].metrics["test_loss"] == pytest.approx(outputs[1].metrics["test_loss"])


def test_engine_continues_after_the_terms_of_a_glossary(translator_folder, tmp_path, monkeypatch):
    texts = ["the boy reads a book", "we want two apples", "", "The old house", "the girls do not see the boy"]
    glossary = Glossary([("boy", "niño"), ("the old house", "casa vieja"), ("dog", "perro")])
    options = {"engine": "ctranslate2", "engine_dtype": "float32", "engine_folder": tmp_path}
    model, tokenizer = load_translator(translator_folder, **options)
    calls = []
    search = model.engine.run_search
    monkeypatch.setattr(model.engine, "run_search", lambda *args: calls.append(len(args[2])) or search(*args))
    before = translate(texts, model, tokenizer, max_new_tokens=24)
    after = translate(texts, model, tokenizer, glossary=glossary, max_new_tokens=24)
    assert [i for i, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) == 2] == [0, 3, 4]
    assert "niño" in after[0]
    assert sum(calls) > 2 * 4  # the beginnings are continued by the engine too


def without_first_source(batch):
    mask = batch["attention_mask"].clone()
    mask[0] = 0
    return {**batch, "attention_mask": mask}


# By reason: the inputs of `generate()` from a batch, and options.
INPUTS = {
    "no input_ids were given": (lambda _: {}, {}),
    "input_ids were given without attention_mask": (lambda batch: {"input_ids": batch["input_ids"]}, {}),
    "a source is empty": (without_first_source, {}),
    "suppress_tokens=tensor([5, 6]) was requested": (dict, {"suppress_tokens": torch.tensor([5, 6])}),
    "no_repeat_ngram_size=-1 was requested": (dict, {"no_repeat_ngram_size": -1}),
    "the minimum length is greater than the maximum length": (dict, {"min_new_tokens": 9, "max_new_tokens": 3}),
}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("reason", INPUTS)
def test_other_inputs_are_computed_by_the_model(reason, models, reasons):
    model, engine, tokenizer = models
    inputs_of, options = INPUTS[reason]
    inputs = inputs_of(dict(tokenizer(TEXTS[:4], padding=True, return_tensors="pt")))
    options = {**SHORT, **options}
    assert torch.equal(engine.generate(**inputs, **options), model.generate(**inputs, **options))
    assert reasons == [f"generate() runs the model, not CTranslate2: {reason}."]


def test_ids_outside_the_vocabulary_are_the_error_of_the_model(models, reasons):
    _, engine, tokenizer = models
    with pytest.raises(ValueError, match="input_ids must be"):
        engine.generate(torch.tensor([[len(tokenizer), tokenizer.eos_token_id]]), **SHORT)
    assert reasons == ["generate() runs the model, not CTranslate2: input_ids were not in the vocabulary."]


INVALID = {
    "has to be a list of positive integers": {"bad_words_ids": [[-1]]},
    "Contrastive Search requires": {"penalty_alpha": 0.5},
    "eos_token_id": {"forced_eos_token_id": -1},
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_options_are_the_error_of_the_model(message, models, reasons):
    _, engine, tokenizer = models
    batch = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    with pytest.raises(ValueError, match=message):
        engine.generate(**batch, **{**SHORT, "early_stopping": False, **INVALID[message]})
    assert len(reasons) == 1


def test_max_length_counts_the_start_token(models, reasons):
    model, engine, tokenizer = models
    batch = tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    outputs = engine.generate(**batch, max_length=5, num_beams=1)
    assert outputs.shape == (4, 5)
    assert torch.equal(outputs, model.generate(**batch, max_length=5, num_beams=1))
    assert not reasons

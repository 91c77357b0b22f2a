"""The length penalty and the patience that are chosen on the validation sets."""

import json
import shutil

import numpy as np
import pytest
from transformers import GenerationConfig
from transformers.trainer_utils import PredictionOutput

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.search_choice import search_choice
from modeling_random_transformer.extras.search_choice.search_choice import SearchScore, best_search, length_ratio
from modeling_random_transformer.training import run as training_run
from tests.helpers.interruption import StoppedError, stop
from tests.helpers.training import UNSCORED, run, validation

SHORT = SearchScore(1, 0.6, 10.0, 0.7)
GOOD = SearchScore(2, 1.5, 12.0, 1.0)
LONG = SearchScore(2, 2.0, 15.0, 1.3)
OPTIONS = {"length_penalty": "auto", "max_steps": 2, "average_last": 1}


@pytest.mark.parametrize(
    ("searches", "expected"),
    [
        ([SHORT, GOOD, LONG], GOOD),
        ([SHORT, SHORT._replace(length_penalty=1.0)], SHORT),
        ([SHORT, SHORT._replace(patience=2)], SHORT),
        ([LONG, LONG._replace(length_penalty=2.5, score=20.0)], LONG),
    ],
)
def test_the_best_score_without_too_long_translations_is_chosen(searches, expected):
    assert best_search(searches) == expected


def test_length_ratio_counts_characters_also_of_another_spelling():
    tokenizer = RandomTransformerTokenizer.train(["the water of the river", "the river"] * 5, vocab_size=280)
    translations, references = ["the river", "the water"], ["ⴘôäê ꝺ", "ḻⴘꝺ"]
    predictions, labels = (
        tokenizer(texts, padding=True, return_tensors="np").input_ids for texts in (translations, references)
    )
    assert labels.shape[1] > 2 * predictions.shape[1]
    output = PredictionOutput(predictions, np.where(labels == tokenizer.pad_token_id, -100, labels), {})
    assert length_ratio(tokenizer, output) == 18 / 9
    nothing = PredictionOutput(predictions, np.full((2, 1), -100), {})
    assert length_ratio(tokenizer, nothing) == 18


@pytest.fixture
def scored(monkeypatch):
    """Scores that depend on the length penalty only; the penalties for which `search_scores` was called."""
    calls = []

    def search_scores(trainer):
        calls.append(trainer.args.search_kwargs)
        yield from (SHORT, GOOD, LONG)

    monkeypatch.setattr(search_choice, "search_scores", search_scores)
    return calls


def saved_search(folder):
    config = GenerationConfig.from_pretrained(folder)
    return config.length_penalty, config.early_stopping, getattr(config, "patience", None)


def test_the_choice_is_saved_stated_and_not_repeated(corpus, scored, caplog):
    options = {**OPTIONS, **validation(corpus)}
    result = run(corpus, "out", **options)
    assert scored == [{"num_beams": 4, "length_penalty": 1.0, "early_stopping": True, "patience": 1}]
    assert saved_search(result.folder) == (1.5, True, 2)
    choice = "The length penalty 1.5 and the patience 2 were chosen on at most 300 validation pairs, by chrf"
    assert any(message.startswith(choice) for message in caplog.messages)
    card = (result.folder / "README.md").read_text()
    assert choice in card
    assert "| 2 | 2.0 | 15.0 | 1.3 |" in card
    assert "| `length_penalty` | 1.5 |" in card
    assert "--length_penalty auto" in card
    (result.folder / "README.md").unlink()
    again = run(corpus, "out", **options)
    assert again.scores == result.scores
    assert len(scored) == 1
    assert (result.folder / "README.md").read_text() == card
    run(corpus, "out", **{**options, "length_penalty": 0.6})
    assert saved_search(result.folder) == (0.6, None, None)
    assert "were chosen" not in (result.folder / "README.md").read_text()


def test_an_interrupted_choice_is_made_by_the_next_call(corpus, scored, monkeypatch):
    options = {**OPTIONS, **validation(corpus)}
    whole = run(corpus, "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "save_search", stop)
        with pytest.raises(StoppedError):
            run(corpus, "out", **options)
    result = run(corpus, "out", **options)
    assert len(scored) == 2
    assert (saved_search(result.folder), result.scores) == ((1.5, True, 2), whole.scores)


def test_a_finished_model_gets_a_chosen_length_penalty(corpus, scored):
    run(corpus, "out", **{**OPTIONS, "length_penalty": 1.0})
    assert not scored
    result = run(corpus, "out", **OPTIONS, **validation(corpus))
    assert len(scored) == 1
    assert {*result.scores} == {"validation", "test"}
    assert saved_search(result.folder) == (1.5, True, 2)


def test_translations_of_several_validation_sets_are_scored(corpus, monkeypatch):
    monkeypatch.setattr(search_choice, "SENTENCES", 5)
    monkeypatch.setattr(search_choice, "LENGTH_PENALTIES", (0.6, 2.0))
    shutil.copy(corpus / "test.a", corpus / "other.a")
    sets = {"validation_source_file": [str(corpus / "test.a"), str(corpus / "other.a")]}
    sets["validation_target_file"] = [str(corpus / "test.b")] * 2
    result = run(corpus, "out", **{**OPTIONS, **sets, **UNSCORED}, eval_strategy="steps", eval_steps=2)
    facts = json.loads((result.folder / "training_manifest.json").read_text())["search"]["facts"]
    searches = [(patience, penalty) for patience, penalty, _, _ in facts["searches"]]
    assert {(1, 0.6), (2, 0.6)} <= {*searches} <= {(1, 0.6), (1, 2.0), (2, 0.6), (2, 2.0)}
    assert (facts["patience"], facts["length_penalty"]) in searches
    assert saved_search(result.folder) == (facts["length_penalty"], True, facts["patience"])


@pytest.mark.parametrize("option", [{}, {"validation": True, "predict_with_generate": False}, {"length_penalty": "x"}])
def test_a_choice_needs_translations_of_a_validation_set(option, corpus):
    sets = validation(corpus) if option.pop("validation", False) else {}
    with pytest.raises(ValueError, match="length_penalty must be a number"):
        run(corpus, "out", **{**OPTIONS, **sets, **option})
    assert not (corpus / "out").exists()

"""Translations with a confidence, and those below a minimum."""

import pytest

from modeling_random_transformer.extras.pairs.words import WordScorer
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference import translate_n_best as translate_candidates
from modeling_random_transformer.inference.confidence import features_of
from modeling_random_transformer.inference.translation import Translator
from tests.helpers.calibration import CALIBRATED, SHORT, TEXTS, calibrated_translator, rated
from tests.helpers.translation import random_tokenizer, random_translator


@pytest.fixture(scope="module")
def calibrated():
    return calibrated_translator()


def test_a_confidence_is_that_of_the_scores_of_the_translation(calibrated):
    model, tokenizer = calibrated
    candidates = rated(*calibrated)
    assert [best.translation for best in candidates] == translate(TEXTS, model, tokenizer, **SHORT)
    pairs = [(text, best.translation) for text, best in zip(TEXTS[:3], candidates[:3], strict=True)]
    scores = WordScorer(*calibrated)(pairs, 0, lambda _: None)
    for best, pair, score in zip(candidates, pairs, scores, strict=False):
        assert best.confidence == pytest.approx(CALIBRATED.confidence(features_of(pair, score)), abs=1e-5)
        assert [word for word, _ in best.words] == best.translation.split()
        assert all(0 < probability <= 1 for _, probability in best.words)
    assert [best.confidence for best in candidates[3:]] == [None, None]  # not translated by the model


def test_a_text_has_the_lowest_confidence_of_its_sentences(calibrated):
    first, second = "The boy reads a book.", "We want two apples."
    parts = rated(*calibrated, [first, second])
    [whole] = rated(*calibrated, [f"{first} {second}"], split_sentences=True)
    assert whole.confidence == pytest.approx(min(part.confidence for part in parts), abs=1e-5)
    assert len(whole.words) == sum(len(part.words) for part in parts)


def test_each_of_several_candidates_has_a_confidence(calibrated):
    options = {**SHORT, "n_best": 2, "confidence": True, "split_sentences": True}
    texts = ["The boy reads a book.", "We want two apples.", "12:30", "The boy reads a book. We want two apples."]
    first, second, digits, both = translate_candidates(texts, *calibrated, **options)
    confidences = [candidate.confidence for candidate in (*first, *second)]
    assert len(set(confidences)) == 4
    assert [candidate.confidence for candidate in digits] == [None]
    for whole, *parts in zip(both, first, second, strict=True):
        assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
        assert whole.confidence == pytest.approx(min(part.confidence for part in parts), abs=1e-5)


@pytest.mark.parametrize("keep_source", [False, True])
def test_translations_below_the_minimum_are_replaced_and_counted(calibrated, keep_source, caplog):
    model, tokenizer = calibrated
    plain = rated(model, tokenizer)
    minimum = sorted(best.confidence for best in plain[:3])[1]
    options = {"min_confidence": minimum, "keep_source": keep_source, "chunk_size": 5}
    texts = translate(TEXTS, model, tokenizer, **SHORT, **options)
    expected = []
    for text, best in zip(TEXTS, plain, strict=True):
        is_kept = best.confidence is None or best.confidence >= minimum
        expected.append(best.translation if is_kept else text * keep_source)
    assert texts == expected != [best.translation for best in plain]
    assert "1 of 5 translations were below the minimum confidence." in caplog.text


def test_a_column_of_confidences_is_another_job(calibrated):
    model, tokenizer = calibrated
    without = Translator(model, tokenizer, min_confidence=0.4).effective_options()
    assert Translator(model, tokenizer, min_confidence=0.4, confidence=True).effective_options() != without


def test_repair_by_another_calibration_is_another_job(calibrated):
    model, tokenizer = calibrated
    recorded = Translator(model, tokenizer, repair=True).effective_options()
    assert recorded != Translator(random_translator(), tokenizer, repair=True).effective_options()


@pytest.mark.parametrize("options", [{"confidence": True}, {"min_confidence": 0.4}])
def test_a_model_without_calibration_is_an_error_that_says_how_to_make_one(options):
    with pytest.raises(ValueError, match="run random-transformer calibrate"):
        list(translate_candidates(TEXTS, random_translator(), random_tokenizer(), n_best=None, **options))

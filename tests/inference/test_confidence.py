"""Confidence of translations: its file, its places in the outputs, and translations below a minimum."""

import math
from dataclasses import asdict

import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.base import digests
from modeling_random_transformer.base.files import write_json
from modeling_random_transformer.inference import load_translator
from modeling_random_transformer.inference import translate_n_best as translate_candidates
from modeling_random_transformer.inference.calibration import MIN_PAIRS, calibrate
from modeling_random_transformer.inference.confidence import (
    CALIBRATION,
    Calibrations,
    calibration_file,
    find_calibration,
)
from tests.helpers.calibration import CALIBRATED, TEXTS, calibrated_translator
from tests.helpers.translation import SENTENCES, random_tokenizer, random_translator, some_texts


@pytest.fixture(scope="module")
def calibrated():
    return calibrated_translator()


@pytest.fixture
def folder(tmp_path):
    random_translator().save_pretrained(tmp_path / "model")
    random_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_calibration_is_saved_beside_its_weights(folder):
    CALIBRATED.save(folder)
    model, tokenizer = load_translator(folder)
    assert find_calibration(model, tokenizer).weights == CALIBRATED.weights
    random_translator(seed=1).save_pretrained(folder)
    assert find_calibration(*load_translator(folder)) is None
    (folder / CALIBRATION).write_text('{"threshold": 1}')
    with pytest.raises(ValueError, match=r"confidence\.json must be a calibration"):
        load_translator(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bias", "1.0"),
        ("bias", 10**400),
        ("threshold", None),
        ("length_ratio", math.nan),
        ("source_bias", math.inf),
        ("weights", CALIBRATED.weights[:5]),  # would be applied to the first five features
        ("weights", [*CALIBRATED.weights, 1.0]),
        ("weights", {"a": 1.0}),
        ("weights", ["0.5"] * 6),
        ("source_weights", CALIBRATED.source_weights[:6]),
        ("source_weights", "0123456"),
        ("source_weights", None),
    ],
)
def test_a_damaged_calibration_is_an_error_of_its_file(name, value, tmp_path):
    write_json(tmp_path / CALIBRATION, {**asdict(CALIBRATED), name: value})
    with pytest.raises(ValueError, match=r"confidence\.json must be a calibration: "):
        Calibrations(tmp_path)


def test_weights_are_read_when_the_calibration_is_used(folder, monkeypatch):
    CALIBRATED.save(folder)
    paths = []
    monkeypatch.setattr(digests, "file_digest", paths.append)
    model, tokenizer = load_translator(folder)
    assert not paths
    assert find_calibration(model, tokenizer) is None  # the digest is another one
    assert len(paths) == 1


def test_each_direction_has_its_calibration(tmp_path):
    model = random_translator()
    tokenizer = RandomTransformerTokenizer.train(SENTENCES, vocab_size=320, languages=["en", "es", "de"], src_lang="en")
    assert calibration_file(tokenizer, tgt_lang="de") == "confidence.en.de.json"  # from the tokenizer's language
    pairs = list(zip(some_texts(MIN_PAIRS, 1), some_texts(MIN_PAIRS, 2), strict=True))
    translations = [target for _, target in pairs[:50]] + [""] * (MIN_PAIRS - 50)
    calibration = calibrate(model, tokenizer, pairs, translations, src_lang="en", tgt_lang="de")
    assert find_calibration(model, tokenizer, src_lang="en", tgt_lang="de") is calibration
    assert find_calibration(model, tokenizer, src_lang="de", tgt_lang="en") is None
    calibration.save(tmp_path, "confidence.en.de.json")
    CALIBRATED.save(tmp_path)  # of an earlier version, without a direction
    model.calibrations = Calibrations(tmp_path)
    assert find_calibration(model, tokenizer, tgt_lang="de").pairs == MIN_PAIRS
    assert find_calibration(model, tokenizer, tgt_lang="es").weights == CALIBRATED.weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_confidence": 2}, "must be None or a number from 0 to 1"),
        ({"min_confidence": 0.5, "n_best": 2}, "n_best must be None with min_confidence"),
    ],
)
def test_options_without_a_meaning_are_errors(calibrated, options, message):
    with pytest.raises(ValueError, match=message):
        list(translate_candidates(TEXTS, *calibrated, **{"n_best": None, **options}))


def test_other_files_whose_names_begin_alike_are_no_calibrations(folder):
    (folder / "confidence_of_annotators.json").write_text("[]")
    assert "confidence_of_annotators.json" not in Calibrations(folder).by_file

"""Confidence of translations: the fit, its file, its places in the outputs, and translations below a minimum."""

import json
import math

import numpy as np
import pytest

from modeling_random_transformer import RandomTransformerTokenizer, cli
from modeling_random_transformer.inference import confidence, load_translator, score_pairs, translate, translate_file
from modeling_random_transformer.inference import translate_n_best as translate_candidates
from modeling_random_transformer.inference.calibration import MIN_PAIRS, calibrate, fit_logistic
from modeling_random_transformer.inference.confidence import (
    CALIBRATION,
    Calibration,
    Calibrations,
    calibration_file,
    features_of,
    find_calibration,
)
from modeling_random_transformer.inference.scoring import PairScore, with_words
from tests.helpers.translation import SENTENCES, random_tokenizer, random_translator, some_texts

TEXTS = [*SENTENCES[:3], "", "12:30"]
SHORT = {"num_beams": 2, "progress": False}
CALIBRATED = Calibration(
    50.0, 100, weights=[0.5, 0.1, 0.2, -0.3, 0.1, 0.1], bias=1.0, length_ratio=1.0, scripts=["Latin"]
)


@pytest.fixture(scope="module")
def calibrated():
    model, tokenizer = random_translator(), random_tokenizer()
    model.calibrations = Calibrations()
    model.calibrations.by_file[CALIBRATION] = CALIBRATED
    return model, tokenizer


@pytest.fixture
def folder(tmp_path):
    random_translator().save_pretrained(tmp_path / "model")
    random_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rated(model, tokenizer, texts=TEXTS, **options):
    options = {**SHORT, "n_best": None, "confidence": True, **options}
    return [best for [best] in translate_candidates(texts, model, tokenizer, **options)]


def test_the_fit_gives_the_probabilities_of_the_examples():
    features = np.random.default_rng(0).normal(size=(4000, 2)) * [1, 20] + [0, 7]
    probabilities = 1 / (1 + np.exp(-(0.3 + features @ [1.5, -0.05])))
    labels = np.random.default_rng(1).random(4000) < probabilities
    assert fit_logistic(features, labels) == pytest.approx([0.3, 1.5, -0.05], abs=0.1)
    assert np.isfinite(fit_logistic(features, features[:, 0] > 0)).all()  # that can be separated
    assert np.isfinite(fit_logistic(np.ones((100, 2)), labels[:100])).all()


def test_a_confidence_is_that_of_the_scores_of_the_translation(calibrated):
    model, tokenizer = calibrated
    candidates = rated(*calibrated)
    assert [best.translation for best in candidates] == translate(TEXTS, model, tokenizer, **SHORT)
    pairs = [(text, best.translation) for text, best in zip(TEXTS[:3], candidates[:3], strict=True)]
    scores = score_pairs(*calibrated, pairs, token_scores=True, word_scores=True)
    for best, pair, score in zip(candidates, pairs, scores, strict=False):
        assert best.confidence == pytest.approx(CALIBRATED.confidence(features_of(pair, score)), abs=1e-5)
        assert [word for word, _ in best.words] == best.translation.split()
        assert all(0 < probability <= 1 for _, probability in best.words)
    assert [best.confidence for best in candidates[3:]] == [None, None]  # not translated by the model


def test_a_word_has_the_probability_of_its_tokens():
    score = PairScore(math.log(0.01), 4, [math.log(value) for value in (0.5, 0.1, 0.4, 0.5)])
    words = with_words(score, "ein  Hund", [None, 0, 0, 1, None], 3).words  # a tag of the language, and the end
    assert [word for word, _ in words] == ["ein", "Hund"]
    assert [probability for _, probability in words] == pytest.approx([0.05, 0.4])


def test_a_text_has_the_lowest_confidence_of_its_sentences(calibrated):
    first, second = "The boy reads a book.", "We want two apples."
    parts = rated(*calibrated, [first, second])
    [whole] = rated(*calibrated, [f"{first} {second}"], split_sentences=True)
    assert whole.confidence == pytest.approx(min(part.confidence for part in parts), abs=1e-5)
    assert len(whole.words) == sum(len(part.words) for part in parts)


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


def test_a_calibration_is_saved_beside_its_weights(folder):
    CALIBRATED.save(folder)
    model, tokenizer = load_translator(folder)
    assert find_calibration(model, tokenizer).weights == CALIBRATED.weights
    random_translator(seed=1).save_pretrained(folder)
    assert find_calibration(*load_translator(folder)) is None
    (folder / CALIBRATION).write_text('{"threshold": 1}')
    with pytest.raises(ValueError, match=r"confidence\.json must be a calibration"):
        load_translator(folder)


def test_weights_are_read_when_the_calibration_is_used(folder, monkeypatch):
    CALIBRATED.save(folder)
    paths = []
    monkeypatch.setattr(confidence, "file_digest", paths.append)
    model, tokenizer = load_translator(folder)
    assert not paths
    assert find_calibration(model, tokenizer) is None  # the digest is another one
    assert len(paths) == 1


def test_each_direction_has_its_calibration(tmp_path):
    model = random_translator()
    tokenizer = RandomTransformerTokenizer.train(SENTENCES, vocab_size=320, languages=["en", "es", "de"], src_lang="en")
    assert calibration_file(tokenizer, tgt_lang="de") == "confidence.en.de.json"  # from the tokenizer's language
    pairs = list(zip(some_texts(MIN_PAIRS, 1), some_texts(MIN_PAIRS, 2), strict=True))
    translations = [target for _, target in pairs]
    calibration = calibrate(model, tokenizer, pairs, translations, src_lang="en", tgt_lang="de")
    assert find_calibration(model, tokenizer, src_lang="en", tgt_lang="de") is calibration
    assert find_calibration(model, tokenizer, src_lang="de", tgt_lang="en") is None
    calibration.save(tmp_path, "confidence.en.de.json")
    CALIBRATED.save(tmp_path)  # of an earlier version, without a direction
    model.calibrations = Calibrations(tmp_path)
    assert find_calibration(model, tokenizer, tgt_lang="de").pairs == MIN_PAIRS
    assert find_calibration(model, tokenizer, tgt_lang="es").weights == CALIBRATED.weights


@pytest.mark.parametrize("options", [{"confidence": True}, {"min_confidence": 0.4}])
def test_a_model_without_calibration_is_an_error_that_says_how_to_make_one(options):
    with pytest.raises(ValueError, match="make it by random-transformer calibrate"):
        translate(TEXTS, random_translator(), random_tokenizer(), **options)


@pytest.mark.parametrize(
    "options", [{"min_confidence": 2}, {"min_confidence": 0.5, "n_best": 2}, {"confidence": True, "n_best": 2}]
)
def test_options_without_a_meaning_are_errors(calibrated, options):
    with pytest.raises(ValueError, match=r"must be from 0 to 1|must be None with (min_)?confidence"):
        list(translate_candidates(TEXTS, *calibrated, **{"n_best": None, **options}))


def test_a_calibration_needs_enough_pairs(calibrated):
    with pytest.raises(ValueError, match=f"pairs must be at least {MIN_PAIRS}"):
        calibrate(*calibrated, [("a", "b")] * (MIN_PAIRS - 1))


class TestCommands:
    def files(self, tmp_path):
        paths = tmp_path / "dev.en", tmp_path / "dev.es"
        for seed, path in enumerate(paths):
            path.write_text("".join(f"{text}\n" for text in some_texts(MIN_PAIRS, seed)))
        return ["--source_file", str(paths[0]), "--target_file", str(paths[1])]

    def test_calibrate_and_translate(self, folder, tmp_path, capsys):
        arguments = ["calibrate", "--model", str(folder), *self.files(tmp_path)]
        assert cli.main(arguments) == 0
        assert f"{MIN_PAIRS} pairs" in capsys.readouterr().out
        assert cli.main(arguments) == 2
        assert "unless --overwrite is given" in capsys.readouterr().err
        source, output = tmp_path / "test.en", tmp_path / "test.tsv"
        source.write_text("".join(f"{text}\n" for text in TEXTS))
        translating = ["translate", "--model", str(folder), "--confidence", "--num_beams", "2"]
        assert cli.main([*translating, "--input", str(source), "--output", str(output)]) == 0
        model, tokenizer = load_translator(folder)
        expected = rated(model, tokenizer)
        for line, best in zip(output.read_text().removesuffix("\n").split("\n"), expected, strict=True):
            translation, confidence = line.split("\t")
            assert translation == best.translation.replace("\t", " ")
            assert confidence == ("" if best.confidence is None else f"{best.confidence:.4f}")
        assert cli.main([*translating, "--output_format", "jsonl", TEXTS[0]]) == 0
        [line] = capsys.readouterr().out.splitlines()
        fields = json.loads(line)
        assert fields["confidence"] == pytest.approx(expected[0].confidence, abs=1e-4)
        assert [word for word, _ in fields["words"]] == expected[0].translation.split()

    def test_a_file_below_the_minimum(self, folder, tmp_path):
        CALIBRATED.save(folder)
        model, tokenizer = load_translator(folder)
        source, output = tmp_path / "test.en", tmp_path / "test.es"
        source.write_text("".join(f"{text}\n" for text in TEXTS))
        translate_file(source, output, model, tokenizer, min_confidence=1, keep_source=True, **SHORT)
        assert output.read_text().splitlines() == TEXTS

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["--keep_source"], "--min_confidence must be given with --keep_source"),
            (["--min_confidence", "3"], "min_confidence must be from 0 to 1, got 3.0"),
            (["--format", "html", "--confidence"], "--format must be text with --repair, --confidence"),
        ],
    )
    def test_arguments_without_a_meaning(self, folder, arguments, error, capsys):
        assert cli.main(["translate", "--model", str(folder), "a", *arguments]) == 2
        assert error in capsys.readouterr().err


def test_other_files_whose_names_begin_alike_are_no_calibrations(folder):
    (folder / "confidence_of_annotators.json").write_text("[]")
    assert "confidence_of_annotators.json" not in Calibrations(folder).by_file

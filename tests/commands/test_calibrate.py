"""`random-transformer calibrate`, and the confidence of translations afterwards."""

import json

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.inference import calibration, load_translator, translate_file
from modeling_random_transformer.inference.calibration import MIN_PAIRS
from modeling_random_transformer.inference.confidence import Calibration
from tests.helpers.calibration import SHORT, TEXTS, rated
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

CALIBRATED = Calibration(
    50.0, 100, weights=[0.5, 0.1, 0.2, -0.3, 0.1, 0.1], bias=1.0, length_ratio=1.0, scripts=["Latin"]
)


@pytest.fixture
def folder(tmp_path):
    random_translator().save_pretrained(tmp_path / "model")
    random_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def files(tmp_path):
    paths = tmp_path / "dev.en", tmp_path / "dev.es"
    for seed, path in enumerate(paths):
        path.write_text("".join(f"{text}\n" for text in some_texts(MIN_PAIRS, seed)))
    return ["--source_file", str(paths[0]), "--target_file", str(paths[1])]


def test_calibrate_and_translate(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(calibration, "MIN_BELOW", 0)  # the model is random
    arguments = ["calibrate", "--model", str(folder), *files(tmp_path)]
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


def test_a_file_below_the_minimum(folder, tmp_path):
    CALIBRATED.save(folder)
    model, tokenizer = load_translator(folder)
    source, output = tmp_path / "test.en", tmp_path / "test.es"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    translate_file(source, output, model, tokenizer, min_confidence=1, keep_source=True, **SHORT)
    assert output.read_text().splitlines() == TEXTS


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--keep_source"], "keep_source must be False without min_confidence, got True"),
        (["--min_confidence", "3"], "min_confidence must be None or a number from 0 to 1, got 3.0"),
        (["--format", "html", "--confidence"], "--format must be text with --split_sentences, --repair, --confidence"),
    ],
)
def test_arguments_without_a_meaning(folder, arguments, error, capsys):
    assert cli.main(["translate", "--model", str(folder), "a", *arguments]) == 2
    assert error in capsys.readouterr().err


def test_a_file_in_another_encoding(folder, tmp_path, capsys):
    """Otherwise, only its lines in ASCII would be used."""
    flags = files(tmp_path)
    (tmp_path / "dev.es").write_bytes(b"ni\xf1o\n" * 50 + b"two\n" * (MIN_PAIRS - 50))
    assert cli.main(["calibrate", "--model", str(folder), *flags]) == 2
    assert "texts must be UTF-8, got" in capsys.readouterr().err


def test_a_text_that_is_too_long_is_named_by_its_line(folder, tmp_path, capsys):
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 20
    tokenizer.save_pretrained(folder)
    path = tmp_path / "dev.tsv"
    path.write_text("a\tb\n" * MIN_PAIRS + "\tb\n" + "a " * 30 + "\tb\n")
    assert cli.main(["calibrate", "--model", str(folder), "--source_file", str(path)]) == 2
    assert f"dev.tsv, line {MIN_PAIRS + 2}: texts must have at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--chunk_size", "7"], "arguments must be among those of --help, got --chunk_size"),
        (["--restart"], "arguments must be among those of --help, got --restart"),
        (["--source_key", "en"], "--source_key and --target_key must be unset with --target_file"),
    ],
)
def test_flags_without_an_effect_are_errors(folder, tmp_path, flags, error, capsys):
    assert cli.main(["calibrate", "--model", str(folder), *files(tmp_path), *flags]) == 2
    assert error in capsys.readouterr().err

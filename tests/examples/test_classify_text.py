"""The text classification example: data, errors, complete runs."""

import re

import classify_text
import pytest
import torch
from transformers import pipeline

from tests.helpers.models import save_translator
from tutorials.sample_data import sample

ANIMALS = ["cat", "dog", "cow", "hen", "lion"]
COLORS = ["red", "blue", "green", "white", "black"]
SINGLE = [(f"{verb} the {word}", kind) for kind, words in (("animal", ANIMALS), ("color", COLORS))
          for word in words for verb in ("see", "draw", "buy", "like")]  # fmt: skip
PAIRS = [(f"the {first}\tthe {second}", str(first == second)) for first in ANIMALS for second in ANIMALS]


def write(path, rows):
    path.write_text("".join(f"{texts}\t{label}\n" for texts, label in rows))
    return str(path)


def accuracy(output: str) -> float:
    return float(re.search(r"held-out texts: ([\d.]+)%", output)[1])


@pytest.mark.long
def test_model_learns_animals_and_colors(tmp_path, capsys):
    """The saved folder predicts the printed labels."""
    train, out = write(tmp_path / "train.tsv", SINGLE * 5), str(tmp_path / "out")
    assert classify_text.main(["--train_file", train, "--max_steps", "60", "--output_dir", out,
                               "--classify", "see the lion", "buy the red"]) == 0  # fmt: skip
    output = capsys.readouterr().out
    assert accuracy(output) == 100
    assert re.search(r"see the lion +animal", output)
    assert re.search(r"buy the red +color", output)
    pipe = pipeline("text-classification", model=out)
    assert [answer["label"] for answer in pipe(["see the lion", "buy the red"])] == ["animal", "color"]


def test_pairs_with_the_encoder_of_a_translation_model(tmp_path, capsys):
    """The same random seed yields the same output."""
    translator = tmp_path / "translator"
    save_translator(translator)
    train, test = write(tmp_path / "train.tsv", PAIRS), write(tmp_path / "test.tsv", PAIRS[:8])
    arguments = ["--train_file", train, "--test_file", test, "--model", str(translator), "--max_steps", "3"]
    outputs = []
    for _ in range(2):
        questions = ["the cat", "the dog", "the hen", "the hen"]
        assert classify_text.main([*arguments, "--output_dir", str(tmp_path / "out"), "--classify", *questions]) == 0
        outputs.append(re.sub(r"Training time.*", "", capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    assert "the cat | the dog" in outputs[0]
    assert "Baseline, always 'False': 75.0%" in outputs[0]
    assert "'text_pair': 'the cat'" in outputs[0]
    answer = pipeline("text-classification", model=str(tmp_path / "out"))({"text": "the hen", "text_pair": "the hen"})
    assert re.search(rf"the hen \| the hen +{answer['label']} +{answer['score']:.2f}", outputs[0])


def test_encoder_weights_are_loaded(tmp_path):
    whole = save_translator(tmp_path)
    model, tokenizer = classify_text.build_classifier(tmp_path, PAIRS, {"b", "a", "c"})
    assert torch.equal(model.model.encoder.layers[1].fc1.weight, whole.model.encoder.layers[1].fc1.weight)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert len(tokenizer) == whole.config.vocab_size


def test_sample_is_balanced_and_correct():
    spanish_of = dict(sample(400, seed=1))
    rows = classify_text.translation_or_not(list(spanish_of.items()))
    assert len(rows) == len({texts for texts, _ in rows}) == 800
    for texts, label in rows:
        english, spanish = texts.split("\t")
        assert (spanish_of[english] == spanish) == (label == "translation")
        assert spanish in spanish_of.values()
    alike = [len(spanish_of[e].split()) == len(s.split()) for e, s in (texts.split("\t") for texts, _ in rows)]
    assert sum(alike) > 0.9 * len(alike)

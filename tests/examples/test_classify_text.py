"""The text classification example: data, errors, complete runs."""

import re
from pathlib import Path

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
PAIRS = [(f"the {animal}\tthe {other}", str(animal == other)) for animal in ANIMALS for other in ANIMALS]


def write(path, rows):
    path.write_text("".join(f"{texts}\t{label}\n" for texts, label in rows))
    return str(path)


def accuracy(output: str) -> float:
    return float(re.search(r"held-out texts: ([\d.]+)%", output)[1])


@pytest.mark.slow
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


def test_held_out_sample_sentences_are_not_in_the_training_data():
    train, test = classify_text.read_data(None, None, seed=0)
    english = [{texts.split("\t")[0] for texts, _ in rows} for rows in (train, test)]
    assert (len(train), len(test)) == (18000, 600)
    assert not english[0] & english[1]


def test_tenth_of_the_rows_is_held_out(tmp_path):
    train, test = classify_text.read_data(Path(write(tmp_path / "train.tsv", SINGLE)), None, seed=0)
    assert (len(train), len(test)) == (36, 4)
    assert {*train, *test} == set(SINGLE)


INVALID_FILES = {  # training data, held-out data if any, error message
    "no tab": ("see the cat\n", None, r"a text, a tab and a label, got line 1 of .*train\.tsv"),
    "blank line": ("cat\tanimal\n\n", None, "a label, got line 2"),
    "empty label": ("cat\tanimal\nred\t\n", None, "a label, got line 2"),
    "empty text": ("cat\t\tanimal\n", None, "a label, got line 1"),
    "three texts": ("a\tb\tc\tlabel\n", None, "all lines must have one text, or all two, got 3 in line 1"),
    "texts and pairs": ("cat\tanimal\ncat\tdog\tanimal\n", None, "or all two, got 2 in line 2"),
    "one label": ("cat\tanimal\n" * 30, None, "at least two labels, got only 'animal'"),
    "nothing": ("", None, "at least one text with its label, got none"),
    "few": ("cat\tanimal\nred\tcolor\n", None, "at least 20 different sentences, got 2"),
    "new label": ("cat\tanimal\nred\tcolor\n", "two\tnumber\n", "only labels of --train_file, got 'number'"),
    "pairs held out": (
        "cat\tanimal\nred\tcolor\n",
        "a\tb\tanimal\n",
        "same number of texts per line, got 1 in .* and 2",
    ),
    "nothing held out": ("cat\tanimal\nred\tcolor\n", "", r"got none in .*test\.tsv"),
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_invalid_files_exit_with_2(case, tmp_path, capsys):
    train, test, message = INVALID_FILES[case]
    (tmp_path / "train.tsv").write_text(train)
    arguments = ["--train_file", str(tmp_path / "train.tsv")]
    if test is not None:
        (tmp_path / "test.tsv").write_text(test)
        arguments += ["--test_file", str(tmp_path / "test.tsv")]
    assert_exits_with_2([*arguments, "--output_dir", str(tmp_path / "out")], message, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train_file", "missing.tsv"], "--train_file: must be a file that exists, got 'missing.tsv'"),
        (["--test_file", __file__], "--test_file must be used with --train_file"),
        (["--model", "nowhere"], "--model: must be a folder with a saved model and its tokenizer, got 'nowhere'"),
        (["--epochs", "0"], "--epochs must be a positive number, got 0.0"),
        (
            ["--classify", "I see her."],
            "--classify must be nonempty texts, 2 for each classification, got ['I see her.']",
        ),
        (
            ["--classify", "I see her.", " "],
            "2 for each classification, got ['I see her.', ' ']",
        ),
    ],
)
def test_invalid_arguments_exit_with_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_exits_with_2(arguments, re.escape(message), capsys)


def test_model_without_an_encoder_exits_with_2(tmp_path, capsys):
    from modeling_random_transformer import RandomTransformerForCausalLM

    whole = save_translator(tmp_path / "causal")
    RandomTransformerForCausalLM(whole.config).save_pretrained(tmp_path / "causal")
    arguments = ["--model", str(tmp_path / "causal"), "--output_dir", str(tmp_path / "out")]
    assert_exits_with_2(
        arguments, r"--model must have all weights except those of a head, got .* without model\.encoder", capsys
    )


def assert_exits_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        classify_text.main(arguments)
    assert exit_.value.code == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))

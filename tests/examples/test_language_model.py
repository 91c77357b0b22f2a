"""The language model example: input files, errors, complete runs."""

import math
import re

import language_model
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline, set_seed

from tests.helpers.models import save_translator
from tutorials import training_helpers

COUNTING = ["one two three four five six", "three four five six seven", "two three four five"]


@pytest.fixture
def files(tmp_path):
    """Lines of consecutive numbers: training lines, a held-out line, and lines that are all different."""
    (tmp_path / "train.txt").write_text("\n".join(COUNTING * 40) + "\n\n")
    (tmp_path / "test.txt").write_text(COUNTING[2])
    (tmp_path / "different.txt").write_text("".join(f"line number {i}\n" for i in range(40)))
    return tmp_path


def perplexities(output: str) -> list[float]:
    found = re.search(r"held-out lines: ([\d.]+) before, ([\d.]+) after", output)
    return [float(value) for value in found.groups()]


def build(folder=None, texts=COUNTING):
    set_seed(0)
    model, tokenizer = training_helpers.build_or_load(AutoModelForCausalLM, folder, texts)
    return model.eval(), tokenizer


def test_model_learns_to_count(files, capsys):
    """Trained from scratch; the saved folder generates the same continuations."""
    arguments = ["--train_file", files / "train.txt", "--test_file", files / "test.txt", "--max_steps", "100"]
    assert (
        language_model.main([*map(str, arguments), "--output_dir", str(files / "out"), "--prompts", "two three"]) == 0
    )
    output = capsys.readouterr().out
    before, after = perplexities(output)
    assert before > 100
    assert after < 1.5  # the minimum is 1.25: the first of five tokens may be any of three
    model = AutoModelForCausalLM.from_pretrained(files / "out")
    tokenizer = AutoTokenizer.from_pretrained(files / "out")
    greedy, _ = language_model.continuations(model, tokenizer, "two three", seed=17)
    assert greedy.startswith("two three four five")
    assert greedy in output
    pipe = pipeline("text-generation", model=str(files / "out"))
    (answer,) = pipe("<s>two three", add_special_tokens=False, do_sample=False, max_new_tokens=40)
    assert answer["generated_text"].removeprefix("<s>") == greedy
    assert language_model.perplexity(model, tokenizer, COUNTING[2:]) == pytest.approx(after, abs=0.006)


@pytest.mark.slow
def test_sample_data_with_the_decoder_of_a_translation_model(tmp_path, capsys):
    """The same random seed yields the same output."""
    save_translator(tmp_path / "translator")
    arguments = ["--model", str(tmp_path / "translator"), "--max_steps", "3", "--output_dir", str(tmp_path / "out")]
    outputs = []
    for _ in range(2):
        assert language_model.main([*arguments, "--prompts", "¿Ves"]) == 0
        outputs.append(re.sub(r"Training time.*", "", capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    before, after = perplexities(outputs[0])
    assert before != after


def test_decoder_weights_are_loaded(tmp_path):
    whole = save_translator(tmp_path)
    model, _ = build(tmp_path)
    assert torch.equal(model.lm_head.weight, whole.lm_head.weight)
    assert torch.equal(model.model.decoder.layers[2].fc1.weight, whole.model.decoder.layers[2].fc1.weight)


def test_perplexity_is_per_token():
    """Equal to the perplexity from the logits of each token, for texts of different lengths."""
    model, tokenizer = build()
    texts = ["one", "one two three four five six"]
    losses = []
    for text in texts:
        ids = [1, *tokenizer(text)["input_ids"]]
        log_probabilities = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        losses += [-log_probabilities[index, token].item() for index, token in enumerate(ids[1:])]
    expected = math.exp(sum(losses) / len(losses))
    assert language_model.perplexity(model, tokenizer, texts) == pytest.approx(expected, rel=1e-4)


def test_tenth_of_the_lines_is_held_out(files):
    train, test = language_model.read_data(files / "different.txt", None, seed=17)
    assert (len(train), len(test)) == (36, 4)
    assert {*train, *test} == {f"line number {i}" for i in range(40)}


def test_blank_lines_are_skipped(files):
    assert language_model.read_texts(files / "train.txt") == COUNTING * 40


INVALID_FILES = {
    "empty": (b"", "a file must have at least one line of text, got none in"),
    "few": (b"a\nb\n", "at least 20 different sentences, got 2"),
    "encoding": ("ñ\n".encode("latin-1"), "must be UTF-8 text, but line 1 is not"),
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_invalid_files_exit_with_2(case, tmp_path, capsys):
    content, message = INVALID_FILES[case]
    (tmp_path / "train.txt").write_bytes(content)
    assert_exits_with_2(
        ["--train_file", str(tmp_path / "train.txt"), "--output_dir", str(tmp_path / "out")], message, capsys
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train_file", "missing.txt"], "--train_file: must be a file that exists, got 'missing.txt'"),
        (["--test_file", __file__], "--test_file must be used with --train_file"),
        (["--model", "nowhere"], "--model: must be a folder with a saved model and its tokenizer, got 'nowhere'"),
        (["--epochs", "0"], "--epochs must be a positive number, got 0.0"),
        (["--max_steps", "-3"], "--max_steps must be a positive integer, got -3"),
        (["--seed", "-1"], "--seed must be an integer from 0"),
        (["--output_dir", f"{__file__}/inside"], "--output_dir must be a writable folder"),
    ],
)
def test_invalid_arguments_exit_with_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_exits_with_2(arguments, re.escape(message), capsys)


def test_model_without_a_decoder_exits_with_2(tmp_path, capsys):
    from modeling_random_transformer import RandomTransformerForMaskedLM

    whole = save_translator(tmp_path / "masked")
    RandomTransformerForMaskedLM(whole.config).save_pretrained(tmp_path / "masked")
    arguments = ["--model", str(tmp_path / "masked"), "--output_dir", str(tmp_path / "out")]
    assert_exits_with_2(
        arguments, r"--model must have all weights except those of a head, got .* without model\.decoder", capsys
    )


def test_damaged_weights_exit_with_2(tmp_path, capsys):
    save_translator(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    arguments = ["--model", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out")]
    assert_exits_with_2(arguments, "--model must be a folder with a translation model and its tokenizer", capsys)


def assert_exits_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        language_model.main(arguments)
    assert exit_.value.code == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))

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
    """Lines of consecutive numbers: training lines and a held-out line."""
    (tmp_path / "train.txt").write_text("\n".join(COUNTING * 40) + "\n\n")
    (tmp_path / "test.txt").write_text(COUNTING[2])
    return tmp_path


def perplexities(output: str) -> list[float]:
    match = re.search(r"held-out lines: ([\d.]+) before, ([\d.]+) after", output)
    return [float(value) for value in match.groups()]


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


@pytest.mark.long
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


def test_blank_lines_are_skipped(files):
    assert language_model.read_texts(files / "train.txt") == COUNTING * 40

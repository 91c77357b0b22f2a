"""The exercises: the result of each experiment, and the command line."""

import math
import re
from functools import partial
from importlib import import_module
from pathlib import Path

import exercises
import pytest
import torch

from tutorials.exercises import (
    attention,
    complexity,
    depth,
    feed_forward,
    greedy,
    output,
    positions,
    speed,
    width,
)

# 1. Positions


@pytest.mark.long
def test_order_is_unknown_without_positions():
    result = positions.experiment(seed=0)
    assert result.difference["none"] < 1e-5
    assert result.difference["sinusoidal"] > 0.1
    assert result.exact_match["sinusoidal"] > 0.9
    assert result.exact_match["none"] < 0.1
    assert result.loss["sinusoidal"] < result.order_unknown_loss / 2
    assert result.loss["none"] > 0.95 * result.order_unknown_loss  # 5% for the sampling error of the batches


# 2. Kinds of attention


def test_kinds_of_attention_and_their_inputs():
    result = attention.experiment(seed=0)
    source, target = attention.SOURCE_LENGTH, attention.TARGET_LENGTH
    lengths = {kind: steps["weights"].shape[1:] for kind, steps in result.steps.items()}
    assert lengths == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (target, target),
        "encoder-decoder attention": (target, source),
    }
    assert list(result.masked.values()) == [0, target * (target - 1) // 2, 0]
    assert "encoder.output" in result.steps["encoder-decoder attention"]["key"].formula
    changes = {name: (result.by_source[name] > 0, result.by_target[name] > 0) for name in attention.VALUES}
    assert changes == {
        "encoder self-attention, keys": (True, False),
        "decoder self-attention, keys": (False, True),
        "encoder-decoder attention, queries": (False, True),
        "encoder-decoder attention, keys": (True, False),
        "decoder self-attention in the second layer, keys": (True, True),
    }


# 3. Attention dimension


def test_narrow_head_cannot_distinguish_keys():
    accuracy = {d_k: width.train_head(d_k, seed=0, steps=400).accuracy for d_k in (1, 2, 4, 16)}
    assert accuracy[1] == 2 / width.PAIRS  # the largest key and the smallest
    assert accuracy[1] < accuracy[2] < accuracy[4] == accuracy[16] == 1


@pytest.mark.long
def test_wide_head_needs_scaled_scores():
    (scaled_loss, scaled), (loss, unscaled) = width.experiment(seed=0, widths=()).models.values()
    assert loss > 5 * scaled_loss
    assert unscaled < scaled
    assert scaled > 0.9


def test_scores_saturate_without_scaling():
    scaled = [width.relative_entropy(d_k, d_k**-0.5, seed=0) for d_k in (4, 64, 256)]
    unscaled = [width.relative_entropy(d_k, 1.0, seed=0) for d_k in (4, 64, 256)]
    assert max(scaled) - min(scaled) < 0.1
    assert unscaled[0] > 2 * unscaled[1] > 4 * unscaled[2]
    assert unscaled[2] < 0.1


# 4. Feed-forward network


def test_feed_forward_network_processes_positions_independently():
    result = feed_forward.experiment(seed=0, presets=("blog",))
    assert result.statistics["blog"].widths == (4, 8, 4)
    assert result.statistics["blog"].parameters == 12 * (4 * 8 + 8 + 8 * 4 + 4)
    assert 0.2 < result.statistics["blog"].zeros < 0.8
    changed = feed_forward.CHANGED
    assert [value > 0 for value in result.changes["feed-forward"]] == [i == changed for i in range(6)]
    assert all(value > 0 for value in result.changes["self-attention"])


@pytest.mark.long
def test_feed_forward_networks_of_the_base_model():
    statistics = feed_forward.measure("base", seed=0)
    assert statistics.widths == (512, 2048, 512)
    assert statistics.parameters == 12 * (2 * 512 * 2048 + 2048 + 512)
    assert 0.35 < statistics.share < 0.45


# 5. Decoder speed


def test_number_of_decoder_passes():
    result = speed.experiment(seed=0, lengths=(4, 6), repeats=1)
    done = {name: [(work.passes, work.positions) for work in every] for name, every in result.work.items()}
    assert done == {
        speed.ENCODER: [(1, 4), (1, 6)],
        speed.ONE_PASS: [(1, 4), (1, 6)],
        speed.CACHED: [(4, 4), (6, 6)],
        speed.UNCACHED: [(4, 10), (6, 21)],
    }


# 6. Residual connections and layer norm


def test_residual_connections_and_norms():
    measurements = {
        variant: [depth.measure(variant, layers, seed=0) for layers in (2, 12)] for variant in depth.VARIANTS
    }
    both, residuals, norms, neither = measurements.values()
    assert all(abs(result.size - 1) < 0.01 for result in both + norms)
    assert residuals[1].size > 10 * residuals[0].size
    assert residuals[1].gradient > 100 * residuals[0].gradient
    assert neither[1].size < neither[0].size / 10
    assert neither[1].gradient < min(neither[0].gradient, both[1].gradient) / 10
    assert both[0].similarity < 0.8 < 0.95 < min(norms[0].similarity, neither[0].similarity)


# 7. Probabilities


def test_temperature_does_not_change_the_most_probable_word():
    result = output.experiment(seed=0)
    assert result.shapes == {"decoder.output": (1, 1, 4), "logits": (1, 1, 10), "probabilities": (1, 1, 10)}
    assert result.difference < 1e-12
    for temperature, probabilities in result.probabilities.items():
        assert probabilities.sum().item() == pytest.approx(1)
        assert probabilities.argmax() == result.logits.argmax()
        torch.testing.assert_close(probabilities, (result.logits / temperature).softmax(dim=0))
    entropies = [output.entropy(probabilities) for probabilities in result.probabilities.values()]
    assert entropies == sorted(entropies)
    assert entropies[-1] < math.log(10)


# 8. Greedy search


def test_beam_search_finds_a_more_probable_sentence_than_greedy_search():
    result = greedy.experiment(seed=0)
    log_probability = {name: sum(result.words[sentence]) for name, sentence in result.outputs.items()}
    assert result.outputs["beam 4"] == "good morning"
    assert result.outputs["greedy"].startswith("have a ")
    assert log_probability["greedy"] < log_probability["beam 4"] - 1
    for sentence, truth in greedy.LANGUAGE.items():
        assert math.exp(sum(result.words[sentence])) == pytest.approx(truth, abs=0.01)
        assert result.sampled[sentence] / greedy.SAMPLES == pytest.approx(truth, abs=0.05)


# Command line


def test_questions_are_listed_without_a_number(capsys):
    assert exercises.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{number}. {exercise.question}" for number, exercise in exercises.EXERCISES.items()]


def test_prediction_is_asked_for_in_a_terminal_only(monkeypatch, capsys):
    question = exercises.EXERCISES[4].predict
    assert exercises.ask(question) == ""
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: " a quarter ")
    assert exercises.ask(question) == "a quarter"
    assert question in capsys.readouterr().out


# Options that make an experiment short.
SHORT = {
    "positions": {"steps": 1},
    "width": {"widths": (1, 2), "head_steps": 1, "steps": 1},
    "feed_forward": {"presets": ("blog",)},
    "speed": {"lengths": (2, 4), "repeats": 1},
    "depth": {"depths": (1, 2), "steps": 1},
    "complexity": {"lengths": (4,), "training_steps": 1},
    "head_roles": {"sentences": 20, "steps": 10},
    "ablations": {"sentences": 5, "steps": 10},
    "subwords": {"kinds": ("BPE",), "steps": 1},
    "sinusoids": {"steps": 10},
    "long_inputs": {"lengths": (64, 128), "copy_lengths": (2,), "repeats": 1, "steps": 1},
    "compression": {"steps": 1, "pruned": (0.25,)},
    "gradient_descent": {"steps": 10},
    "patches": {"steps": 10},
    "weight_tying": {"steps": 1, "sentences": 5},
    "norm_parameters": {"steps": 1},
    "batch_norm": {"steps": 1, "count": 2},
}


@pytest.fixture
def check_exercise(tmp_path, monkeypatch, capsys):
    """Runs a short experiment: the command prints the question, and saves a plot if the exercise has one."""

    def check(number, *arguments):
        exercise = exercises.EXERCISES[number]
        module = import_module(f"tutorials.exercises.{exercise.module}")
        monkeypatch.setattr(module, "experiment", partial(module.experiment, **SHORT.get(exercise.module, {})))
        monkeypatch.setattr(complexity, "RECALL_LENGTHS", (4,))
        monkeypatch.setattr(complexity, "SIZES", ((4, 4),))
        assert exercises.main([str(number), "--output_dir", str(tmp_path), *arguments]) == 0
        assert capsys.readouterr().out.startswith(f"{number}. {exercise.question}\n")
        plots = sorted(tmp_path.iterdir())
        assert [path.suffix for path in plots] == [".png", ".svg"] * hasattr(module, "draw")
        assert all(path.read_bytes().startswith((b"\x89PNG", b"<?xml")) for path in plots)

    return check


NEED_MODEL = [number for number, exercise in exercises.EXERCISES.items() if exercise.needs_model]
LONG = {6, 8, 14, 18, 19, 20}  # train a model for seconds


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.long) if number in LONG else number
        for number in exercises.EXERCISES.keys() - NEED_MODEL
    ],
)
def test_exercises_print_and_plot(number, check_exercise):
    check_exercise(number)


@pytest.mark.long
@pytest.mark.parametrize("number", NEED_MODEL)
def test_exercises_of_the_trained_model_print_and_plot(number, check_exercise, quickstart_folder):
    check_exercise(number, "--model", str(quickstart_folder))


# The page

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "exercises.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d+)\. (.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
CHANGE = re.compile(r"In `(\S+)`, replace the first line by the second:\n\n```text\n(.+)\n(.+)\n```")


@pytest.mark.parametrize("number", exercises.EXERCISES)
def test_page_asks_before_it_answers(number):
    question, _, section = SECTIONS[str(number)].partition("\n")
    visible, *answers = re.split(r"<details markdown=\"1\">\n<summary>Answer</summary>", section)
    exercise = exercises.EXERCISES[number]
    assert question == exercise.question
    assert exercise.predict in " ".join(visible.split())
    assert f"python examples/exercises.py {number}\n" in visible
    assert len(answers) == 2
    path, line, replacement = CHANGE.search(section).groups()
    assert path == f"examples/tutorials/exercises/{exercise.module}.py"
    assert (Path(__file__).parents[2] / path).read_text(encoding="utf-8").count(line) == 1
    assert line != replacement

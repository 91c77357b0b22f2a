"""The exercises: the result of each experiment, and the command line."""

import math

import exercises
import pytest
import torch

from tutorials.exercises import (
    attention,
    depth,
    feed_forward,
    greedy,
    output,
    positions,
    speed,
    tasks,
    width,
)

pytestmark = pytest.mark.usefixtures("one_thread")  # models this small are not faster with more


def test_reversal_task():
    sources, labels = tasks.Reversal(symbols=9, length=5).sample(50)
    assert sources.shape == labels.shape == (50, 6)
    for source, label in zip(sources.tolist(), labels.tolist(), strict=True):
        assert source[-1] == label[-1] == 2
        assert source[:-1] == label[:-1][::-1]
        assert len(set(source)) == 6
        assert all(4 <= symbol < 13 for symbol in source[:-1])


# 1. Positions


@pytest.mark.slow
def test_order_is_unknown_without_positions():
    result = positions.compare_positions(seed=0)
    assert result.difference["none"] < 1e-5
    assert result.difference["sinusoidal"] > 0.1
    assert result.exact_match["sinusoidal"] > 0.9
    assert result.exact_match["none"] < 0.1
    assert result.loss["sinusoidal"] < result.order_unknown_loss / 2
    assert result.loss["none"] > 0.95 * result.order_unknown_loss  # 5% for the sampling error of the batches


# 2. Kinds of attention


def test_cross_attention_has_keys_of_the_source():
    result = attention.compare_attentions(seed=0)
    source, target = attention.SOURCE_LENGTH, attention.TARGET_LENGTH
    lengths = {kind: steps["weights"].shape[1:] for kind, steps in result.steps.items()}
    assert lengths == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (target, target),
        "encoder-decoder attention": (target, source),
    }
    assert list(result.masked.values()) == [0, target * (target - 1) // 2, 0]
    assert "encoder.output" in result.steps["encoder-decoder attention"]["key"].formula


def test_dependence_on_source_and_target():
    result = attention.compare_attentions(seed=0)
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


@pytest.mark.slow
def test_wide_head_needs_scaled_scores():
    (scaled_loss, scaled), (loss, unscaled) = width.compare_widths(seed=0, widths=()).models.values()
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
    result = feed_forward.examine_feed_forward(seed=0, presets=("blog",))
    assert result.statistics["blog"].widths == (4, 8, 4)
    assert result.statistics["blog"].parameters == 12 * (4 * 8 + 8 + 8 * 4 + 4)
    assert 0.2 < result.statistics["blog"].zeros < 0.8
    changed = feed_forward.CHANGED
    assert [value > 0 for value in result.changes["feed-forward"]] == [i == changed for i in range(6)]
    assert all(value > 0 for value in result.changes["self-attention"])


@pytest.mark.slow
def test_feed_forward_networks_of_the_base_model():
    statistics = feed_forward.measure("base", seed=0)
    assert statistics.widths == (512, 2048, 512)
    assert statistics.parameters == 12 * (2 * 512 * 2048 + 2048 + 512)
    assert 0.35 < statistics.share < 0.45


# 5. Decoder speed


def test_number_of_decoder_passes():
    result = speed.compare_speeds(seed=0, lengths=(4, 6), repeats=1)
    done = {name: [(work.passes, work.positions) for work in every] for name, every in result.work.items()}
    assert done == {
        speed.ENCODER: [(1, 4), (1, 6)],
        speed.ONE_PASS: [(1, 4), (1, 6)],
        speed.CACHED: [(4, 4), (6, 6)],
        speed.UNCACHED: [(4, 10), (6, 21)],
    }


# 6. Residual connections and layer norm


def measurements(variant):
    return [depth.measure(variant, layers, seed=0) for layers in (2, 12)]


def test_norms_control_the_size():
    for variant in ("both", "norms only"):
        assert all(abs(result.size - 1) < 0.01 for result in measurements(variant))
    shallow, deep = measurements("residuals only")
    assert deep.size > 10 * shallow.size
    assert deep.gradient > 100 * shallow.gradient


def test_values_and_gradients_vanish_without_residuals_and_norms():
    shallow, deep = measurements("neither")
    assert deep.size < shallow.size / 10
    assert deep.gradient < shallow.gradient / 10
    assert deep.gradient < measurements("both")[1].gradient / 10


def test_tokens_become_similar_without_residuals():
    assert measurements("both")[0].similarity < 0.8
    assert measurements("norms only")[0].similarity > 0.95
    assert measurements("neither")[0].similarity > 0.95


def test_variant_with_norms_and_residuals_is_the_unmodified_model():
    model = depth.build("both", 50, seed=0, depth=2)
    plain = tasks.tiny_model(50, seed=0, encoder_layers=2, decoder_layers=2)
    ids = torch.arange(4, 12)[None]
    assert torch.equal(model(input_ids=ids, labels=ids).logits, plain(input_ids=ids, labels=ids).logits)


# 7. Probabilities


def test_temperature_does_not_change_the_most_probable_word():
    result = output.examine_output(seed=0)
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
    result = greedy.compare_searches(seed=0)
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


@pytest.mark.parametrize("number", [2, 7])
def test_exercise_prints_its_question(number, capsys, tmp_path):
    assert exercises.main([str(number), "--output_dir", str(tmp_path)]) == 0
    assert exercises.EXERCISES[number].question in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["100"], f"N must be from 1 to {max(exercises.EXERCISES)}, got 100."),
        (["0"], f"N must be from 1 to {max(exercises.EXERCISES)}, got 0."),
        (["one"], "invalid int value: 'one'"),
        (["7", "--seed", "-1"], "--seed must be an integer from 0"),
        (["7", "--output_dir", f"{__file__}/inside"], "--output_dir must be a writable folder"),
    ],
)
def test_invalid_arguments_exit_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        exercises.main(arguments)
    assert exit_.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_plots_are_saved(tmp_path):
    speeds = speed.compare_speeds(seed=0, lengths=(2, 4), repeats=1)
    speed.show_speeds(speeds, tmp_path)
    widths = width.compare_widths(seed=0, widths=(1, 2), head_steps=1, steps=1)
    width.show_widths(widths, tmp_path)
    depths = depth.compare_depths(seed=0, depths=(1, 2), steps=1)
    depth.show_depths(depths, tmp_path)
    names = {"attention_width.png", "decoder_speed.png", "residual_and_norm.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())

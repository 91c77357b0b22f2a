"""The seed's exercises: what each experiment has to find, and the command line."""

import math

import exercises
import pytest
import torch
from tutorials import (
    exercises_attention,
    exercises_depth,
    exercises_feed_forward,
    exercises_greedy,
    exercises_output,
    exercises_positions,
    exercises_speed,
    exercises_tasks,
    exercises_width,
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_reversals_are_reversals():
    sources, labels = exercises_tasks.Reversal(symbols=9, length=5).draw(50)
    assert sources.shape == labels.shape == (50, 6)
    for source, label in zip(sources.tolist(), labels.tolist(), strict=True):
        assert source[-1] == label[-1] == 2
        assert source[:-1] == label[:-1][::-1]
        assert len(set(source)) == 6
        assert all(4 <= symbol < 13 for symbol in source[:-1])


# 1. Positions


@pytest.mark.slow
def test_order_is_lost_without_positions():
    result = exercises_positions.compare_positions(seed=0)
    assert result.moved["none"] < 1e-5
    assert result.moved["sinusoidal"] > 0.1
    assert result.exact_match["sinusoidal"] > 0.9
    assert result.exact_match["none"] < 0.1
    assert result.loss["sinusoidal"] < result.guessing / 2
    assert result.loss["none"] > 0.95 * result.guessing  # no less than guessing, but for the batches' luck


# 2. The kinds of attention


def test_cross_attention_asks_the_source():
    result = exercises_attention.compare_attentions(seed=0)
    source, target = exercises_attention.SOURCE_LENGTH, exercises_attention.TARGET_LENGTH
    lengths = {kind: steps["weights"].shape[1:] for kind, steps in result.steps.items()}
    assert lengths == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (target, target),
        "encoder-decoder attention": (target, source),
    }
    assert list(result.hidden.values()) == [0, target * (target - 1) // 2, 0]
    assert "encoder.output" in result.steps["encoder-decoder attention"]["key"].formula


def test_what_depends_on_source_and_target():
    result = exercises_attention.compare_attentions(seed=0)
    moved = {name: (result.by_source[name] > 0, result.by_target[name] > 0) for name in exercises_attention.WATCHED}
    assert moved == {
        "encoder self-attention, keys": (True, False),
        "decoder self-attention, keys": (False, True),
        "encoder-decoder attention, queries": (False, True),
        "encoder-decoder attention, keys": (True, False),
        "decoder self-attention of block 2, keys": (True, True),
    }


# 3. The attention width


def test_a_narrow_head_cannot_tell_keys_apart():
    found = {width: exercises_width.train_head(width, seed=0, steps=400).found for width in (1, 2, 4, 16)}
    assert found[1] == 2 / exercises_width.PAIRS  # the largest key and the smallest
    assert found[1] < found[2] < found[4] == found[16] == 1


@pytest.mark.slow
def test_a_wide_head_needs_scaled_scores():
    (scaled_loss, scaled), (loss, unscaled) = exercises_width.compare_widths(seed=0, widths=()).models.values()
    assert loss > 5 * scaled_loss
    assert unscaled < scaled
    assert scaled > 0.9


def test_scores_saturate_without_scaling():
    even = [exercises_width.evenness(width, width**-0.5, seed=0) for width in (4, 64, 256)]
    sharp = [exercises_width.evenness(width, 1.0, seed=0) for width in (4, 64, 256)]
    assert max(even) - min(even) < 0.1
    assert sharp[0] > 2 * sharp[1] > 4 * sharp[2]
    assert sharp[2] < 0.1


# 4. The feed-forward network


def test_a_feed_forward_network_sees_one_position():
    result = exercises_feed_forward.examine_feed_forward(seed=0, presets=("blog",))
    assert result.shapes["blog"].widths == (4, 8, 4)
    assert result.shapes["blog"].parameters == 12 * (4 * 8 + 8 + 8 * 4 + 4)
    assert 0.2 < result.shapes["blog"].zeros < 0.8
    changed = exercises_feed_forward.CHANGED
    assert [value > 0 for value in result.moved["feed-forward"]] == [i == changed for i in range(6)]
    assert all(value > 0 for value in result.moved["self-attention"])


@pytest.mark.slow
def test_the_feed_forward_networks_of_the_base_model():
    shape = exercises_feed_forward.shape_of("base", seed=0)
    assert shape.widths == (512, 2048, 512)
    assert shape.parameters == 12 * (2 * 512 * 2048 + 2048 + 512)
    assert 0.35 < shape.share < 0.45


# 5. The decoder's speed


def test_a_decoder_makes_a_pass_for_each_token():
    result = exercises_speed.compare_speeds(seed=0, lengths=(4, 6), repeats=1)
    done = {name: [(work.passes, work.positions) for work in every] for name, every in result.work.items()}
    assert done == {
        exercises_speed.ENCODER: [(1, 4), (1, 6)],
        exercises_speed.ONE_PASS: [(1, 4), (1, 6)],
        exercises_speed.CACHED: [(4, 4), (6, 6)],
        exercises_speed.UNCACHED: [(4, 10), (6, 21)],
    }


# 6. Residual connections and layer norm


def measures(variant):
    return [exercises_depth.measure(variant, depth, seed=0) for depth in (2, 12)]


def test_norms_keep_the_size():
    for variant in ("both", "norms only"):
        assert all(abs(found.size - 1) < 0.01 for found in measures(variant))
    shallow, deep = measures("residuals only")
    assert deep.size > 10 * shallow.size
    assert deep.gradient > 100 * shallow.gradient


def test_without_either_everything_vanishes():
    shallow, deep = measures("neither")
    assert deep.size < shallow.size / 10
    assert deep.gradient < shallow.gradient / 10
    assert deep.gradient < measures("both")[1].gradient / 10


def test_residuals_keep_tokens_apart():
    assert measures("both")[0].likeness < 0.8
    assert measures("norms only")[0].likeness > 0.95
    assert measures("neither")[0].likeness > 0.95


def test_both_together_are_the_model_itself():
    """The experiment's connection is the block's own."""
    model = exercises_depth.build("both", 50, seed=0, depth=2)
    plain = exercises_tasks.tiny_model(50, seed=0, encoder_layers=2, decoder_layers=2)
    ids = torch.arange(4, 12)[None]
    assert torch.equal(model(input_ids=ids, labels=ids).logits, plain(input_ids=ids, labels=ids).logits)


# 7. Probabilities


def test_temperature_changes_all_but_the_choice():
    result = exercises_output.examine_output(seed=0)
    assert result.shapes == {"decoder.output": (1, 1, 4), "logits": (1, 1, 10), "probabilities": (1, 1, 10)}
    assert result.by_hand < 1e-12
    for temperature, probabilities in result.probabilities.items():
        assert probabilities.sum().item() == pytest.approx(1)
        assert probabilities.argmax() == result.logits.argmax()
        torch.testing.assert_close(probabilities, (result.logits / temperature).softmax(dim=0))
    entropies = [exercises_output.entropy(probabilities) for probabilities in result.probabilities.values()]
    assert entropies == sorted(entropies)
    assert entropies[-1] < math.log(10)


# 8. Greedy search


def test_greedy_search_goes_up_the_garden_path():
    result = exercises_greedy.compare_searches(seed=0)
    found = {name: sum(result.words[sentence]) for name, sentence in result.outputs.items()}
    assert result.outputs["beam 4"] == "good morning"
    assert result.outputs["greedy"].startswith("have a ")
    assert found["greedy"] < found["beam 4"] - 1
    for sentence, truth in exercises_greedy.LANGUAGE.items():
        assert math.exp(sum(result.words[sentence])) == pytest.approx(truth, abs=0.01)
        assert result.sampled[sentence] / exercises_greedy.SAMPLES == pytest.approx(truth, abs=0.05)


# The command line


def test_without_a_number_the_questions_are_listed(capsys, tmp_path):
    assert exercises.main(["--output_dir", str(tmp_path)]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == [f"{n}." for n in range(1, 9)]


@pytest.mark.parametrize("number", [2, 7])
def test_an_exercise_is_shown(number, capsys, tmp_path):
    assert exercises.main([str(number), "--output_dir", str(tmp_path)]) == 0
    assert exercises.EXERCISES[number].question in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "N must be from 1 to 8, got 9."),
        (["0"], "N must be from 1 to 8, got 0."),
        (["one"], "invalid int value: 'one'"),
        (["7", "--seed", "-1"], "--seed must be an integer from 0"),
        (["7", "--output_dir", f"{__file__}/inside"], "--output_dir must be a folder that can be written to"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        exercises.main(arguments)
    assert exit_.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_pictures_are_drawn(tmp_path):
    speeds = exercises_speed.compare_speeds(seed=0, lengths=(2, 4), repeats=1)
    exercises_speed.show_speeds(speeds, tmp_path)
    widths = exercises_width.compare_widths(seed=0, widths=(1, 2), head_steps=1, steps=1)
    exercises_width.show_widths(widths, tmp_path)
    depths = exercises_depth.compare_depths(seed=0, depths=(1, 2), steps=1)
    exercises_depth.show_depths(depths, tmp_path)
    names = {"attention_width.png", "decoder_speed.png", "residual_and_norm.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())

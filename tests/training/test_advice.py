"""What a run prints at its start: one warning for each rule, and none for a usual run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from datasets import Dataset

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.training import TranslationTrainingArguments
from modeling_random_transformer.training.advice import (
    AdviceCallback,
    copy_advice,
    data_advice,
    evaluation_advice,
    schedule_advice,
    spelling_advice,
)
from modeling_random_transformer.training.preparation import PreparedData
from tests.helpers.training import run
from tests.helpers.translation import random_tokenizer

ENGLISH = ["the boy reads a book in the garden", "the girls do not see the old house", "we want to buy two red apples"]
SPANISH = ["el niño lee un libro en el jardín", "las niñas no ven la casa vieja", "queremos comprar manzanas rojas"]


def training_arguments(tmp_path, **options):
    return TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)


def prepared(pairs, length):
    """Data of so many pairs, with this number of tokens on each side."""
    columns = {name: [[5] * length] * pairs for name in ("input_ids", "labels")}
    lengths = {name: [length] * pairs for name in ("source_length", "target_length")}
    return PreparedData(
        random_tokenizer(), [], {}, corpora=[None], tokens={"train": Dataset.from_dict(columns | lengths)}
    )


def test_a_huge_text_of_a_set_that_is_translated():
    [usual], [huge] = (prepared(1, length).tokens.values() for length in (1000, 1001))
    assert list(evaluation_advice({"train": huge, "test news": usual})) == []
    [warning] = evaluation_advice({"train": usual, "test news": usual, "test": huge})
    assert "the longest text of the test set has 1,001 tokens" in warning


def test_size_of_the_data():
    enough = prepared(1000, 4)  # 320 entries of the vocabulary
    assert list(data_advice(enough, 300, is_new=True)) == []
    [warning] = data_advice(enough, 301, is_new=True)
    assert "301 epochs of the training set; more than 300" in warning
    few = prepared(999, 3)
    warnings = list(data_advice(few, 300, is_new=True))
    assert [warning.split()[1] for warning in warnings] == ["999", "18.7"]
    assert list(data_advice(few, 300, is_new=False)) == []  # fine-tuned


@pytest.mark.parametrize(("warmup_steps", "warns"), [(599, False), (600, True), (4000, True), (0.1, False)])
def test_warmup_that_does_not_end(warmup_steps, warns, tmp_path):
    args = training_arguments(tmp_path, warmup_steps=warmup_steps, learning_rate=1e-4)
    assert bool(list(schedule_advice(args, RandomTransformerConfig(), 600))) is warns


@pytest.mark.parametrize(
    ("preset", "options", "warns"),
    [
        ("base", {}, False),  # the paper's rates
        ("big", {}, False),
        ("tiny", {"warmup_steps": 600}, False),
        ("base", {"warmup_steps": 100}, True),
        ("tiny", {"learning_rate": 1e-2}, True),
        ("tiny", {"learning_rate": 1e-2, "muon": True}, False),
    ],
)
def test_learning_rate_of_post_norm(preset, options, warns, tmp_path):
    args = training_arguments(tmp_path, **options)
    config = RandomTransformerConfig.from_preset(preset)
    assert ["post-norm" in warning for warning in schedule_advice(args, config, 100_000)] == [True] * warns
    config.norm_order = "pre"
    assert list(schedule_advice(args, config, 100_000)) == []


def tokens(tokenizer, sources, targets):
    return Dataset.from_dict({"input_ids": tokenizer(sources).input_ids, "labels": tokenizer(targets).input_ids})


@pytest.mark.parametrize(
    ("train", "held_out", "warns"),
    [
        ((ENGLISH, SPANISH), (ENGLISH[:2], SPANISH[:2]), False),
        ((ENGLISH, SPANISH), (SPANISH[:2], ENGLISH[:2]), True),
        ((ENGLISH, ENGLISH[::-1]), (ENGLISH[:2], ENGLISH[1:]), False),  # both sides in one language
    ],
    ids=("straight", "swapped", "one language"),
)
def test_swapped_sides_are_a_warning(train, held_out, warns):
    tokenizer = random_tokenizer()
    sets = {"train": tokens(tokenizer, *train), "test": tokens(tokenizer, *held_out)}
    data = PreparedData(tokenizer, [], {}, corpora=[None], tokens=sets)
    assert ["test set seem to be swapped" in warning for warning in data_advice(data, 1, is_new=False)] == [
        True
    ] * warns
    data.corpora *= 2  # may be of several directions
    assert list(data_advice(data, 1, is_new=False)) == []


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (SPANISH, []),
        ([*ENGLISH[:1], *SPANISH[1:]], []),  # names and numbers are copies
        ([*ENGLISH[:2], *SPANISH[2:]], ["source and target are equal in 2 of 3 pairs"]),
        (ENGLISH, ["source and target are equal in 3 of 3 pairs"]),
        ([f"{text}\u200b" for text in ENGLISH], ["source and target are equal in 3 of 3 pairs"]),
    ],
)
def test_sources_that_are_copied_to_targets_are_a_warning(targets, expected):
    warnings = list(copy_advice([Dataset.from_dict({"source": ENGLISH, "target": targets})]))
    assert [warning.removeprefix("Warning: ").split(":")[0] for warning in warnings] == expected


@pytest.mark.parametrize(
    ("side", "old", "new", "expected"),
    [
        ("target", "ñ", "ny", "More frequent letters: none; less frequent: ñ"),
        ("source", "k", "\u02bc", "More frequent letters: \u02bc; less frequent: k"),
        ("target", "n\u0303", "ñ", None),  # normalization makes them equal
        ("target", ".", "!", None),
    ],
)
def test_another_orthography_is_a_warning(side, old, new, expected):
    columns = {"source": "the book, we took it. " * 40, "target": "el nin\u0303o y la nin\u0303a. " * 40}
    train = Dataset.from_dict({name: [text] for name, text in columns.items()})
    columns[side] = columns[side].replace("n\u0303" if old == "ñ" else old, new)
    validation = Dataset.from_dict({name: [text] for name, text in columns.items()})
    warnings = list(spelling_advice({"train": [train], "validation": [validation]}))
    if expected is None:
        assert warnings == []
    else:
        [warning] = warnings
        assert f"the {side}s of the validation set are spelled unlike" in warning
        assert expected in warning


def test_few_texts_may_lack_a_letter():
    train = Dataset.from_dict({"source": ["a fox " * 99], "target": ["un zorro " * 99]})
    validation = Dataset.from_dict({"source": ["a dog " * 19], "target": ["un zorro"]})
    assert list(spelling_advice({"train": [train], "validation": [validation]})) == []


@pytest.mark.parametrize("directions", [1, 2])
def test_the_spelling_of_several_directions_is_not_compared(directions, tmp_path, capsys):
    """The letters of their languages differ."""
    texts = {
        "train": [Dataset.from_dict({"source": ["the book " * 99], "target": ["el niño " * 99]})],
        "validation": [Dataset.from_dict({"source": ["the book " * 99], "target": ["the boy " * 99]})],
    }
    data = replace(prepared(9000, 4), pairs=texts)
    data.corpora = [SimpleNamespace(direction=f"en-{number}") for number in range(directions)]
    args = training_arguments(tmp_path)
    state = SimpleNamespace(is_world_process_zero=True, max_steps=10_000, num_train_epochs=3)
    model = SimpleNamespace(name_or_path="fine-tuned", config=RandomTransformerConfig())
    AdviceCallback(data).on_train_begin(args, state, None, model)
    assert ("spelled unlike" in capsys.readouterr().err) == (directions == 1)


def test_a_run_prints_its_size_and_its_warnings(corpus, capsys):
    run(corpus, "out", max_steps=24, warmup_steps=24)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("pairs: 120, steps: 24, epochs: ") for line in lines)
    warnings = [line for line in lines if line.startswith("Warning: ")]
    assert len(warnings) == 3
    assert any("warmup_steps=24" in line for line in warnings)
    assert any("120 pairs" in line for line in warnings)
    assert any("vocab_size" in line for line in warnings)


def test_a_validation_set_that_is_too_small_for_a_calibration():
    [too_few] = prepared(99, 4).tokens.values()
    [line] = evaluation_advice(dict.fromkeys(("train", "validation", "test"), too_few))
    assert line.startswith("Warning: 99 pairs of the validation set are too few to calibrate the confidence")
    [enough] = prepared(100, 4).tokens.values()
    assert not [*evaluation_advice({"validation": enough})]

"""The content of a recipe: arguments that others override, and values that are chosen."""

import pytest

from modeling_random_transformer.extras.recipes import recipe_file
from modeling_random_transformer.extras.recipes.recipe_file import (
    SIZES,
    RecipeArguments,
    not_overridden,
    read_recipe,
    sizes_of,
    stages_to_run,
    training_arguments,
)
from tests.helpers.models import tiny_model
from tests.helpers.training import arguments, write_corpus


def test_arguments_of_a_call_override_those_of_a_recipe(tmp_path):
    write_corpus(tmp_path)
    recipe = {"learning_rate": "1e-4", "vocab_size": 300, "seed": 3}
    call_arguments = arguments(tmp_path, "out", vocab_size=None, tokenizer="saved", seed=5)
    call_arguments = {
        name: value for name, value in call_arguments.items() if value is not None and name != "learning_rate"
    }
    _, model, args = training_arguments(recipe, call_arguments)
    assert (args.learning_rate, args.seed, model.tokenizer, model.vocab_size) == (1e-4, 5, "saved", None)
    assert not_overridden({"tokenizer": "a", "seed": 1}, {"vocab_size": 300}) == {"seed": 1}


@pytest.mark.parametrize(
    ("characters", "alphabet", "vocab_size", "max_steps"),
    [
        (100, 20, 1020, 44),
        (284_000, 2600, 3600, 2344),
        (540_000, 100, 1800, 3233),
        (1_800_000, 100, 6000, 5903),
        (7_300_000, 5500, 6000, 11_888),
    ],
)
def test_sizes_follow_from_the_characters_of_the_training_set(characters, alphabet, vocab_size, max_steps):
    assert sizes_of(characters, alphabet) == {"vocab_size": vocab_size, "max_steps": max_steps}


@pytest.mark.parametrize(
    ("overrides", "sizes", "announced"),
    [
        ({}, (1008, 134), ["vocab_size", "max_steps"]),
        ({"max_steps": 3}, (1008, 3), ["vocab_size"]),
        ({"max_steps": 3, "tokenizer": "saved"}, (None, 3), []),
    ],
)
def test_given_sizes_replace_those_of_the_training_set(overrides, sizes, announced, tmp_path, caplog):
    write_corpus(tmp_path)
    call_arguments = arguments(tmp_path, "out", **overrides)
    call_arguments = {name: value for name, value in call_arguments.items() if name in overrides or name not in SIZES}
    _, model, args = training_arguments({"vocab_size": "auto", "max_steps": "auto"}, call_arguments)
    assert (model.vocab_size, args.max_steps) == sizes
    assert [message.split()[0] for message in caplog.messages] == [*announced, *["This"][: len(announced)]]


def test_repeated_pairs_do_not_count(tmp_path, monkeypatch, caplog):
    (tmp_path / "train.tsv").write_text("a dog\tun perro\n" * 3 + "a dog\tel perro\n")
    recipe = {"max_steps": "auto", "train_file": str(tmp_path / "train.tsv"), "output_dir": str(tmp_path)}
    assert training_arguments(recipe, {})[2].max_steps == int(4.4 * 26**0.5)
    assert caplog.messages[1] == "This rule was not measured below 1,700,000 and above 7,300,000 characters."
    caplog.clear()
    monkeypatch.setattr(recipe_file, "MEASURED", (26, 26))
    training_arguments(recipe, {})
    assert caplog.messages == ["max_steps is 22: the distinct pairs have 26 characters."]


def test_a_corpus_without_pairs_is_an_error_before_sizes_are_chosen(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("1\ta dog\tun perro\n")
    recipe = {"max_steps": "auto", "train_file": str(tmp_path / "train.tsv"), "output_dir": str(tmp_path)}
    with pytest.raises(ValueError, match="in two columns, or those of source_key and target_key, which may be numbers"):
        training_arguments(recipe, {})
    assert caplog.messages == []


def test_a_call_without_evaluation_does_not_stop_early():
    recipe = {"eval_strategy": "steps", "eval_steps": 0.1, "early_stopping_patience": 3, "seed": 1}
    assert not_overridden(recipe, {"eval_strategy": "no"}) == {"seed": 1}
    assert not_overridden(recipe, {"eval_strategy": "steps"}) == {"eval_steps": 0.1, "seed": 1}


def test_a_call_with_another_strategy_has_no_steps():
    recipe = {"save_steps": 10, "logging_steps": 5, "seed": 1}
    assert not_overridden(recipe, {"save_strategy": "epoch", "logging_strategy": "no"}) == {"seed": 1}


def test_a_parent_without_a_tokenizer(tmp_path):
    tiny_model().save_pretrained(tmp_path / "parent")
    with pytest.raises(ValueError, match=r"parent must be a saved model with its tokenizer, got .*parent"):
        RecipeArguments(parent=str(tmp_path / "parent"))


def test_a_dictionary_is_a_file_with_columns(tmp_path):
    path = tmp_path / "words.txt"
    with pytest.raises(ValueError, match=r"dictionary must be a file, got '.*words\.txt'\."):
        RecipeArguments(dictionary=str(path))
    path.write_text("ab ba\n")
    with pytest.raises(ValueError, match=r"dictionary must be a \.tsv, \.csv, .* file, got '.*words\.txt'\."):
        RecipeArguments(dictionary=str(path))


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize(
    ("content", "key", "line"),
    [
        ('{"seed": 1, "max_steps": 4,\n "seed": 2}', "seed", 2),
        ('{"seed": 1,\n "stages": [\n {"name": "a", "kind": "train", "name": "b"}]}', "name", 3),
    ],
)
def test_a_key_that_occurs_twice_is_an_error(content, key, line, suffix, tmp_path):
    path = tmp_path / f"recipe{suffix}"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"YAML or JSON: keys must be unique, got '{key}' again in line {line}\."):
        read_recipe(path)


def test_a_student_without_a_stage_is_an_error():
    with pytest.raises(ValueError, match="student must be unset without a stage whose condition"):
        stages_to_run([{"name": "a"}], RecipeArguments(student=True))


@pytest.mark.parametrize("content", ["max_steps: 1\nmax-steps: 2", "stages:\n- {name: a, lora-rank: 1, lora_rank: 2}"])
def test_a_key_in_two_spellings_is_an_error(content, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"keys must be unique, got '(max-steps|lora_rank)' again in line 2\."):
        read_recipe(path)


@pytest.mark.parametrize("content", ["source_lang: no\ntarget_lang: en", "source-lang: [en, no]", "run_name: on"])
def test_a_text_that_yaml_reads_as_a_boolean_is_an_error(content, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    message = "(source_lang|run_name) must be text, in quotes if YAML reads it as a Boolean, got (False|en, False|True)"
    with pytest.raises(ValueError, match=message):
        training_arguments(read_recipe(path), {})


def test_a_list_for_an_argument_of_one_value_is_an_error():
    with pytest.raises(ValueError, match=r"^max_steps must be one value, got 2, 3\."):
        training_arguments({"max_steps": [2, 3]}, {})
    with pytest.raises(ValueError, match=r"^arguments must be among those of --help, got --stage\."):
        training_arguments({"stage": [2, 3]}, {})


def test_values_that_yaml_reads_as_booleans(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("save_strategy: no\neval_strategy: no\naugment: yes\n")
    write_corpus(tmp_path)
    call_arguments = {**arguments(tmp_path, "out"), "eval_strategy": None, "save_strategy": None, "save_steps": None}
    call_arguments = {name: value for name, value in call_arguments.items() if value is not None}
    *_, args = training_arguments(read_recipe(path), call_arguments)
    assert (args.save_strategy, args.eval_strategy, args.augment) == ("no", "no", True)

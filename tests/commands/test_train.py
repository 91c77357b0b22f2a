"""The command line of training: recipes, one line per error, exit status of signals."""

import logging
import re
import warnings
from itertools import chain

import pytest
from peft import LoraConfig, get_peft_model
from transformers import EarlyStoppingCallback, TrainingArguments

from modeling_random_transformer import cli
from modeling_random_transformer.commands import train as command
from modeling_random_transformer.training import DataArguments, ModelArguments, TranslationTrainingArguments
from modeling_random_transformer.training.training_arguments import UNSUPPORTED_ARGUMENTS
from tests.helpers.command_line import exit_status
from tests.helpers.models import tiny_model
from tests.helpers.training import flags, parse_command


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: [1", "recipe.yaml must be YAML or JSON: expected ',' or ']', but got '<stream end>' in line 1."),
        ("seed: 1\n\tmax_steps: 1", "found character '\\t' that cannot start any token in line 2."),
        ("- 1", "recipe.yaml must map argument names to values, got list"),
        ("max_steps: many", "invalid int value: 'many'"),
        ("bf16: perhaps", "argument --bf16"),
        ("num_train_epochs: 2", "num_train_epochs must be unset unless max_steps is -1"),
        ("max_stepps:", "arguments must be those of a recipe, got max_stepps. Did you mean max_steps?"),
        ("max_stepps: 4", "arguments must be among those of --help, got --max_stepps. Did you mean --max_steps?"),
    ],
)
def test_an_invalid_recipe_is_reported_in_one_line(text, message, corpus, capsys):
    recipe = corpus / "recipe.yaml"
    recipe.write_text(text)
    assert exit_status(cli.main, ["train", recipe, *flags(corpus, max_steps=None)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("random-transformer train: error: ")
    assert message in line


def test_a_recipe_after_flags(corpus, capsys):
    command = ["train", "--train_file", corpus / "pairs.tsv", corpus / "recipe.yaml"]
    assert exit_status(cli.main, command) == 2
    expected = f"a recipe must be the first argument, got {corpus / 'recipe.yaml'} after --train_file."
    assert expected in capsys.readouterr().err


def test_recipe_values_are_parsed_like_flags(corpus):
    recipe = corpus / "recipe.yaml"
    recipe.write_text(
        "learning_rate: 1e-3\nbf16: false\npredict_with_generate: no\nwarmup_steps: 10\nreport_to: [tensorboard]\n"
        "lr_scheduler_type: cosine\nnum_beams: 3\nlr_scheduler_kwargs: {num_cycles: 0.5}\nvocab_size: null\n"
        "save_strategy: no\n"
    )
    in_recipe = dict.fromkeys(("learning_rate", "warmup_steps", "vocab_size", "save_strategy", "save_steps"))
    _, model, args, _ = parse_command([str(recipe), *flags(corpus, **in_recipe, num_beams=2)])
    assert args.save_strategy == "no"
    assert args.num_beams == 2  # a flag overrides the recipe
    assert (args.learning_rate, args.bf16, args.predict_with_generate, args.warmup_steps) == (1e-3, False, False, 10)
    assert (args.report_to, args.lr_scheduler_kwargs, model.vocab_size) == (["tensorboard"], {"num_cycles": 0.5}, None)


def test_a_key_without_a_value_is_as_if_it_were_absent(corpus):
    recipe = corpus / "recipe.yaml"
    recipe.write_text("max_steps:\nearly_stopping_patience: null\n")
    *_, args, _ = parse_command([str(recipe), *flags(corpus, max_steps=None)])
    assert (args.max_steps, args.early_stopping_patience) == (100_000, None)


def test_one_beam_beside_a_recipe_with_a_length_penalty_is_explained(corpus, capsys):
    recipe = corpus / "recipe.yaml"
    recipe.write_text("length_penalty: 1.5\n")
    arguments = [str(recipe), *flags(corpus, num_beams=1)]
    assert cli.main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert "length_penalty must be 0.6 (the default) or 'auto' with num_beams=1, got 1.5." in error
    *_, args, _ = parse_command([*arguments, "--length_penalty", "auto"])
    assert (args.num_beams, args.length_penalty, args.chooses_length_penalty) == (1, "auto", False)


@pytest.mark.parametrize(
    "report_flags", [["--report_to", "none"], ["--report-to", "none"], ["--report_to=none"]], ids=str
)
def test_several_values_of_a_recipe_are_overridden(report_flags, corpus):
    recipe = corpus / "recipe.yaml"
    recipe.write_text("report_to: [tensorboard, wandb]\n")
    *_, args, _ = parse_command([str(recipe), *flags(corpus, report_to=None), *report_flags])
    assert args.report_to == []


def test_a_tokenizer_replaces_the_vocabulary_size_of_a_recipe(corpus):
    recipe = corpus / "recipe.yaml"
    recipe.write_text("vocab_size: 300\n")
    _, model, *_ = parse_command([str(recipe), *flags(corpus, vocab_size=None), "--tokenizer", "saved"])
    assert (model.tokenizer, model.vocab_size) == ("saved", None)


def test_the_help_has_no_arguments_without_effect_and_all_of_this_project(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    names = re.findall(r"^  --(\w+)", capsys.readouterr().out, re.MULTILINE)
    assert len(names) == len({*names}) <= 110
    assert not {*names} & {*chain.from_iterable(UNSUPPORTED_ARGUMENTS.values()), "do_train", "do_eval"}
    assert not [name for name in names if re.match("ddp_|deepspeed|accelerator_config", name)]
    kinds = (DataArguments, ModelArguments, TranslationTrainingArguments)
    documented = {name for kind in kinds for name in vars(kind)["__annotations__"]}
    unlisted = {"requires_train", "do_train", "ddp_find_unused_parameters", "logging_nan_inf_filter"}
    assert documented - {*names} <= unlisted


def test_an_argument_that_is_not_in_the_help_is_accepted(corpus):
    *_, args, _ = parse_command(flags(corpus, ddp_timeout=60))
    assert args.ddp_timeout == 60


def test_a_repeated_flag_of_several_values_is_an_error(corpus, capsys):
    assert cli.main(["train", *flags(corpus), "--source_file", "more"]) == 2
    error = "--source_file must be given once, with all of its values, got ['more'] in a second one."
    assert capsys.readouterr().err == f"random-transformer train: error: {error}\n"


def test_warnings_of_libraries_that_nothing_can_be_done_about_are_hidden(caplog, monkeypatch):
    logger = logging.getLogger(EarlyStoppingCallback.__module__)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)  # transformers 5.17 does not propagate its messages
    monkeypatch.setattr(logger, "filters", [])
    caplog.set_level(logging.WARNING, logger.name)  # whatever level an earlier test has set
    args = TrainingArguments(metric_for_best_model="loss", eval_strategy="steps", use_cpu=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        command.hide_warnings_of_libraries()
        get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"]))
        EarlyStoppingCallback(1).on_train_begin(args, None, None)
        logger.warning("another warning")
    assert not caught
    assert caplog.messages == ["another warning"]

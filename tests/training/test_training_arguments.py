"""The defaults and checks of the training arguments."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import Parameter
from transformers import get_scheduler

from modeling_random_transformer.training import TranslationTrainingArguments, paper_peak_rate


def recipe(tmp_path, **options):
    return TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)


def test_defaults_are_the_papers_hyperparameters(tmp_path):
    args = recipe(tmp_path)
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay) == (0.9, 0.98, 1e-9, 0.0)
    assert (args.warmup_steps, args.max_steps, args.label_smoothing_factor) == (4000, 100_000, 0.1)
    assert (args.num_beams, args.length_penalty, args.average_last) == (4, 0.6, 5)
    assert args.learning_rate is None


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 40), (128, 400)])
def test_inverse_sqrt_schedule_equals_the_papers_formula(d_model, warmup):
    """d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), where the scheduler counts finished steps."""
    optimizer = torch.optim.Adam([Parameter(torch.zeros(1))], lr=paper_peak_rate(d_model, warmup))
    scheduler = get_scheduler("inverse_sqrt", optimizer, num_warmup_steps=warmup, num_training_steps=10 * warmup)
    for step in range(1, 3 * warmup):
        optimizer.step()
        scheduler.step()
        expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert scheduler.get_last_lr()[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 2, got 0"),
        ({"average_last": 0}, "average_last must be at least 1, got 0"),
        ({"save_on_each_node": True}, "save_on_each_node must be unset because all nodes share output_dir, got True"),
        ({"bpe_dropout": 1.0}, "bpe_dropout must be at least 0 and below 1, got 1.0"),
        ({"muon": True, "fsdp": True}, "muon must be False with weights or states that are sharded over processes"),
        ({"eval_do_concat_batches": False}, "eval_do_concat_batches must be unset because metrics get all rows"),
        ({"engine": "onnx"}, "engine must be one of ctranslate2, got 'onnx'"),
        ({"r_drop_alpha": -1.0}, "r_drop_alpha must be at least 0, got -1.0"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"seed": -1}, "^seed must be at least 0, got -1"),
        ({"length_penalty": float("nan")}, "length_penalty must be finite, got nan"),
        ({"length_penalty": 1e9}, "length_penalty must be a number from -2 to 10, or 'auto', got 1000000000"),
        ({"num_beams": 10**9}, "num_beams must be at most 1000, got 1000000000"),
        ({"num_beams": 1, "length_penalty": 1.5}, r"length_penalty must be 0\.6 .* with num_beams=1, got 1\.5"),
        ({"gradient_accumulation_steps": 10**9}, "gradient_accumulation_steps must be at most 10000, got 1000000000"),
        ({"dataloader_num_workers": 10**9}, "dataloader_num_workers must be at most 1000, got 1000000000"),
        ({"dataloader_num_workers": -1}, "dataloader_num_workers must be at least 0, got -1"),
        ({"generation_max_length": 1}, "generation_max_length must be at least 2, got 1"),
        ({"generation_max_length": 10**9}, "generation_max_length must be at most 10000, got 1000000000"),
        ({"data_seed": -1}, "data_seed must be at least 0, got -1"),
        ({"tp_size": 2}, "tp_size must be such that tp_size x fsdp_size is 1 or .* processes, here 1, got 2"),
        ({"save_total_limit": 2}, "save_total_limit must be at least average_last=5, got 2"),
        ({"num_train_epochs": 5}, "num_train_epochs must be unset unless max_steps is -1, got 5"),
        ({"max_steps": 2.5}, r"max_steps must be a positive integer, or -1 for epochs, got 2\.5"),
        ({"max_steps": -1, "num_train_epochs": 0}, "num_train_epochs must be positive, got 0"),
        ({"max_steps": -1, "warmup_steps": 0.1}, r"warmup_steps must be 0 or at least 1 .*, got 0\.1"),
        ({"per_device_train_batch_size": 16}, "must be unset because max_tokens_per_batch sets the batch size"),
        ({"resume_from_checkpoint": "a"}, "resume_from_checkpoint must be unset because the same command resumes"),
        ({"generation_num_beams": 5}, "must be unset because num_beams sets the number of beams, got 5"),
        ({"fp16": True}, "fp16 must be False on a CPU"),
        ({"do_train": False}, "do_train must be True, got False"),
        ({"eval_steps": 10}, "eval_steps must be unset unless eval_strategy is steps, got 10"),
        ({"eval_steps": 10, "eval_strategy": "epoch"}, "eval_steps must be unset unless eval_strategy is steps"),
        ({"eval_delay": 3}, "eval_delay must be unset without eval_strategy, got 3"),
        ({"save_steps": 7, "save_strategy": "epoch"}, "save_steps must be unset unless save_strategy is steps, got 7"),
        ({"logging_steps": 7, "logging_strategy": "epoch"}, "logging_steps must be unset unless logging_strategy is"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        ({"warmup_steps": float("nan")}, "warmup_steps must be finite, got nan"),
        ({"weight_decay": float("inf")}, "weight_decay must be finite, got inf"),
        ({"num_beams": 2.0}, r"num_beams must be an integer, got 2\.0"),
        ({"muon": "no"}, "muon must be True or False, got 'no'"),
        ({"do_eval": True}, "do_eval must be unset without eval_strategy, got True"),
        ({"do_predict": True}, "do_predict must be unset because test sets are always scored, got True"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha must be unset because embeddings get no noise, got 5.0"),
        ({"use_liger_kernel": True}, "use_liger_kernel must be unset"),
        (
            {"remove_unused_columns": False},
            "remove_unused_columns must be unset because batches have the token ids only",
        ),
        ({"include_for_metrics": ["inputs"]}, r"include_for_metrics must be unset .*, got \['inputs'\]"),
        ({"length_column_name": "size"}, "length_column_name must be unset because batches are always grouped by len"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be at least 0, got -1.0"),
        ({"save_steps": 0}, "save_steps must be positive, got 0"),
        ({"save_steps": -5}, "save_steps must be positive, got -5"),
        ({"logging_steps": 0}, "logging_steps must be positive, got 0"),
        ({"eval_steps": -1, "eval_strategy": "steps"}, "eval_steps must be positive, got -1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be positive, got 0"),
        ({"per_device_eval_batch_size": 0}, "per_device_eval_batch_size must be at least 1, got 0"),
        ({"early_stopping_patience": 0, "eval_strategy": "steps"}, "early_stopping_patience must be at least 1, got 0"),
        ({"label_smoothing_factor": 1.5}, "label_smoothing_factor must be at least 0 and below 1, got 1.5"),
        ({"optim": "sgd", "adam_beta1": 0.8}, "adam_beta1 must be unset with optim=sgd, got 0.8"),
        ({"optim": "adafactor", "adam_epsilon": 1e-6}, "adam_epsilon must be unset with optim=adafactor, got 1e-06"),
        ({"adam_beta2": 1.0}, "adam_beta2 must be at least 0 and below 1, got 1.0"),
    ],
)
def test_invalid_arguments_raise(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        recipe(tmp_path, **options)


@pytest.mark.parametrize(
    ("stage", "options", "message"),
    [
        (3, {"average_last": 2}, "average_last must be 1 with DeepSpeed ZeRO-3, got 2"),
        (2, {"average_last": 2}, None),
        (2, {"muon": True}, "muon must be False with weights or states that are sharded over processes, got True"),
    ],
)
def test_arguments_with_deepspeed(stage, options, message, tmp_path, monkeypatch):
    plugin = property(lambda _: SimpleNamespace(zero_stage=stage), lambda *_: None)
    monkeypatch.setattr(TranslationTrainingArguments, "deepspeed_plugin", plugin, raising=False)
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        recipe(tmp_path, **options)


def test_a_copy_without_evaluation_is_valid(tmp_path):
    stopping = {"early_stopping_patience": 1, "metric_for_best_model": "loss"}
    args = recipe(tmp_path, eval_strategy="steps", eval_steps=2, eval_delay=1, **stopping)
    copied = replace(args.without_evaluation(), learning_rate=1e-3)  # as for the paper's learning rate
    assert (copied.eval_strategy, copied.do_eval, copied.learning_rate) == ("no", False, 1e-3)
    assert (args.eval_strategy, args.do_eval, args.eval_steps) == ("steps", True, 2)


def test_an_empty_output_dir_is_an_error():
    with pytest.raises(ValueError, match="output_dir must be a folder, got ''"):
        TranslationTrainingArguments(output_dir="")


@pytest.mark.parametrize(("warmup_steps", "steps"), [(0.04, 40), (40, 40), (0, 1)])
def test_peak_rate_of_warm_up_in_steps_or_as_a_fraction(warmup_steps, steps, tmp_path):
    args = recipe(tmp_path, max_steps=1000, warmup_steps=warmup_steps)
    assert args.peak_rate(d_model=64) == paper_peak_rate(64, steps)

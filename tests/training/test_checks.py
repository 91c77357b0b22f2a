"""Checks of the arguments together, and of edited models, before the corpus is read."""

import shutil
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import MarianConfig, MarianMTModel

from modeling_random_transformer import RandomTransformerForConditionalGeneration, modeling_random_transformer
from modeling_random_transformer.inference.confidence import Calibration
from modeling_random_transformer.modeling_random_transformer import RandomTransformerPreTrainedModel
from modeling_random_transformer.training import ModelArguments, train_translation
from modeling_random_transformer.training.checks import (
    check_adapted_modules,
    check_arguments,
    check_causality,
    check_edited_model,
)
from tests.helpers.models import tiny_model
from tests.helpers.trainer import new_trainer
from tests.helpers.training import UNSCORED, parsed, validation

LORA = {"model_name_or_path": "m", "lora_rank": 2, "vocab_size": None, "config_overrides": ""}


@pytest.mark.parametrize(
    ("options", "tp_size", "message"),
    [
        ({"config_overrides": "num_heads=0"}, 1, "num_heads"),
        ({"config_overrides": "num_heads=3,d_k=4"}, 2, "num_heads must be a multiple of tp_size=2, got 3"),
        ({"config_overrides": "d_ff=3"}, 2, "d_ff must be a multiple of tp_size=2, got 3"),
        (LORA, 2, r"lora_rank must be unset with tp_size .*, got 2\."),
        ({"r_drop_alpha": 5.0, "config_overrides": "dropout=0.0"}, 1, r"r_drop_alpha must be 0 for .*, got 5\.0\."),
        (
            {"augment": True, "config_overrides": "position_embedding=learned"},
            1,
            r"augment must be False for a model with learned positions, got True\.",
        ),
        ({"eval_strategy": "steps"}, 1, "eval_strategy must be 'no' without a validation set, got 'steps'"),
        ({"lr_scheduler_kwargs": {"zz": 1}}, 1, "lr_scheduler_kwargs must suit lr_scheduler_type, got {'zz': 1}"),
        ({"torch_compile_mode": "fast"}, 1, "torch_compile_backend and torch_compile_mode must be those of .*'fast'"),
        ({"torch_compile_backend": "nope"}, 1, "torch_compile_backend and torch_compile_mode must be .* 'nope' and"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, 1, "lr_scheduler_kwargs must suit .*'num_decay_steps'"),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 0.0005}, "learning_rate": 1e-4},
            1,
            r"lr_scheduler_kwargs must suit .* lr_end \(0.0005\) must be smaller than initial lr \(0.0001\)",
        ),
        ({"optim": "lomo"}, 1, "optim must be installed, got lomo.*install"),
        ({"report_to": "swanlab"}, 1, r"report_to must be installed, got \['swanlab'\]: .*install"),
        (
            {"streaming": True, "save_strategy": "epoch", "save_steps": 1000},
            1,
            "max_steps, save_strategy and eval_strategy must count ste",
        ),
        ({"streaming": True, "max_steps": -1}, 1, "max_steps, save_strategy and eval_strategy must count steps with"),
        (
            {**UNSCORED, "bleu_tokenize": "zh"},
            1,
            "bleu_tokenize must be unset without a validation or test set, got 'zh'",
        ),
        (
            {**UNSCORED, "engine": "ctranslate2", "use_cpu": True},
            1,
            "engine must be unset without a validation or test",
        ),
        ({**UNSCORED, "generation_max_length": 9}, 1, "generation_max_length must be unset without a validation or"),
        ({"bleu_tokenize": "nope"}, 1, "tokenize must be one of none, .*, got 'nope'"),
        ({"metric_for_best_model": "bleuu"}, 1, "metric_for_best_model must be one of loss, bleu, chrf, .*'bleuu'"),
        ({"metric_for_best_model": "talks_bleu"}, 1, "metric_for_best_model must be one of loss, .*'talks_bleu'"),
        (
            {"metric_for_best_model": "bleu", "predict_with_generate": False},
            1,
            "metric_for_best_model must be one of loss, got 'bleu'",
        ),
    ],
)
def test_arguments_that_exclude_each_other_raise_before_the_corpus_is_read(options, tp_size, message, corpus):
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    data, model, args = parsed(corpus, "out", **options)
    args.tp_size = tp_size  # in one process
    with pytest.raises(ValueError, match=message):
        train_translation(data, model, args)
    assert not (corpus / "out").exists()


def test_a_schedule_is_checked_with_the_peak_learning_rate(corpus):
    schedule = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 0.005}}
    check_arguments(*parsed(corpus, "new", **schedule, learning_rate=0.01))


def test_activation_dropout_suffices_for_r_drop(corpus):
    check_arguments(*parsed(corpus, "new", r_drop_alpha=5.0, config_overrides="dropout=0.0,activation_dropout=0.1"))


def test_a_checkpoint_must_fit_on_the_disk(corpus, monkeypatch):
    usage = shutil.disk_usage(corpus)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(
        ValueError, match=r"output_dir must be on a disk with at least .* GB for a checkpoint, got .*out"
    ):
        check_arguments(*parsed(corpus, "out"))
    check_arguments(*parsed(corpus, "out", save_strategy="no", save_steps=1000))
    (corpus / "out").mkdir()
    check_arguments(*parsed(corpus, "out"))  # a run that resumes replaces its checkpoints


TIED, TWO_EMBEDDINGS = {}, {"share_embeddings": False}
UNTIED = {"share_embeddings": False, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("config", "targets", "error"),
    [
        *(
            (TIED, targets, "modules with their own weights")
            for targets in ("lm_head", "q_proj, embed_tokens", "model.shared")
        ),
        *(
            (TWO_EMBEDDINGS, targets, "modules with their own weights")
            for targets in ("lm_head", "decoder.embed_tokens")
        ),
        (TWO_EMBEDDINGS, "encoder.embed_tokens", None),
        *((UNTIED, targets, None) for targets in ("lm_head", "embed_tokens,fc1", "encoder.layers.0.fc1")),
        *((UNTIED, targets, "modules of the model") for targets in ("q_proj,fc3", "shared", "proj")),
    ],
)
def test_only_modules_with_their_own_weights_can_be_adapted(config, targets, error):
    """A module that is adapted alone would change others when the adapter is merged."""
    names = ModelArguments(model_name_or_path="m", lora_rank=2, lora_target_modules=targets).lora_targets
    with nullcontext() if error is None else pytest.raises(ValueError, match=f"lora_target_modules must be {error}"):
        check_adapted_modules(tiny_model(**config), names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("confidence.json", r"confidence\.json must be a calibration"),
        ("confidence.a.b.json", r"confidence\.a\.b\.json must be a calibration"),
    ],
)
def test_a_damaged_calibration_in_the_output_folder(name, message, corpus):
    (corpus / "out").mkdir()
    (corpus / "out" / name).write_text("{}")
    with pytest.raises(ValueError, match=message):
        check_arguments(*parsed(corpus, "out"))


def test_a_calibration_of_another_model_in_the_output_folder(corpus):
    (corpus / "out").mkdir()
    Calibration(20.0, 100, [0.0] * 6, 0.0, 1.0, ["Latin"]).save(corpus / "out")
    with pytest.raises(ValueError, match=r"got .*out with confidence\.json, which the run has not written"):
        check_arguments(*parsed(corpus, "out"))


def test_an_output_folder_whose_name_is_not_utf8(corpus):
    with pytest.raises(ValueError, match=r"output_dir must be a path in UTF-8, got '.*/out\\udcff'"):
        check_arguments(*parsed(corpus, "out\udcff"))


def test_a_damaged_generation_config_of_the_initial_model(corpus):
    tiny_model().save_pretrained(corpus / "initial")
    (corpus / "initial" / "generation_config.json").write_text("{")
    options = {"model_name_or_path": str(corpus / "initial"), "vocab_size": 300, "config_overrides": ""}
    with pytest.raises(ValueError, match=r"model_name_or_path must contain .*initial': generation_config\.json: "):
        check_arguments(*parsed(corpus, "out", **options))


def test_an_export_is_no_initial_model(corpus):
    tiny_model().save_pretrained(corpus / "initial")
    (corpus / "initial" / "model.safetensors").rename(corpus / "initial" / "model.bin")
    options = {"model_name_or_path": str(corpus / "initial"), "vocab_size": 300, "config_overrides": ""}
    with pytest.raises(ValueError, match=r"must be that of the model, not of its export, got one with model\.bin"):
        check_arguments(*parsed(corpus, "out", **options))


def test_an_adapter_has_no_search_to_choose(corpus):
    with pytest.raises(ValueError, match=r"length_penalty must be a number with lora_rank, got 'auto': an adapter has"):
        check_arguments(*parsed(corpus, "out", **validation(corpus), **LORA, length_penalty="auto"))


@pytest.mark.parametrize("name", ["tokenizer", "model_name_or_path"])
@pytest.mark.parametrize("path", ["outputs/en-dd", "/nowhere/en-de"])
def test_a_path_that_does_not_exist_is_not_searched_on_the_hub(name, path, corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    (corpus / "outputs").mkdir()
    options = {name: path, "vocab_size": None, "config_overrides": ""}
    with pytest.raises(ValueError, match=rf"{name} must be a path that exists, or a name on the Hub, got '{path}': "):
        check_arguments(*parsed(corpus, "out", **options))


def summed_loss(logits, labels, **_):
    return nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")


def test_a_loss_of_the_model_that_training_would_ignore_is_an_error(tmp_path, corpus, monkeypatch):
    message = "loss_function of the model must be smoothed_cross_entropy, got summed_loss: training would ignore it"
    trainer = new_trainer(tmp_path)
    trainer.model.loss_function = summed_loss
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0
    post_init = RandomTransformerForConditionalGeneration.post_init

    def with_summed_loss(model):
        model.loss_function = summed_loss
        post_init(model)

    monkeypatch.setattr(RandomTransformerForConditionalGeneration, "post_init", with_summed_loss)
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    with pytest.raises(ValueError, match=message):  # before the corpus is read
        train_translation(*parsed(corpus, "out"))


def test_attention_to_later_positions_is_an_error_before_the_corpus_is_read(tmp_path, corpus, monkeypatch):
    """A formula in the place of SDPA, which ignores that a mask of `None` is causal there."""
    state = torch.get_rng_state()
    check_causality()
    assert torch.equal(torch.get_rng_state(), state)

    def formula(attention_mask, **_):
        return "eager", attention_mask

    monkeypatch.setattr(modeling_random_transformer, "select_attention", formula)
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    with pytest.raises(ValueError, match="attention of the decoder must hide later positions, but a position depends"):
        train_translation(*parsed(corpus, "out"))
    with pytest.raises(ValueError, match="attention of the decoder must hide later positions"):
        new_trainer(tmp_path).train()
    monkeypatch.setattr(RandomTransformerPreTrainedModel, "_supports_sdpa", False)  # the advice of the message
    check_causality()


def test_the_loss_of_adapted_models_is_checked_and_that_of_other_models_is_not():
    adapted = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"]))
    check_edited_model(adapted)
    adapted.get_base_model().loss_function = summed_loss
    with pytest.raises(ValueError, match="got summed_loss"):
        check_edited_model(adapted)
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 9}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    check_edited_model(MarianMTModel(MarianConfig(**sizes, **heads, pad_token_id=0, decoder_start_token_id=0)))

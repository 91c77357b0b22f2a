"""The initial model of a run: a new model, a saved model, or a frozen saved model with a LoRA adapter."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerBase, set_seed
from transformers.utils import GENERATION_CONFIG_NAME

from ..base import load_extra
from ..base.errors import reraise_as_value_error
from ..base.saved_files import check_not_exported
from ..configuration_random_transformer import RandomTransformerConfig
from ..inference.loading import check_generation_config, check_tokenizer
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from .arguments import ModelArguments
from .tokenizer import load_parent_tokenizer, load_tokenizer, special_ids
from .training_arguments import TranslationTrainingArguments


def load_initial(model_args: ModelArguments) -> tuple[RandomTransformerConfig, PreTrainedTokenizerBase | None]:
    """The configuration of the initial model, and the saved tokenizer, which matches it; `None` to train one."""
    initial = model_args.model_name_or_path
    config = None
    if initial is not None:
        config = saved_config(initial, model_args.overrides)
        if model_args.has_new_vocabulary:
            load_parent_tokenizer("model_name_or_path", initial)
    tokenizer = None
    saved = model_args.saved_tokenizer
    if saved is not None:
        with reraise_as_value_error(f"tokenizer must be a saved tokenizer, got {saved!r}"):
            tokenizer = load_tokenizer(saved, model_args.special_tokens or ())
    if config is None:
        config = model_args.config(model_args.size_of_new_vocabulary if tokenizer is None else len(tokenizer))
    elif tokenizer is not None and not model_args.has_new_vocabulary:
        check_tokenizer(tokenizer, config)
    return config, tokenizer


def build_model(
    model_args: ModelArguments, args: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> Any:
    """The model to train, with the generation settings of evaluation.

    Raises:
        ValueError: the configuration is invalid, or saved weights are incomplete.
    """
    set_seed(args.seed)  # random weights depend on the seed only, not on earlier random numbers
    if model_args.model_name_or_path is None:
        config = model_args.config(len(tokenizer), **special_ids(tokenizer))
        model = RandomTransformerForConditionalGeneration(config)
    else:
        model = saved_model(model_args)
        if model_args.has_new_vocabulary:
            transfer = load_extra("vocabulary_transfer")
            model = transfer.with_vocabulary(model, load_tokenizer(model_args.model_name_or_path), tokenizer)
        freeze(model, model_args.freeze)
    set_generation_config(model, max_length=model.config.max_position_embeddings, **args.search_kwargs)
    if args.num_shards > 1:
        model = load_extra("sharding").sharded(model, args)
    return model if model_args.lora_rank is None else with_adapter(model, model_args)


def set_generation_config(model: Any, **options: Any) -> None:
    """Set options of the model's generation config. `patience`, which transformers lacks, is saved too."""
    # If `_from_model_config` were True, loading would ignore options that transformers lacks.
    model.generation_config.update(**options, _from_model_config=False, allow_custom_entries=True)


def freeze(model: nn.Module, parts: str) -> None:
    """Freeze the parameters whose names contain one of the parts, which are separated by commas.

    Raises:
        ValueError: no name contains a part, or no other parameter remains.
    """
    weights = dict(model.named_parameters())  # a tied weight has its first name
    for part in filter(None, parts.split(",")):
        frozen = [name for name in weights if re.search(rf"\b{re.escape(part.strip())}\b", name)]
        for name in frozen:
            weights[name].requires_grad = False
        if not frozen or not any(weight.requires_grad for weight in weights.values()):
            raise ValueError(f"freeze must be parts of some parameter names, such as 'encoder,shared', got {part!r}.")


def saved_config(folder: str, overrides: Mapping[str, Any]) -> RandomTransformerConfig:
    """The configuration of a model to fine-tune, with the overrides."""
    with reraise_as_value_error(f"model_name_or_path must contain a full model without an adapter, got {folder!r}"):
        check_not_exported(Path(folder))
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if Path(folder, GENERATION_CONFIG_NAME).is_file():  # transformers would ignore a damaged one
            check_generation_config(Path(folder))
    if not isinstance(config, RandomTransformerConfig):
        raise ValueError(
            f"model_name_or_path must contain a model of type {RandomTransformerConfig.model_type!r}, "
            f"got {folder!r} of type {config.model_type!r}."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model_name_or_path must contain unquantized weights, got quantized ones in {folder!r}.")
    return RandomTransformerConfig.from_dict({**config.to_dict(), **overrides})


def saved_model(model_args: ModelArguments) -> RandomTransformerForConditionalGeneration:
    """The saved model in float32: half precision would round small updates to zero."""
    folder = model_args.model_name_or_path
    with reraise_as_value_error(f"model_name_or_path must contain complete weights, got {folder!r}"):
        model, info = RandomTransformerForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **model_args.overrides
        )
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"]))
        raise ValueError(f"model_name_or_path must contain all weights, got {folder!r} without {missing}.")
    model.generation_config.max_new_tokens = None  # max_length is the limit
    return model


def with_adapter(model: RandomTransformerForConditionalGeneration, model_args: ModelArguments) -> Any:
    """The frozen model with a trainable adapter (LoRA, Hu et al. 2021)."""
    from peft import LoraConfig, TaskType, get_peft_model

    rank: Any = model_args.lora_rank
    config = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        r=rank,
        lora_alpha=model_args.lora_alpha or 2 * rank,
        lora_dropout=model_args.lora_dropout,
        target_modules=model_args.lora_targets or None,
    )
    if Path(model.name_or_path).is_dir():  # the saved adapter refers to its base model from any working directory
        model.name_or_path = str(Path(model.name_or_path).resolve())
    return get_peft_model(model, config)

"""What a run starts from: random weights, a saved translator, or one whose weights stay and that gets an adapter."""

from pathlib import Path
from typing import TYPE_CHECKING, Union

import torch
from accelerate import PartialState
from transformers import AutoConfig, PreTrainedTokenizerBase, set_seed
from transformers.distributed import DistributedConfig
from transformers.utils import is_peft_available

from ..configuration_random_transformer import RandomTransformerConfig
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from .arguments import ModelArguments, parse_overrides
from .recipe import TranslationTrainingArguments

if TYPE_CHECKING:
    from peft import PeftModel

Network = Union[RandomTransformerForConditionalGeneration, "PeftModel"]


def starting_network(
    model: ModelArguments, args: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> Network:
    """The network to train, with the settings of its search.

    Raises:
        ValueError: an argument is refused, or the saved translator is not one, or not this tokenizer's.
    """
    set_seed(args.seed)  # the weights depend on the seed alone, not on what was drawn before
    network = _random(model, tokenizer) if model.model_name_or_path is None else _saved(model, tokenizer)
    network.generation_config.update(max_length=network.config.max_position_embeddings, **args.search)
    if args.tp_size * args.fsdp_size > 1:
        network = _share_out(network, args)
    return network if model.lora_rank is None else _with_adapter(network, model.lora_rank, model)


def _random(model: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> RandomTransformerForConditionalGeneration:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    config = model.config(len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id, **ids)
    return RandomTransformerForConditionalGeneration(config)


def _saved(model: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> RandomTransformerForConditionalGeneration:
    """The translator in the folder, in float32 whatever it was saved in: updates of half precision get lost."""
    folder = model.model_name_or_path
    config = AutoConfig.from_pretrained(folder)
    if not isinstance(config, RandomTransformerConfig):
        raise ValueError(
            f"model_name_or_path must hold a model of type {RandomTransformerConfig.model_type!r}, "
            f"got {folder!r} of type {config.model_type!r}."
        )
    if len(tokenizer) != config.vocab_size:
        raise ValueError(
            f"model_name_or_path must hold the model's own tokenizer, got {folder!r} with {len(tokenizer)} tokens "
            f"for a model of {config.vocab_size}."
        )
    overrides = parse_overrides(model.config_overrides)
    return RandomTransformerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, **overrides)


def _with_adapter(network: RandomTransformerForConditionalGeneration, rank: int, model: ModelArguments) -> "PeftModel":
    """The network with an adapter (LoRA, Hu et al. 2021), of which alone the weights are trained."""
    if not is_peft_available():
        raise ValueError(f"lora_rank needs peft: pip install 'random-transformer[adapters]', got {rank} without it.")
    from peft import LoraConfig, TaskType, get_peft_model

    options = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        r=rank,
        lora_alpha=2 * rank if model.lora_alpha is None else model.lora_alpha,
        lora_dropout=model.lora_dropout,
        target_modules=model.lora_targets,
    )
    return get_peft_model(network, options)


def _share_out(
    network: RandomTransformerForConditionalGeneration, args: TranslationTrainingArguments
) -> RandomTransformerForConditionalGeneration:
    """The same weights, each process with its part of them. transformers splits a model as it loads it."""
    folder = Path(args.output_dir) / "initial"
    if args.process_index == 0:
        network.save_pretrained(folder)
    PartialState().wait_for_everyone()
    sizes = DistributedConfig(tp_size=args.tp_size, fsdp_size=args.fsdp_size)
    return RandomTransformerForConditionalGeneration.from_pretrained(folder, distributed_config=sizes)

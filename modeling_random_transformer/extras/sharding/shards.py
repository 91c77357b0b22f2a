"""Shards the weights, with the tensor parallelism and FSDP2 of transformers, or with Accelerate's FSDP2."""

import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from torch import nn
from transformers.distributed import DistributedConfig

from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...training.training_arguments import TranslationTrainingArguments


def sharded(
    model: RandomTransformerForConditionalGeneration, args: TranslationTrainingArguments
) -> RandomTransformerForConditionalGeneration:
    """A copy of the model with one shard per process. It is saved and loaded: transformers shards only when loading."""
    folder = Path(args.output_dir) / ".initial"
    if args.process_index == 0:
        model.save_pretrained(folder)
    PartialState().wait_for_everyone()
    sizes = DistributedConfig(tp_size=args.tp_size, fsdp_size=args.fsdp_size)
    shards = RandomTransformerForConditionalGeneration.from_pretrained(folder, distributed_config=sizes)
    shards.register_state_dict_post_hook(remove_tied)
    PartialState().wait_for_everyone()
    if args.process_index == 0:
        shutil.rmtree(folder)
    return shards


def remove_tied(model: Any, state: dict[str, torch.Tensor], *_: Any) -> None:
    """Keep one name of each tied weight. transformers gathers its shards under all names, and would save every copy."""
    for name in model.all_tied_weights_keys:
        state.pop(name, None)


def shard_layers(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each layer as one unit, and the remaining weights as the root unit, with Accelerate's options.

    Accelerate does not shard a model that is already sharded. Its own units would separate the shared embedding from
    the embeddings of the stacks, which torch rejects because they share a weight.

    Raises:
        ValueError: an option is not supported.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if isinstance(model, FSDPModule):
        return
    plugin = accelerator.state.fsdp_plugin
    for name in ("cpu_ram_efficient_loading", "activation_checkpointing"):
        if getattr(plugin, name):
            raise ValueError(f"fsdp_{name} must be false, got true.")
    mesh = accelerator.torch_device_mesh
    dimensions = accelerator.parallelism_config
    options = {
        "mesh": None if mesh is None or dimensions is None else mesh[tuple(dimensions.fsdp_dim_names)],
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        "offload_policy": plugin.cpu_offload,
    }
    layers: Any = model._no_split_modules
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, reshard_after_forward=plugin.reshard_after_forward, **options)
    fully_shard(model, **options)
    plugin.auto_wrap_policy = None  # Accelerate would look for the classes of the layers, which are replaced

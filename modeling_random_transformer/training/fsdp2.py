"""Accelerate's FSDP2 for a model whose embedding several modules share."""

from typing import Any

from accelerate import Accelerator
from torch import nn


def uses_fsdp2(accelerator: Accelerator) -> bool:
    """Whether Accelerate's configuration selects FSDP2."""
    return bool(getattr(accelerator, "is_fsdp2", False))


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 has sharded the model."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def shard_layers(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each layer as one unit, and the remaining weights as the root unit, with Accelerate's options.

    Accelerate leaves a sharded model as it is. Its own units separate the shared embedding from those of the stacks,
    which torch rejects because they have the same weight.

    Raises:
        ValueError: an option is not supported.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if is_sharded(model):
        return
    plugin: Any = accelerator.state.fsdp_plugin
    for name in ("cpu_ram_efficient_loading", "activation_checkpointing"):
        if getattr(plugin, name):
            raise ValueError(f"fsdp_{name} must be false, got true.")
    mesh, dimensions = accelerator.torch_device_mesh, accelerator.parallelism_config
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
    # Accelerate gathers the shards of a tied weight under each of its names; the copies are not saved.
    model._keys_to_ignore_on_save = list(getattr(model, "all_tied_weights_keys", ()))  # type: ignore[assignment]
    plugin.auto_wrap_policy = None  # Accelerate would look for the classes of the layers, which are replaced


def prepare_for_evaluation(trainer: Any) -> None:
    """Shard the model of a trainer that has not trained. Accelerate requires an optimizer, which remains unused."""
    trainer.create_optimizer()
    trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)

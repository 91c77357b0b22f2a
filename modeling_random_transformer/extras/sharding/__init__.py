"""Weights that are sharded over processes (`--tp_size`, `--fsdp_size`, and the FSDP2 of Accelerate).

shards = sharded(model, args)
"""

from .shards import shard_layers, sharded

__all__ = ["shard_layers", "sharded"]

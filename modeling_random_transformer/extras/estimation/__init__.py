"""Estimates of the time and the memory of a training run, from a few steps on its first pairs.

    print(dry_run(data_args, model_args, args))

Requires the extra `train`.
"""

from .measurement import DryRun, dry_run

__all__ = ["DryRun", "dry_run"]

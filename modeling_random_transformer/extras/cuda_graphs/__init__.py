"""CUDA graphs of training: the passes of a batch are launched at once (`--cuda_graphs`)."""

from .captured_passes import CapturedPasses

__all__ = ["CapturedPasses"]

"""`torch.nn.Transformer`, with embeddings, positions and output layer."""

from .convert import convert_torch_transformer, from_torch_transformer

__all__ = ["convert_torch_transformer", "from_torch_transformer"]

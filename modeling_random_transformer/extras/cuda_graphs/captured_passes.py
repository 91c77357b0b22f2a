"""Forward and backward passes of training as CUDA graphs, one for each shape of a batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MAX_GRAPHS = 256  # batches of further shapes run without a graph
NUM_ITEMS = "num_items_in_batch"

Batch = dict[str, Tensor]
Passes = Callable[[Batch, Tensor | int | None], Tensor]  # inputs and number of target tokens → loss


class CapturedPasses:
    """Runs the passes of a model as CUDA graphs, with one launch per batch instead of about a thousand.

    A GPU computes the kernels of a small model faster than the CPU can launch them. The first batch of a shape runs as
    usual, the second batch is captured, and further batches replay the graph on their tensors. Python code of the
    passes, such as hooks, therefore runs for the first two batches of a shape only. Each replay draws new random
    numbers.

    The gradients of all steps use the same memory. Gradients that would be `None` are zeros.

    Args:
        model: the model, on a GPU.
    """

    def __init__(self, model: nn.Module):
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.device = self.weights[0].device
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        self.seen: set[Any] = set()
        self.graphs: dict[Any, PassGraph] = {}
        # All passes run on one stream, since autograd adds a gradient on the stream on which its weight was first used.
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, passes: Passes, inputs: Batch, num_items: Tensor | int | None) -> Tensor:
        """Add the gradients of a batch, and return its loss."""
        batch = inputs if num_items is None else {**inputs, NUM_ITEMS: num_items}
        batch = {name: torch.as_tensor(value, device=self.device) for name, value in batch.items()}
        self._use_same_gradients()
        key = self._key(batch)
        with self._on_stream():
            if key in self.seen and key not in self.graphs and len(self.graphs) < MAX_GRAPHS:
                self.graphs[key] = PassGraph(passes, batch, self.stream, self.pool)
            self.seen.add(key)
            if key in self.graphs:
                return self.graphs[key].replay(batch)
            return passes(inputs, num_items)

    def _use_same_gradients(self) -> None:
        missing = []
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            if weight.grad is None:
                weight.grad = gradient
                missing.append(gradient)
        if missing:
            torch._foreach_zero_(missing)

    def _key(self, batch: Batch) -> Any:
        """The key of a graph: batches with equal keys can use it. It contains the addresses of the weights."""
        shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in sorted(batch.items())]
        addresses = [weight.data_ptr() for weight in self.weights]
        return *shapes, *addresses

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


class PassGraph:
    """The passes of one shape.

    Args:
        passes: the function to capture. It adds to gradients, so the weights must have gradients.
        batch: tensors of the shape.
        stream: the stream on which the graph is captured.
        pool: the memory that all graphs share.
    """

    def __init__(self, passes: Passes, batch: Batch, stream: Any, pool: Any):
        self.batch = {name: tensor.clone() for name, tensor in batch.items()}
        inputs = dict(self.batch)
        num_items = inputs.pop(NUM_ITEMS, None)
        self.graph = torch.cuda.CUDAGraph()
        # Another thread may copy the next batch to the GPU.
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self.loss = passes(inputs, num_items)

    def replay(self, batch: Batch) -> Tensor:
        """Run the passes on tensors of the same shape, and return the loss."""
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor)
        self.graph.replay()
        return self.loss.clone()

"""Simulated CUDA graphs: the operations of a block are recorded as they run, and `replay` runs them again.

    with simulated():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = work(static_input)

As on a GPU, a capture changes no tensor, its outputs have values after the first replay only, and the CPU cannot read
a value during it. Work on another device than that of the stream runs at once and is not recorded.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READ_BY_THE_CPU = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
}


class CUDAGraph:
    """What was recorded: functions with their arguments and their new outputs."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor | None]]] = []
        self.replays = 0

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, outputs in self.calls:
            for output, result in zip(outputs, tensors_in(function(*args, **kwargs)), strict=True):
                if output is not None:
                    output.copy_(result)


class Recorder(TorchDispatchMode):
    """Records the operations of a `CUDAGraph`; with a device, those on tensors of this device."""

    def __init__(self, graph: CUDAGraph, device: torch.device | None):
        super().__init__()
        self.graph = graph
        self.device = device
        self.overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensors, and their values before
        self.generators = [torch.default_generator, *torch.cuda.default_generators]
        self.random_states = [generator.get_state() for generator in self.generators]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READ_BY_THE_CPU:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        devices = {tensor.device for tensor in tensors_in(tree_leaves((args, kwargs)))}
        if devices and self.device is not None and self.device not in devices:
            return function(*args, **kwargs)
        for value, argument in zip(args, function._schema.arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.overwritten.append((value, value.clone()))
        result = function(*args, **kwargs)
        memory = {storage(tensor) for tensor in tensors_in(tree_leaves((args, kwargs)))}
        # A view changes with its tensor. Whether `reshape` returns one depends on the strides.
        outputs = [None if storage(tensor) in memory else tensor for tensor in tensors_in(result)]
        self.graph.calls.append((function, args, kwargs, outputs))
        return result

    @torch.no_grad()
    def finish(self) -> None:
        """Restore what was overwritten and the random numbers, and remove the values of new tensors."""
        for generator, state in zip(self.generators, self.random_states, strict=True):
            generator.set_state(state)
        for tensor, values in reversed(self.overwritten):
            tensor.copy_(values)
        for *_, outputs in self.graph.calls:
            for output in outputs:
                if output is not None and output.is_floating_point():
                    output.fill_(torch.nan)


@contextlib.contextmanager
def graph(target: CUDAGraph, stream: Any = None, **_: Any) -> Iterator[None]:
    """`torch.cuda.graph`. Its default stream is on the device that was current in the first capture."""
    recorder = Recorder(target, (stream or default_stream()).device)
    with recorder:
        yield
    recorder.finish()


@functools.cache
def default_stream() -> Any:
    """The default stream of captures."""
    return torch.cuda.Stream()


def storage(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory, the same for its views."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(result: Any) -> list[torch.Tensor]:
    """The tensors among the results of an operator."""
    results = result if isinstance(result, tuple | list) else [result]
    return [tensor for tensor in results if isinstance(tensor, torch.Tensor)]


class Stream:
    """`torch.cuda.Stream`, for a machine without a GPU."""

    device = None

    def wait_stream(self, stream: Any) -> None: ...


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Replace the functions of `torch.cuda` that capture a graph, for tensors on the CPU."""
    replaced = {
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: None,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
    }
    with patch.multiple(torch.cuda, **replaced):
        yield

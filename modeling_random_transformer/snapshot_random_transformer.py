"""The state of a model that determines its outputs, which shows whether a model has changed since a comparison.

A `Snapshot` is gathered once for each model object. Results of comparisons and captured steps belong to it.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .ops_random_transformer import has_global_hooks, tensors_of, versions_of

T = TypeVar("T")
PLAIN_TYPES = (bool, int, float, str, tuple, torch.dtype)


class Snapshot:
    """The state of a model that determines its outputs: modules, code, attributes, configuration, hooks and weights.

    A snapshot shows whether the model has changed since it was verified. The state is gathered once, because comparing
    it later is faster than visiting all modules. Objects are compared by identity, and functions also by the identity
    of their code, tensors by `TensorContents`.

    A snapshot is an attribute of the model. A copy of the model has none.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module):
        self.reasons: dict[Any, str | None] = {}  # the result of each check of the model, by its name or its engine
        self.verified_steps: set[Any] = set()  # the kinds of cached steps that were compared
        modules = list(model.modules())
        self.submodules = modules[1:]
        # Views show later changes. PyTorch never uses the key of a hook again, so the keys identify the hooks.
        self.views: list[Iterable[Any]] = []
        for namespace in namespaces_of(modules):
            if namespace is not vars(model):  # see `current_values`
                self.views.append(namespace.values())
        for module in modules:
            self.views += module._forward_hooks.keys(), module._forward_pre_hooks.keys()
        self.values = self.current_values(model)
        code = code_of(self.values)
        self.functions = [function for function in code if isinstance(function, FunctionType)]
        self.code = [function.__code__ for function in self.functions]  # autoreload replaces the code of functions
        self.tensors = distinct(tensors_of(modules))
        self.contents = TensorContents(self.tensors)

    def __reduce__(self) -> Any:
        return type(None), ()  # copies and pickles of a model have `None` instead of a snapshot

    def current_values(self, model: nn.Module) -> list[Any]:
        """The values of all namespaces, and the functions of PyTorch and transformers that users may replace."""
        values = list(chain.from_iterable(self.views))
        values += map(type, self.submodules)
        values.append(type(model))
        attributes = dict(vars(model))
        # Not all of them, such as the engine and this snapshot.
        values += code_of(attributes.values())
        values += plain_values([attributes])
        values.append(attributes.get("config"))
        values.append(has_global_hooks())
        values.append(ALL_ATTENTION_FUNCTIONS.get("sdpa"))
        values.append(ALL_MASK_ATTENTION_FUNCTIONS.get("sdpa"))
        return values

    def reason_of(self, key: Any, check: Callable[[Any], str | None], model: Any) -> str | None:
        """The reason that a check of the model returns. The check of a key is called once."""
        if key not in self.reasons:
            self.reasons[key] = check(model)
        return self.reasons[key]

    def is_current(self, model: nn.Module) -> bool:
        """Whether nothing has changed in this model."""
        values = self.current_values(model)
        return (
            are_identical(values, self.values)
            and [function.__code__ for function in self.functions] == self.code
            and self.contents.are_those_of(self.tensors)
        )


def are_identical(objects: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two sequences contain the same objects, by identity."""
    if len(objects) != len(others):
        return False
    return all(map(is_, objects, others))


def namespaces_of(modules: Sequence[nn.Module]) -> list[Mapping[str, Any]]:
    """The attributes, children and tensors of modules, their configurations and classes, and files of the model.

    The files are those of classes that saved folders contain.
    """
    configs = [vars(module).get("config") for module in modules]
    model_configs = [config for config in configs if isinstance(config, PreTrainedConfig)]
    namespaces = [*map(vars, modules), *map(vars, model_configs)]
    for module in modules:
        namespaces += module._parameters, module._buffers, module._modules
    classes = dict.fromkeys(map(type, modules))
    for cls in dict.fromkeys(chain.from_iterable(module_class.__mro__ for module_class in classes)):
        if not cls.__module__.startswith("transformers."):  # excluded because they have many methods
            namespaces.append(vars(cls))
        if is_model_code(cls):
            file = vars(sys.modules[cls.__module__])
            file.setdefault("__warningregistry__", {})  # the first warning in a file would add it
            namespaces.append(file)
    return distinct(namespaces)


def code_of(values: Iterable[Any]) -> list[Any]:
    """The functions and classes among some values, and the functions that they wrap."""
    functions = []
    for value in values:
        is_function = callable(value) and not isinstance(value, nn.Module)
        if is_function or isinstance(value, classmethod | property):
            functions.append(getattr(value, "__func__", value))
    return functions + list(map(inspect.unwrap, functions))


def plain_values(namespaces: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The plain values of public attributes. Private attributes are skipped, because libraries keep results in them."""
    values = []
    for namespace in namespaces:
        for name, value in namespace.items():
            if name[0] != "_" and isinstance(value, PLAIN_TYPES):
                values.append(value)
    return values


def distinct(items: Iterable[T]) -> list[T]:
    """The objects without repetitions, compared by identity."""
    by_identity = {id(item): item for item in items}
    return list(by_identity.values())


def is_model_code(cls: type) -> bool:
    """Whether a class is defined in one of the files that saved folders contain."""
    return cls.__module__.endswith("random_transformer")


class TensorContents:
    """The contents of tensors, which show whether the tensors have changed.

    A tensor that is replaced has another address, and PyTorch counts operations in place. PyTorch does not count a
    write through `.data`, `.numpy()` or `vector_to_parameters`, nor by a fused optimizer. On a CPU, samples of all rows
    and columns show such a write. They are views, which keep the memory, so that no other tensor gets the same address.

    Args:
        tensors: the tensors.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.versions = versions_of(tensors)
        # On a GPU, there are no samples: reading them would wait for the device.
        self.samples = [sampled(tensor) for tensor in tensors if can_sample(tensor)]
        self.sampled_values = [sample.clone() for sample in self.samples]

    def are_those_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors with the same values."""
        return versions_of(tensors) == self.versions and all(map(torch.equal, self.samples, self.sampled_values))


def can_sample(tensor: Tensor) -> bool:
    """Whether values of a tensor can be read without synchronizing: it is on the CPU and has no special class."""
    return tensor.is_cpu and tensor.is_contiguous() and type(tensor.data) is Tensor and tensor.numel() > 0


def sampled(tensor: Tensor) -> Tensor:
    """A view of all values of a vector, or of at least one value of each row and column of a matrix."""
    columns = tensor.shape[-1] if tensor.dim() > 0 else 1
    rows = tensor.numel() // columns
    # Steps that are no longer than a row meet all rows; without a common divisor, they meet every column.
    steps = range(min(rows, columns), 0, -1)
    step = next(step for step in steps if math.gcd(step, columns) == 1)
    return tensor.detach().view(-1)[::step]

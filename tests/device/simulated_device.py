"""A simulated accelerator for tests: `simulated_device.cpp` is compiled, loaded and completed by Python functions.

    install("cuda", count=2)             # before torch is imported
    with synchronizations() as found:    # Counter of (kind, line of the package)
        model.to("cuda")(**inputs)

Two kinds of device: "cuda", in a CPU build of PyTorch, and "private", PyTorch's PrivateUse1, without float64.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")
CACHE = Path(__file__).parents[2] / ".cache" / "simulated_device"
TORCH = "2.13"  # other versions may have other interfaces
PACKAGE = "modeling_random_transformer"
GIGABYTE = 2**30

library: Any = None
_counters: list[Counter] = []
_debug_mode = "default"  # of torch.cuda.set_sync_debug_mode


def unavailable() -> str | None:
    """Why the device cannot be compiled here; `None` if it can. Does not import torch."""
    version = importlib.metadata.version("torch")
    if not version.startswith(f"{TORCH}."):
        return f"written for torch {TORCH}, found {version}"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if sys.platform != "linux" or shutil.which("g++") is None or not headers.exists():
        return "requires Linux, g++ and Python's headers"
    return "requires a CPU build of torch" if (torch_folder() / "lib" / "libtorch_cuda.so").exists() else None


def torch_folder() -> Path:
    """The folder of the torch package, found without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent


def build() -> Path:
    """The compiled library, from the cache if source, torch and Python are unchanged. Compiling takes about 40 s."""
    root = torch_folder()
    key = f"{importlib.metadata.version('torch')} {sys.version} {root}".encode() + SOURCE.read_bytes()
    path = CACHE / hashlib.sha256(key).hexdigest()[:16] / f"{SOURCE.stem}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    include = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    libraries = ("c10", "torch", "torch_cpu", "torch_python")
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", "-w", f"-DTORCH_EXTENSION_NAME={SOURCE.stem}"]
    command += [*(f"-I{folder}" for folder in include), str(SOURCE), "-o", str(partial)]
    command += [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", *(f"-l{name}" for name in libraries)]
    subprocess.run(command, check=True)
    partial.replace(path)
    return path


def install(kind: str, count: int) -> None:
    """Load the library, and replace the functions of torch that a CPU build lacks. Once per process."""
    global library
    if "torch" in sys.modules:
        raise ImportError("The device must be installed before torch is imported, which creates its CUDA hooks then.")
    os.environ |= {"SIMULATED_DEVICE": kind, "SIMULATED_DEVICE_COUNT": str(count)}
    path = build()
    ctypes.CDLL(str(path))  # registers the hooks; the module below can only be imported after torch
    import torch

    spec = importlib.util.spec_from_file_location(SOURCE.stem, path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    library.set_callback(_count)
    if kind == "cuda":
        _complete_cuda()
    else:
        torch.utils.rename_privateuse1_backend("sim")
        torch._register_device_module("sim", types.SimpleNamespace(**_functions()))
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


# Counting


@contextlib.contextmanager
def synchronizations() -> Iterator[Counter]:
    """Count what makes the CPU wait for the device, by kind and by the innermost line of the package.

    Kinds: "item", "copy to CPU", "copy to device" (blocking), "pageable" (a non-blocking copy from memory that is not
    pinned), "synchronize", and names of operators whose result has an unknown size, such as "aten::nonzero", which
    boolean indices call.
    """
    counter: Counter = Counter()
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters.remove(counter)


def _set_debug_mode(mode: str) -> None:
    global _debug_mode
    _debug_mode = mode


def _count(kind: str, operator: str) -> None:
    if _debug_mode == "warn" and kind != "pageable" and operator not in ("event", "device"):  # CUDA's exceptions
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
    if not _counters:
        return
    line = _line()
    for counter in _counters:
        counter[kind, line] += 1


def _line() -> str:
    """The innermost line of the package, or of any file that is neither this one nor in torch."""
    innermost, frame = "", sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path:
            innermost = innermost or f"{path.rpartition('/')[2]}:{frame.f_lineno}"
            if f"/{PACKAGE}/" in path:
                return f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return innermost


# What a CPU build of PyTorch lacks


def _index(device: Any = None) -> int:
    import torch

    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    return library.current_device() if index is None or index < 0 else index


class _Stream:
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        import torch

        self.device = torch.device("cuda", library.current_device())

    def synchronize(self) -> None:
        _count("synchronize", "stream")

    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, stream: Any = None) -> None:  # noqa: ARG002
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _count("synchronize", "event")

    def elapsed_time(self, end_event: Any) -> float:
        return (end_event.time - self.time) * 1000


class _Device:
    """`torch.cuda.device`."""

    def __init__(self, device: Any):
        self.index = _index(device)

    def __enter__(self) -> None:
        self.previous = library.current_device()
        library.set_device(self.index)

    def __exit__(self, *_: object) -> None:
        library.set_device(self.previous)


def _functions() -> dict[str, Any]:
    """The functions of a device's module that every kind has."""
    import torch

    generators = tuple(library.default_generator(i) for i in range(library.device_count()))

    def exchange(index: int) -> int:
        previous = library.current_device()
        library.set_device(index)
        return previous

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device": _Device,
        "device_count": library.device_count,
        "current_device": library.current_device,
        "set_device": lambda device: library.set_device(_index(device)),
        "_exchange_device": lambda index: exchange(index),  # two functions, which TorchDynamo distinguishes
        "_maybe_exchange_device": lambda index: exchange(index),
        "synchronize": lambda device=None: _count("synchronize", "device"),  # noqa: ARG005
        "manual_seed": lambda seed: generators[library.current_device()].manual_seed(int(seed)),
        "manual_seed_all": lambda seed: [generator.manual_seed(int(seed)) for generator in generators],
        "get_rng_state": lambda device=None: generators[_index(device)].get_state(),
        "set_rng_state": lambda state, device=None: generators[_index(device)].set_state(state),
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators],
        "set_rng_state_all": lambda states: [g.set_state(s) for g, s in zip(generators, states, strict=True)],
        "initial_seed": generators[0].initial_seed,
        "default_generators": generators,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: library.bytes(),  # noqa: ARG005
        "memory_reserved": lambda device=None: library.bytes(),  # noqa: ARG005
        "max_memory_allocated": lambda device=None: library.peak_bytes(),  # noqa: ARG005
        "max_memory_reserved": lambda device=None: library.peak_bytes(),  # noqa: ARG005
        "reset_peak_memory_stats": lambda device=None: library.reset_peak(),  # noqa: ARG005
        "mem_get_info": lambda device=None: (8 * GIGABYTE, 16 * GIGABYTE),  # noqa: ARG005
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }


def _complete_cuda() -> None:
    import torch

    from tests.helpers import cuda_graphs

    properties = types.SimpleNamespace(
        name="Simulated CUDA",
        major=9,
        minor=0,
        total_memory=16 * GIGABYTE,
        multi_processor_count=132,
        is_integrated=False,
        warp_size=32,
    )
    replacements = _functions() | {
        "_initialized": True,
        "_is_compiled": lambda: False,
        "get_device_name": lambda device=None: properties.name,  # noqa: ARG005
        "get_device_properties": lambda device=None: properties,  # noqa: ARG005
        "get_device_capability": lambda device=None: (properties.major, properties.minor),  # noqa: ARG005
        "is_bf16_supported": lambda including_emulation=True: True,  # noqa: ARG005
        "is_current_stream_capturing": lambda: False,
        "set_sync_debug_mode": _set_debug_mode,
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": _Stream,
        "default_stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),  # noqa: ARG005
        "set_stream": lambda stream: None,  # noqa: ARG005
        "CUDAGraph": cuda_graphs.CUDAGraph,
        "graph": cuda_graphs.graph,
        "graph_pool_handle": lambda: None,
    }
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory):
        for name, value in replacements.items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    torch.version.cuda = "13.0"
    torch._C._cuda_getDeviceCount = library.device_count
    _move_storages()


def _move_storages() -> None:
    """Let storages be copied to the device and on it: `torch.load(map_location=…)` and `Module.share_memory` do so."""
    import torch

    to, clone = torch.storage._to, torch.storage._StorageBase.clone

    def as_bytes(storage: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def new_to(storage: Any, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type == "cpu":
            return to(storage, device, non_blocking)
        return as_bytes(storage).to(device, non_blocking=non_blocking).untyped_storage()

    def new_clone(storage: Any) -> Any:
        return clone(storage) if storage.device.type == "cpu" else as_bytes(storage).clone().untyped_storage()

    torch.storage._to, torch.storage._StorageBase.clone = new_to, new_clone

"""Sizes of the workloads: for a GPU, and for a smoke test of the code on a CPU."""

from dataclasses import dataclass, field
from typing import Any

from ..models import SIZES, Size

LOW_RESOURCE = {  # examples/recipes/low_resource.yaml
    "encoder_layers": 3,
    "decoder_layers": 3,
    "d_model": 256,
    "d_ff": 1024,
    "dropout": 0.2,
    "norm_order": "pre",
}


@dataclass(frozen=True)
class Settings:
    """Workloads of all parts; the defaults are those for a GPU."""

    sizes: dict[str, Size] = field(default_factory=lambda: {name: SIZES[name] for name in ("base", "big")})
    checked_size: Size = SIZES["tiny"]  # size of the models whose outputs are compared with a reference
    presets: dict[str, dict[str, Any]] = field(default_factory=lambda: {"base": {}, "big": {}})  # presets and overrides
    low_resource: dict[str, Any] = field(default_factory=lambda: dict(LOW_RESOURCE))  # overrides of `tiny`
    generation_dtypes: tuple[str, ...] = ("bf16", "fp32")
    training_dtypes: tuple[str, ...] = ("bf16", "fp32")
    utilization_dtype: str = "bf16"
    generation_batches: tuple[int, ...] = (1, 8, 32)
    new_tokens: int = 64  # per source
    captured_sizes: dict[str, Size] = field(default_factory=lambda: {name: SIZES[name] for name in ("base", "tiny")})
    captured_batches: tuple[int, ...] = (1, 8, 32, 128)
    training_batch: int = 512  # pairs of 32 + 32 tokens
    sentence_pairs: int = 200_000  # pairs whose lengths are drawn for the paper's recipe
    batch_tokens: int = 25_000  # per side (paper 5.1)
    recipe_batches: int = 20
    utilization_pairs: int = 256  # pairs of 48 + 48 tokens
    matmul_width: int = 8192  # width of the matrix product that defines the peak
    check_steps: int = 20
    trainer_steps: int = 150  # a third of them, in which shapes are compiled, are not timed
    pairs: int = 5  # paired measurements
    backend: str = "inductor"  # backend of torch.compile
    processes: int | None = None  # `None`: one per device
    start_method: str = "spawn"  # CUDA cannot be used in a process that was forked
    threads: int | None = None  # threads of PyTorch; `None` for its default
    test_files: tuple[str, ...] = ("configuration", "tokenizer", "heads", "model")
    test_options: tuple[str, ...] = ("--numprocesses=4",)


SMALL = Size(d_model=32, d_ff=64, layers=1, heads=2)
SMALL_PRESET = {"d_model": 32, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
SMOKE = Settings(
    sizes={"small": SMALL},
    checked_size=SMALL,
    presets={"tiny": SMALL_PRESET | {"vocab_size": 10_000}},
    low_resource=SMALL_PRESET,
    generation_dtypes=("fp32",),
    training_dtypes=("fp32",),
    utilization_dtype="fp32",
    generation_batches=(1,),
    new_tokens=8,
    captured_sizes={"small": SMALL},
    captured_batches=(1, 3),
    training_batch=2,
    sentence_pairs=200,
    batch_tokens=200,
    recipe_batches=2,
    utilization_pairs=2,
    matmul_width=256,
    check_steps=3,
    trainer_steps=3,
    pairs=1,
    backend="eager",
    processes=2,
    start_method="forkserver",  # the server imports the libraries once
    threads=1,
    test_files=("model",),
    test_options=("-k", "test_model_outputs_equivalence or test_greedy_generate_dict_outputs_use_cache"),
)

"""The Accelerate configurations. That of FSDP2 trains in tests/extras/sharding/test_shards.py."""

from pathlib import Path

from accelerate.commands.config.config_args import load_config_from_file

FOLDER = Path(__file__).parents[2] / "examples" / "accelerate"
KINDS = {
    "one_gpu": ("NO", 1),
    "eight_gpus": ("MULTI_GPU", 8),
    "fsdp2": ("FSDP", 16),
    "zero2": ("DEEPSPEED", 8),
    "zero3": ("DEEPSPEED", 8),
}


def test_configurations_load():
    paths = {path.stem: str(path) for path in FOLDER.glob("*.yaml")}
    configs = {name: load_config_from_file(path) for name, path in paths.items()}
    kinds = {name: (config.distributed_type.value, config.num_processes) for name, config in configs.items()}
    assert kinds == KINDS
    assert {config.mixed_precision for config in configs.values()} == {"bf16"}
    assert [configs[f"zero{stage}"].deepspeed_config["zero_stage"] for stage in (2, 3)] == [2, 3]

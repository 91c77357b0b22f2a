"""The Accelerate configurations: they load, and refer to existing classes."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from modeling_random_transformer import modeling_random_transformer as modeling

FOLDER = Path(__file__).parents[2] / "examples" / "accelerate"
KINDS = {
    "one_gpu": ("NO", 1),
    "eight_gpus": ("MULTI_GPU", 8),
    "fsdp2": ("FSDP", 16),
    "zero2": ("DEEPSPEED", 8),
    "zero3": ("DEEPSPEED", 8),
}


def test_every_configuration_is_tested():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_configuration_loads(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert (config.distributed_type.value, config.num_processes, config.mixed_precision) == (*KINDS[name], "bf16")


def test_fsdp2_wraps_layers_and_saves_full_weights():
    options = load_config_from_file(str(FOLDER / "fsdp2.yaml")).fsdp_config
    wrapped = options["fsdp_transformer_layer_cls_to_wrap"].split(",")
    assert sorted(wrapped) == sorted(modeling.RandomTransformerPreTrainedModel._no_split_modules)
    assert (options["fsdp_version"], options["fsdp_state_dict_type"]) == (2, "FULL_STATE_DICT")


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_stage(stage):
    assert load_config_from_file(str(FOLDER / f"zero{stage}.yaml")).deepspeed_config["zero_stage"] == stage

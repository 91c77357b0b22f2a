"""The content of a recipe: arguments that others override, and the choice of bfloat16."""

import pytest
import torch

from modeling_random_transformer.stages.recipe_file import choose_precision, not_overridden, training_arguments
from tests.helpers.training import arguments, flags, parse_command, write_corpus


def test_arguments_of_a_call_override_those_of_a_recipe(tmp_path):
    write_corpus(tmp_path)
    recipe = {"learning_rate": "1e-4", "vocab_size": 300, "seed": 3}
    given = arguments(tmp_path, "out", vocab_size=None, tokenizer="saved", seed=5)
    given = {name: value for name, value in given.items() if value is not None and name != "learning_rate"}
    _, model, args = training_arguments(recipe, given)
    assert (args.learning_rate, args.seed, model.tokenizer, model.vocab_size) == (1e-4, 5, "saved", None)
    assert not_overridden({"tokenizer": "a", "seed": 1}, {"vocab_size": 300}) == {"seed": 1}


@pytest.mark.parametrize(
    ("capability", "gpu", "overrides", "expected"),
    [
        ("avx512_bf16", None, {}, {"bf16": True, "use_cpu": True}),
        ("bf16", None, {}, {"bf16": True, "use_cpu": True}),
        (None, None, {}, {"bf16": False, "use_cpu": True}),
        (None, True, {}, {"bf16": True, "use_cpu": False}),
        ("amx_bf16", False, {}, {"bf16": False, "use_cpu": False}),
        (None, True, {"use_cpu": True}, {"bf16": False, "use_cpu": True}),
    ],
)
def test_bfloat16_is_chosen_by_the_instructions_of_the_device(
    capability, gpu, overrides, expected, monkeypatch, caplog
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, str(capability): True})
    assert choose_precision({"bf16": "auto"}, overrides) == expected
    has = "has" if expected["bf16"] else "has no"
    assert caplog.messages == [f"bf16 is {expected['bf16']}: the device {has} bfloat16 instructions."]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="only a machine without an accelerator requires use_cpu")
def test_bfloat16_on_a_cpu_needs_no_other_argument(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text("bf16: auto")
    _, _, args, _ = parse_command([str(tmp_path / "recipe.yaml"), *flags(tmp_path, "out", use_cpu=None)])
    assert args.bf16
    assert args.device.type == "cpu"

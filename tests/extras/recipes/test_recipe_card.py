"""The model card of a recipe."""

import pytest

from modeling_random_transformer.extras.recipes.recipe_card import set_origin

CARD = """---
library_name: transformers
---

# small

The stage small. Use it:

```sh
random-transformer translate --model small "a text"
random-transformer translate --model small "another text"
```

## Training

```sh
random-transformer train \\
    --output_dir small
```

```sh
ls small
```
"""


@pytest.fixture
def card(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text(CARD, encoding="utf-8")
    return tmp_path / "out" / "README.md"


def command(content):
    return content.partition("## Training\n\n```sh\n")[2].partition("\n```\n")[0]


def test_only_the_name_its_first_use_and_the_command_change(card):
    set_origin(card, "small", "recipe.yaml", [["--seed", "3"], ["--special_tokens", "<bt>", "a b"]])
    content = card.read_text(encoding="utf-8")
    expected = CARD.replace("\n# small\n", "\n# out\n").replace("--model small", "--model out", 1)
    new = "random-transformer train \\\n    recipe.yaml \\\n    --seed 3 \\\n    --special_tokens '<bt>' 'a b'"
    assert content == expected.replace(command(CARD), new)


@pytest.mark.parametrize("flag", ["--hub_token", "--hub_model_id", "--push_to_hub", "--logging_steps"])
def test_flags_without_an_effect_on_the_result_are_left_out(flag, card):
    set_origin(card, "small", "recipe.yaml", [[flag, "secret"], ["--output_dir", "out"]])
    content = card.read_text(encoding="utf-8")
    assert command(content).endswith("recipe.yaml \\\n    --output_dir out")
    assert flag not in content
    assert "secret" not in content


def test_paths_are_those_from_the_working_directory(card, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "out")
    flags = [["--source_file", f"{tmp_path}/out/data/train.a"], ["--target_file", f"{tmp_path}/train.b"]]
    set_origin(card, "small", f"{tmp_path}/recipe.yaml", flags)
    shown = ["recipe.yaml", "--source_file data/train.a", "--target_file train.b"]
    assert command(card.read_text(encoding="utf-8")).split(" \\\n    ")[1:] == shown

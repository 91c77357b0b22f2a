"""The recipes of published experiments, on small local datasets with the schema of those on the Hub."""

import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.dry_run import write_dataset
from modeling_random_transformer import cli
from tests.helpers.corpora import PAIRS
from tests.helpers.training import parse_command

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"
HUB = {path.stem: path for path in sorted(FOLDER.glob("*.yaml")) if "dataset_name" in path.read_text()}
SMALL = {
    "config_overrides": "d_model=16,d_ff=16,num_heads=2,encoder_layers=1,decoder_layers=1",
    "vocab_size": 300,
    "max_tokens_per_batch": 600,
    "gradient_accumulation_steps": 2,
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 4,
    "warmup_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "preprocessing_num_workers": 1,
}


def flags_of(name: str, folder: Path, **changes) -> list[str]:
    recipe = yaml.safe_load(HUB[name].read_text())
    splits = {"train": [("", ""), *PAIRS * 10], "validation": PAIRS[:2], "test": PAIRS[:2]}
    write_dataset(folder / "dataset", recipe, splits)
    options = {"dataset_name": folder / "dataset", "output_dir": folder / "out", **SMALL, **changes}
    return [str(HUB[name]), *(f"--{option}={value}" for option, value in options.items())]


@pytest.mark.parametrize("name", HUB)
def test_recipe_trains_and_scores(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train"])
    assert cli.main(["train", *flags_of(name, tmp_path)]) == 0
    assert "test bleu" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "steps", "vocab_size", "average_last"),
    [
        ("wmt14-en-de-base", 100_000, 37_000, 5),
        ("wmt14-en-de-big", 300_000, 37_000, 20),
        ("wmt14-en-fr-big", 300_000, 32_000, 20),
        ("wmt17-en-de", 100_000, 32_000, 5),
    ],
)
def test_figures_of_the_paper(name, steps, vocab_size, average_last, tmp_path):
    flags = [str(HUB[name]), "--bf16=false", "--use_cpu", f"--output_dir={tmp_path}"]
    _, model, args, _ = parse_command(flags)
    assert (args.max_steps, model.vocab_size, args.average_last) == (steps, vocab_size, average_last)
    assert args.max_tokens_per_batch * args.gradient_accumulation_steps == 50_000
    assert (args.warmup_steps, args.num_beams, args.length_penalty, args.seed) == (4000, 4, 0.6, 1)
    assert args.learning_rate is None  # that of the paper
    config = model.config(vocab_size)
    assert config.dropout == (0.3 if name == "wmt14-en-de-big" else 0.1)

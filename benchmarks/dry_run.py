"""Estimates of `train --dry_run` against complete runs: each recipe, with a small model and generated sentences.

An estimate is made before and after the run, since the load of the machine may change.
"""

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, Features, Translation

from modeling_random_transformer.commands.train import parse_arguments
from modeling_random_transformer.extras.estimation import dry_run
from modeling_random_transformer.training.run import train_translation
from modeling_random_transformer.training.training_arguments import TRAINING_ARGUMENTS
from tutorials.sample_data import sample

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
SEED, SPLITS = 1, {"train": 6000, "validation": 50, "test": 50}
SMALL = {
    "config_overrides": "d_model=256,d_ff=1024,num_heads=4,encoder_layers=3,decoder_layers=3",
    "vocab_size": 2000,
    "max_tokens_per_batch": 1024,
    "gradient_accumulation_steps": 2,
    "average_last": 1,
    "eval_strategy": "no",
    "save_steps": 100_000,
    "bf16": False,
    "use_cpu": True,
    "preprocessing_num_workers": 1,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipes", nargs="+", default=sorted(names()), choices=sorted(names()), metavar="NAME")
    parser.add_argument("--steps", type=int, default=200, help="steps of the complete run")


def names() -> list[str]:
    """The recipes with a dataset of the Hub."""
    return [path.stem for path in RECIPES.glob("*.yaml") if "dataset_name" in yaml.safe_load(path.read_text())]


def run(options: argparse.Namespace) -> None:
    print(f"{'recipe':20} {'seconds of the run':>18} {'estimate before':>16} {'difference':>11} {'after':>7}")
    for name in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            before, seconds, after = measure(name, Path(folder), options.steps)
        differences = f"{before / seconds - 1:>11.0%} {after / seconds - 1:>7.0%}"
        print(f"{name:20} {seconds:>18.1f} {before:>16.1f} {differences}", flush=True)


def measure(name: str, folder: Path, steps: int) -> tuple[float, float, float]:
    """The estimated seconds before the run, those of the run, and the estimated seconds after it."""
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    pairs = iter(sample(sum(SPLITS.values()), SEED))
    write_dataset(folder / "dataset", recipe, {split: list(islice(pairs, size)) for split, size in SPLITS.items()})
    changes = {"dataset_name": folder / "dataset", "output_dir": folder / "run", "max_steps": steps, **SMALL}
    flags = [str(RECIPES / f"{name}.yaml"), *(f"--{option}={value}" for option, value in changes.items())]

    def arguments() -> tuple[Any, ...]:
        return parse_arguments(flags, TRAINING_ARGUMENTS, "train", None)

    def estimate() -> float:
        return dry_run(*arguments()).hours * 3600

    before = estimate()
    return before, train_translation(*arguments()).seconds, estimate()


def write_dataset(folder: Path, recipe: dict[str, Any], splits: dict[str, list[tuple[str, str]]]) -> None:
    """Write pairs as a dataset with the schema of the recipe's: a column `translation`, and its configuration."""
    languages = [recipe["source_key"], recipe["target_key"]]
    features = Features({"translation": Translation(languages=languages)})
    config = recipe.get("dataset_config_name", "data")
    files = []
    (folder / config).mkdir(parents=True)
    for split, pairs in splits.items():
        rows = [{"translation": dict(zip(languages, pair, strict=True))} for pair in pairs]
        Dataset.from_list(rows, features=features).to_parquet(folder / config / f"{split}.parquet")
        files.append({"split": split, "path": f"{config}/{split}.parquet"})
    configs = yaml.safe_dump({"configs": [{"config_name": config, "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{configs}---\n")

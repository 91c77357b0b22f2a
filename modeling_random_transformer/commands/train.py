"""Train or fine-tune a translation model.

    random-transformer train --source_file train.en --target_file train.de --output_dir outputs/en-de

Flags may follow the path of a YAML or JSON recipe. For one with stages, such as examples/recipes/low_resource.yaml,
--help also lists --parent, --monolingual_source, --monolingual_target, --student and --remove_stages.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers.hf_argparser import HfArg

from ..base.errors import reraise_as_value_error
from ..stages.recipes import Recipe, RecipeArguments, table
from ..training.arguments import DataArguments, ModelArguments, to_flags
from ..training.estimation import dry_run
from ..training.run import train_translation
from ..training.training_arguments import UNSUPPORTED, TranslationTrainingArguments
from .command_line import Parser

logger = logging.getLogger(__name__)


def run(program: str, argv: Sequence[str]) -> None:
    """Parse the arguments, train and print the scores; or measure a few steps and print the estimate."""
    recipe, flags = read_arguments(argv)
    if (stages := recipe.pop("stages", None)) is not None:
        run_stages(program, stages, recipe, flags, argv)
        return
    data_args, model_args, args, command = parse_flags(recipe, flags, ARGUMENTS, program, __doc__)
    if command.dry_run:
        estimate = dry_run(data_args, model_args, args)
        if args.process_index == 0:
            print(estimate)
        return
    result = train_translation(data_args, model_args, args)
    if args.process_index == 0:
        for split, metrics in result.scores.items():
            for name, values in metrics.items():
                print(f"{split} {name} {values['score']:.2f} {values['signature']}")
        print(f"Saved the model to {result.folder}.")


def run_stages(program: str, stages: Any, arguments: dict[str, Any], flags: Sequence[str], argv: Sequence[str]) -> None:
    """Run the stages of a recipe and print their table, or print an estimate of each."""

    def parse(options: Mapping[str, Any]) -> tuple[Any, ...]:
        return parse_flags({**arguments, **options}, flags, RECIPE, program, __doc__)

    if not isinstance(stages, list):
        raise ValueError(f"stages must be a list of mappings, got {type(stages).__name__}.")
    _, _, args, command, options = parse({})
    recipe = Recipe(stages, lambda own: parse(own)[:3], options, argv)
    text = recipe.estimate() if command.dry_run else table(recipe.run())
    if args.process_index == 0:
        print(text)
        if not command.dry_run:
            print(f"Saved the model to {recipe.folder}.")


@dataclass
class CommandArguments:
    """What to do with the run."""

    dry_run: bool = HfArg(default=False, help="Measure 20 steps on 1,000 pairs and print an estimate; save nothing.")


# CPU capabilities, as PyTorch names them, with which bfloat16 is faster than float32
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
REASONS = {True: "the device has bfloat16 instructions.", False: "the device has no bfloat16 instructions."}
ARGUMENTS = (DataArguments, ModelArguments, TranslationTrainingArguments, CommandArguments)
HIDDEN = (*UNSUPPORTED, "do_train", "do_eval")  # arguments without effect, which are not in the help
ALTERNATIVES = {"__tokenizer": "__vocab_size", "__vocab_size": "__tokenizer"}  # a flag replaces both of a recipe
RECIPE = (*ARGUMENTS, RecipeArguments)


def parse_flags(
    recipe: Mapping[str, Any], flags: Sequence[str], classes: Sequence[type], program: str, description: str | None
) -> tuple[Any, ...]:
    """Parse the arguments of a recipe and flags, which override them.

    Args:
        recipe: the arguments by name.
        flags: the flags; see `read_arguments`.
        classes: the dataclasses of the arguments.
        program: the name in usage and errors.
        description: the beginning of the help.

    Returns:
        An object of each class.

    Raises:
        ValueError: an argument or its value is invalid.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    parser = Parser(program, description, classes, hidden=HIDDEN)
    names = {flag.partition("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")}
    names |= {ALTERNATIVES[name] for name in names & ALTERNATIVES.keys()}
    given = [*chain.from_iterable(own for own in to_flags(recipe) if own[0].replace("-", "_") not in names), *flags]
    *parsed, unknown = parser.parse_args_into_dataclasses(given, return_remaining_strings=True)
    if unknown:
        parser.error(f"arguments must be among those of --help, got {' '.join(unknown)}.")
    return tuple(parsed)


def read_arguments(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The arguments in the YAML or JSON recipe, if the first argument is its path, and the flags.

    `bf16: auto` in a recipe becomes a boolean: whether the device computes in bfloat16. transformers requires `use_cpu`
    with it on a machine without an accelerator.

    Raises:
        ValueError: the recipe is missing or is not a mapping.
    """
    if not argv or Path(argv[0]).suffix not in (".yaml", ".yml", ".json"):
        return {}, list(argv)
    recipe, flags = read_recipe(Path(argv[0])), list(argv[1:])
    if recipe.get("bf16") == "auto":
        on_cpu = bool(recipe.get("use_cpu")) or "--use_cpu" in flags or not torch.accelerator.is_available()
        recipe |= {"bf16": has_bfloat16(on_cpu), "use_cpu": on_cpu}
        if "--bf16" not in flags:
            logger.warning("bf16 is %s: %s", recipe["bf16"], REASONS[recipe["bf16"]])
    return recipe, flags


def has_bfloat16(on_cpu: bool) -> bool:
    """Whether the CPU, or the accelerator, has instructions for bfloat16; emulation is slow."""
    if on_cpu:
        return any(torch.cpu.get_capabilities().get(name) for name in BFLOAT16)
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def read_recipe(path: Path) -> dict[str, Any]:
    """The arguments in a YAML or JSON file (JSON is YAML).

    Raises:
        ValueError: the file is missing or damaged.
    """
    import yaml

    with reraise_as_value_error(f"the recipe {path} must be YAML or JSON"):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must map argument names to values, got {type(recipe).__name__}.")
    return recipe

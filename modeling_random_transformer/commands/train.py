"""Train or fine-tune a translation model.

    random-transformer train --source_file train.en --target_file train.de --output_dir outputs/en-de \\
        --vocab_size 6000 --max_steps 3000 --warmup_steps 600

These settings are suitable for a laptop. The defaults are the paper's 100,000 steps, which take days on a CPU.

Flags may follow the path of a YAML or JSON recipe. For a recipe with stages, such as
examples/recipes/low_resource.yaml, --help also lists --parent, --monolingual_source, --monolingual_target, --dictionary
and --student.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback

from ..extras.parser import Parser, all_from_values
from ..training.run import train_translation
from ..training.training_arguments import TRAINING_ARGUMENTS
from .command_line import resumable

# The arguments in the help, by heading. DDP, FSDP and DeepSpeed are configured by `accelerate launch`.
GROUPS = {
    "main arguments": """source_file target_file validation_source_file validation_target_file output_dir
        vocab_size preset max_steps max_tokens_per_batch bf16""",
    "other formats of the corpus, and test sets": """train_file validation_file test_file test_source_file
        test_target_file source_key target_key dataset_name dataset_config_name dataset_revision train_split
        validation_split test_split""",
    "several corpora or languages": """train_weights source_lang target_lang validation_source_lang
        validation_target_lang test_source_lang test_target_lang""",
    "large or noisy corpora": """streaming buffer_pairs on_invalid max_source_length max_target_length max_length_ratio
        preprocessing_num_workers dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory""",
    "another tokenizer or architecture": "tokenizer special_tokens config_overrides",
    "a saved model to fine-tune": """model_name_or_path freeze lora_rank lora_alpha lora_dropout
        lora_target_modules""",
    "optimization, by default that of the paper": """num_train_epochs learning_rate lr_scheduler_type
        lr_scheduler_kwargs warmup_steps optim adam_beta1 adam_beta2 adam_epsilon weight_decay max_grad_norm
        gradient_accumulation_steps seed data_seed""",
    "small corpora: regularization and Muon": "label_smoothing_factor bpe_dropout augment r_drop_alpha muon",
    "evaluation, during training and of test sets": """eval_strategy eval_steps
        per_device_eval_batch_size predict_with_generate prediction_loss_only num_beams length_penalty
        generation_max_length bleu_tokenize engine load_best_model_at_end metric_for_best_model
        early_stopping_patience""",
    "checkpoints and their average": """save_strategy save_steps save_total_limit save_only_model
        average_last""",
    "speed and memory of a device": """fp16 tf32 cuda_graphs torch_compile gradient_checkpointing
        activation_checkpointing use_cpu""",
    "several devices": "tp_size fsdp_size",
    "logs, and upload to the Hub": """logging_strategy logging_steps disable_tqdm report_to run_name
        push_to_hub hub_license hub_model_id hub_strategy hub_token hub_private_repo""",
}
ESTIMATE = {"an estimate of the run": "dry_run"}
RECIPE_GROUP = {"recipes with stages": "parent monolingual_source monolingual_target dictionary student"}


@dataclass
class CommandArguments:
    """What to do with the run.

    Args:
        dry_run: Measure 20 steps on 1,000 pairs and print an estimate; save nothing.
    """

    dry_run: bool = False


def run(program: str, argv: Sequence[str]) -> None:
    """Train and print the scores; or measure a few steps and print the estimate."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)  # warnings about arguments have no prefix
    hide_warnings_of_libraries()
    path, recipe, flags = split_recipe(argv)
    if path is not None and "stages" in recipe:
        run_stages(program, path, recipe, flags)
        return
    parser = Parser(program, __doc__, (*TRAINING_ARGUMENTS, CommandArguments), {**GROUPS, **ESTIMATE})
    data_args, model_args, args, command = with_recipe(recipe, parser, flags)
    if command.dry_run:
        from ..extras.estimation import dry_run  # a training run does not need it

        estimate = dry_run(data_args, model_args, args)
        if args.process_index == 0:
            print(estimate)
        return
    with resumable():
        result = train_translation(data_args, model_args, args)
    if args.process_index == 0:
        for split, metrics in result.scores.items():
            for name, values in metrics.items():
                print(f"{split} {name} {values['score']:.2f} {values['signature']}")
        print(f"Saved the model to {result.folder}.")


def hide_warnings_of_libraries() -> None:
    """Hide warnings that ask for a change of code, or for an option that this package does not need."""
    # With early stopping, the model is the average of the last checkpoints.
    callbacks = logging.getLogger(EarlyStoppingCallback.__module__)
    callbacks.addFilter(lambda record: "without load_best_model_at_end" not in record.getMessage())
    # PEFT reads the old name of `is_activation_checkpointing`.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)


def run_stages(program: str, path: Path, recipe: dict[str, Any], flags: Sequence[str]) -> None:
    """Run the stages of a recipe and print their table, or an estimate of each."""
    from ..extras.recipes import RecipeArguments, RecipePlan, RecipeRun, stages_table  # flags do not need it

    classes = (*TRAINING_ARGUMENTS, CommandArguments, RecipeArguments)
    arguments = Parser(program, __doc__, classes, {**GROUPS, **RECIPE_GROUP, **ESTIMATE}).values(flags)
    is_dry = arguments.pop("dry_run", False)
    plan = RecipePlan(path, recipe, **arguments)
    if is_dry:
        text = plan.estimate()
    else:
        with resumable():
            rows = RecipeRun(plan).run()
        text = f"{stages_table(rows)}\nSaved the model to {plan.folder}."
    if plan.args.process_index == 0:
        print(text)


def parse_arguments(
    argv: Sequence[str],
    classes: Sequence[type],
    program: str,
    description: str | None,
    groups: Mapping[str, str] = GROUPS,
) -> tuple[Any, ...]:
    """Parse flags, which may follow the path of a recipe without stages.

    Args:
        argv: the path, if any, and the flags.
        classes: the dataclasses of the arguments.
        program: the name in usage and errors.
        description: the beginning of the help.
        groups: the arguments in the help, see `Parser`.

    Returns:
        An object of each class.

    Raises:
        ValueError: an argument or its value is invalid.
    """
    _, recipe, flags = split_recipe(argv)
    return with_recipe(recipe, Parser(program, description, classes, groups), flags)


def split_recipe(argv: Sequence[str]) -> tuple[Path | None, dict[str, Any], Sequence[str]]:
    """The path and the arguments of a recipe, if its path is the first of `argv`, and the flags.

    Raises:
        ValueError: the path is not the first, where a flag would take it as a value.
    """
    for argument in argv[1:]:
        if argument.endswith((".yaml", ".yml")):
            raise ValueError(f"a recipe must be the first argument, got {argument} after {argv[0]}.")
    if not argv or Path(argv[0]).suffix not in (".yaml", ".yml", ".json"):
        return None, {}, argv
    from ..extras.recipes import read_recipe  # flags do not need it

    path = Path(argv[0])
    return path, read_recipe(path), argv[1:]


def with_recipe(recipe: dict[str, Any], parser: Parser, flags: Sequence[str]) -> tuple[Any, ...]:
    """An object of each class of the parser, from flags and the arguments of a recipe that they do not override."""
    values = parser.values(flags)
    if not recipe:
        return all_from_values(parser.classes, values)
    from ..extras.recipes import training_arguments  # flags do not need it

    return training_arguments(recipe, values, parser.classes)

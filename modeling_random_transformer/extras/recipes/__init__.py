"""Recipes: arguments of `train` in a file, and lists of trainings, back-translations and distillations.

    run_recipe("examples/recipes/low_resource.yaml", source_file="corpus.en", target_file="corpus.sw")

Requires the extra `train`.
"""

from .recipe_file import RecipeArguments, read_recipe, training_arguments
from .recipe_plan import RecipePlan
from .recipes import RecipeRun, run_recipe, stages_table

__all__ = [
    "RecipeArguments",
    "RecipePlan",
    "RecipeRun",
    "read_recipe",
    "run_recipe",
    "stages_table",
    "training_arguments",
]

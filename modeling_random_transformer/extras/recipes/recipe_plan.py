"""The arguments of a recipe with stages, and those of each stage. All are checked before the first stage starts."""

import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ...base import DTYPES
from ...base.distributed import call_on_main_process
from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...base.flags import from_values
from ...base.markdown import markdown_table
from ...base.streams import STANDARD_STREAM
from ...configuration_random_transformer import RandomTransformerConfig
from ...data.sources import ParallelText
from ...inference.translation import TranslationOptions, translate
from ...inputs_random_transformer import check_choice, drop_none
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...stages.back_translation import BackTranslationOptions
from ...stages.training_set import DistillationArguments
from ...tokenization_random_transformer import RandomTransformerTokenizer
from ...training.arguments import (
    DROPOUTS,
    FILE_ARGUMENTS,
    LANGUAGE_ARGUMENTS,
    DataArguments,
    ModelArguments,
    parse_overrides,
)
from ...training.checks import check_arguments, check_bleu_tokenize
from ...training.run_record import fingerprint, folder_digest
from ...training.training_arguments import TRAINING_ARGUMENTS, TranslationTrainingArguments
from ..estimation.measurement import GIB, dry_run
from ..parser import all_from_values
from .device_choices import Values
from .recipe_data import sets_of
from .recipe_file import (
    BACK_TRANSLATE,
    CONDITIONS,
    DISTILL,
    MONOLINGUAL_TEXTS,
    TRAIN,
    RecipeArguments,
    StageArguments,
    check_names,
    not_overridden,
    parse_values,
    recipe_values,
    stages_to_run,
)

FOLDER = "stages"
VOCABULARY = 2**16  # of the model that checks the options of a search: larger than most, for their token ids
OF_CALIBRATED_MODELS = ("min_confidence", "keep_source")  # options of a search
# Arguments that a stage must not have
SET_BY_RECIPE = {
    *FILE_ARGUMENTS,
    *LANGUAGE_ARGUMENTS,
    *CONDITIONS,
    *MONOLINGUAL_TEXTS,
    "dictionary",
    "dataset_name",
    "output_dir",
    "push_to_hub",
    "source_text",
    "teacher",
    "train_weights",
}


class RecipePlan:
    """The arguments of a recipe with stages.

    Args:
        path: the YAML or JSON file.
        recipe: its content, see `read_recipe`, with stages.
        **arguments: see `run_recipe`.

    Raises:
        ValueError: a stage or an argument is invalid.
    """

    def __init__(self, path: StrPath, recipe: Values, **arguments: Any):
        classes = (*TRAINING_ARGUMENTS, RecipeArguments)
        check_names(arguments, classes)
        values = dict(recipe)
        stages = values.pop("stages")
        self.recipe_path = str(path)
        self.overrides = arguments
        self.values = recipe_values(values, arguments, classes)
        self.arguments = from_values(RecipeArguments, self.values | arguments)
        self.stages = stages_to_run(stages, self.arguments)
        self.options = {stage.name: options_of_stage(stage) for stage in self.stages}
        self.data, self.model, self.args = self.arguments_with({})
        self.folder = Path(self.args.output_dir)
        self.check_sizes()
        self.check()

    def check(self) -> None:
        """Check the arguments of all stages before the first one starts."""
        values = vars(self.data) | vars(self.args)
        for name in ("train_weights", "streaming", "push_to_hub"):
            if values[name]:
                raise ValueError(f"{name} must be unset for a recipe with stages, got {values[name]}.")
        for name in LANGUAGE_ARGUMENTS:
            codes = values[name] or ()
            if len({*codes}) > 1:  # corpora become one
                raise ValueError(f"{name} must be one language for a recipe with stages, got {', '.join(codes)}.")
        for stage in self.stages:
            self.arguments_of(stage)
            if stage.kind != BACK_TRANSLATE and not call_on_main_process(self.path(stage.name).exists):
                check_arguments(*self.new_training(stage))  # a stage that has begun checks them itself
            if stage.kind == DISTILL:
                self.teacher_of(stage, self.path(str(stage.uses)), [STANDARD_STREAM])
                self.check_languages(stage)

    def check_languages(self, stage: StageArguments) -> None:
        """Check that the set on which a distillation compares its models has the languages of the training set."""
        sets = sets_of(self.data)
        for corpus in sets.get("test") or sets.get("validation") or ():
            if corpus.languages != sets["train"][0].languages:
                raise ValueError(
                    f"source_lang and target_lang must be those of the test set for the stage {stage.name}, "
                    f"got {self.data.source_lang} and {self.data.target_lang}."
                )

    def check_sizes(self) -> None:
        """Raise a `ValueError` if the call sets sizes of the model, but all models have those of a parent."""
        students = [stage for stage in self.stages if stage.kind == DISTILL and stage.starts_from is None]
        if self.arguments.parent is None or students:
            return
        sizes = parse_overrides(self.overrides.get("config_overrides") or "").keys() - {*DROPOUTS}
        if self.overrides.get("preset"):
            sizes.add("preset")
        if sizes:
            raise ValueError(
                f"config_overrides must be of {', '.join(DROPOUTS)}, and preset must be unset, with parent, whose "
                f"architecture the models have, got {', '.join(sorted(sizes))}."
            )

    def path(self, name: str) -> Path:
        """The folder of a stage."""
        return self.folder / FOLDER / name

    def texts_of(self, stage: StageArguments) -> dict[str, str]:
        """The monolingual text that a stage translates, by argument."""
        names = [name for name, kind in MONOLINGUAL_TEXTS.items() if kind == stage.kind]
        return drop_none(**{name: getattr(self.arguments, name) for name in names})

    @cached_property
    def dictionary(self) -> ParallelText | None:
        """The entries of the dictionary, in the languages of the corpus."""
        if self.arguments.dictionary is None:
            return None
        corpus = self.data.corpora("train")[0]  # all have the same languages
        return ParallelText(Path(self.arguments.dictionary), languages=corpus.languages)

    def arguments_with(self, options: Values) -> tuple[Any, ...]:
        """The arguments of the recipe with these options of a stage."""
        values = not_overridden({**self.values, **options}, self.overrides) | self.overrides
        return all_from_values(TRAINING_ARGUMENTS, copy.deepcopy(values))

    def arguments_of(self, stage: StageArguments) -> tuple[DataArguments, ModelArguments, TranslationTrainingArguments]:
        """The arguments of a stage, with the sets of the recipe."""
        options = {} if stage.kind == BACK_TRANSLATE else self.options[stage.name]
        data_args, model_args, args = self.arguments_with(options)
        args.output_dir = str(self.path(stage.name))
        rates = ",".join(f"{name}={rate}" for name, rate in model_args.overrides.items() if name in DROPOUTS)
        if stage.starts_from is not None:
            # The stage's own arguments of the model are checked; those of the recipe were for the new model.
            values = {"config_overrides": rates, **not_overridden(options, self.overrides)}
            values["model_name_or_path"] = str(self.path(stage.starts_from))
            model_args = from_values(ModelArguments, values)
        elif self.arguments.parent is not None and stage.kind == TRAIN:  # a student has other sizes
            model_args = replace(
                model_args,
                preset=None,
                model_name_or_path=self.arguments.parent,
                config_overrides=rates,
            )
        return data_args, model_args, args

    def new_training(self, stage: StageArguments) -> tuple[Any, ...]:
        """The arguments of a stage for a new model without evaluation: models and sets of the recipe may not exist."""
        data_args, model_args, args = self.arguments_of(replace(stage, starts_from=None))
        args = args.without_evaluation()
        args.length_penalty = type(args).length_penalty  # without a validation set, `auto` is not possible
        check_bleu_tokenize(args)
        args.bleu_tokenize = args.engine = args.generation_max_length = None  # nor do these have an effect
        return data_args, model_args, args

    def teacher_of(self, stage: StageArguments, folder: Path, texts: list[str]) -> DistillationArguments:
        """The arguments of the teacher of a stage, and of the texts that it translates."""
        values = {**self.options[stage.name], "teacher": [str(folder)], "source_text": texts}
        return from_values(DistillationArguments, values)

    def inputs_of_data(self) -> Values:
        """The inputs that determine the sets, and the initial models of the recipe."""
        inputs: Values = {
            "on_invalid": self.data.on_invalid,
            "stages": [stage.name for stage in self.stages],
        }
        for split, corpora in sets_of(self.data).items():
            inputs[split] = fingerprint(corpora)
        if self.dictionary is not None:
            inputs["dictionary"] = fingerprint([self.dictionary])
        models = drop_none(parent=self.arguments.parent, tokenizer=self.model.tokenizer)
        for name, path in models.items():
            inputs[name] = folder_digest(path)
        return inputs

    def estimate(self) -> str:
        """A table of the time and the memory of each training, measured with a few steps.

        They are measured on the first pairs of the corpus, without synthetic ones. A model that does not exist yet is
        replaced by a new one.
        """
        rows = []
        for stage in self.stages:
            if stage.kind != BACK_TRANSLATE:
                run = dry_run(*self.new_training(stage))
                rows.append((stage.name, f"{run.hours:.3g}", f"{run.memory / GIB:.3g}"))
        return markdown_table(("stage", "hours of training", "memory in GiB"), rows)


def options_of_stage(stage: StageArguments) -> Values:
    """The values of the options of a stage.

    Raises:
        ValueError: an option does not exist, is one of the recipe, or has an invalid value.
    """
    fixed = sorted(stage.options.keys() & SET_BY_RECIPE)
    if fixed:
        raise ValueError(f"{stage.name} must not have arguments that the recipe sets, got {', '.join(fixed)}.")
    if stage.kind == DISTILL:
        return parse_values(stage.options, (*TRAINING_ARGUMENTS, DistillationArguments))
    if stage.kind == TRAIN:
        return parse_values(stage.options, TRAINING_ARGUMENTS)
    options = dict(stage.options)
    check_choice(DTYPES, dtype=options.pop("dtype", "float32"))
    _, search = BackTranslationOptions.split(options)
    with reraise_as_value_error(f"{stage.name} must have options of back_translate, got an error"):
        unknown = GenerationConfig().update(**TranslationOptions.from_kwargs(**search).search_kwargs)
        if not unknown:
            check_search(search)
    if unknown:
        raise ValueError(f"{stage.name} must have options of back_translate, got {', '.join(unknown)}.")
    return options


def check_search(options: Values) -> None:
    """Check the options of a translation that only `generate()` checks, with a small model of random weights.

    Raises:
        ValueError: an option is invalid. Token ids are not checked: the vocabulary may not exist yet.
    """
    options = {name: value for name, value in options.items() if name not in OF_CALIBRATED_MODELS}
    tokenizer = RandomTransformerTokenizer.train(["a"])
    config = RandomTransformerConfig.from_preset("blog", vocab_size=VOCABULARY)
    model = RandomTransformerForConditionalGeneration(config).eval()
    translate(["a"], model, tokenizer, **{**options, "max_new_tokens": 1})

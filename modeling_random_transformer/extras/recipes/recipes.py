"""Recipes with stages: training, back-translation and distillation in one folder, one after the other.

    run_recipe("examples/recipes/low_resource.yaml", source_file="corpus.en", target_file="corpus.sw")

The arguments of a recipe hold for all stages, see `recipe_plan`. Those of a stage override them, and those of the call
override both.

The folder `stages/NAME` of the output folder contains the files of a stage, `recipe.json` is the record of all. The
same call resumes: finished stages are skipped, an interrupted one continues. The result is the model of the last stage,
or of one that it started from, if that has a higher chrF++ on the validation set.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME

from ...base.digests import file_digest
from ...base.distributed import call_on_main_process, exclusive
from ...base.files import StrPath, files_in
from ...base.flags import to_flags
from ...base.jobs import Job, Stage
from ...base.markdown import markdown_table
from ...base.saved_files import RECIPE_RECORD, SAVED_WEIGHTS, TRAINING_RECORD
from ...data.readers import TEXT_KEY
from ...data.sources import SIDES
from ...inference.loading import load_models
from ...stages.back_translation import back_translate
from ...stages.distillation import INT8, StudentDataArguments, distill
from ...training.arguments import (
    ARGUMENT_PREFIXES,
    FILE_ARGUMENTS,
    DataArguments,
    split_and_label,
)
from ...training.model_card import CARD, set_section
from ...training.run import train_translation
from ...training.run_record import INCREASABLE_ARGUMENTS, weight_arguments
from ...training.run_state import RunResult
from ...training.training_arguments import TRAINING_ARGUMENTS
from .device_choices import Values
from .recipe_card import set_origin
from .recipe_data import SET_FILES, Facts, check_monolingual, files_of, write_sets
from .recipe_file import (
    BACK_TRANSLATE,
    DATA,
    DISTILL,
    RESULT,
    TRAIN,
    StageArguments,
    check_names,
    read_recipe,
    training_arguments,
)
from .recipe_plan import RecipePlan

logger = logging.getLogger(__name__)

RECIPE_LOCK = ".recipe.lock"
RECORD_ADVICE = "use another output_dir"
# Files whose digests are recorded: those of pairs; and those of a model, without its card, which may be edited
PAIR_FILES = ("data.*source", "data.*target")
SAVED = (SAVED_WEIGHTS, CONFIG_NAME, "tokenizer*", f"{INT8}/{SAVED_WEIGHTS}", f"{INT8}/{CONFIG_NAME}")
FILES_OF_RESULT = (SAVED_WEIGHTS, "*.json", "*.py", CARD)  # patterns of the result's files in a stage's folder


def run_recipe(path: StrPath, **arguments: Any) -> list[Facts]:
    """Run the stages of a recipe that are not finished, and save the result in `output_dir`.

    Args:
        path: the YAML or JSON file; without `stages`, it is one training.
        **arguments: arguments of `train` and the fields of `RecipeArguments`, which override those of the recipe.

    Returns:
        The facts of each stage, such as `name`, `pairs` and `scores`.

    Raises:
        ValueError: an argument or a text is invalid, or the folder contains another run.
        FloatingPointError: a loss is not finite.
        OSError: a file cannot be read or written.
    """
    recipe = read_recipe(path)
    if "stages" in recipe:
        return RecipeRun(RecipePlan(path, recipe, **arguments)).run()
    check_names(arguments, TRAINING_ARGUMENTS)
    result = train_translation(*training_arguments(recipe, arguments))
    return [{"name": TRAIN, "kind": TRAIN, **facts_of(result)}]


class RecipeRun:
    """A run of the stages of a recipe.

    Args:
        plan: the arguments.
    """

    def __init__(self, plan: RecipePlan):
        self.plan = plan
        self.folder = plan.folder
        self.stages = plan.stages

    def run(self) -> list[Facts]:
        """Run the stages that are not finished, and save the result.

        Returns:
            The facts of each stage, see `stages_table`.

        Raises:
            ValueError: an argument or a text is invalid, or the folder contains another run.
            FloatingPointError: a loss is not finite.
            OSError: a file cannot be read or written.
        """
        with exclusive(
            self.folder / RECIPE_LOCK, f"output_dir must not be in use, got {self.folder} of another recipe."
        ):
            call_on_main_process(self.check_folder)
            inputs = self.plan.inputs_of_data()
            files = files_in(self.plan.path(DATA), PAIR_FILES)
            call_on_main_process(self.check_monolingual_texts)
            self.run_recorded(
                DATA, inputs, lambda: write_sets(self.plan.data, self.plan.path(DATA), self.plan.dictionary), files
            )
            rows = [self.run_stage(stage) for stage in self.stages]
            best = self.best(self.stages[-1].name)
            files = files_in(self.folder, SAVED)
            self.run_recorded(RESULT, {"stage": best}, lambda: self.save_result(best, rows), files)
        return rows

    # The record

    @property
    def finished_stages(self) -> dict[str, Stage]:
        """The finished stages in the record, by name."""
        stages = Job(self.folder / RECIPE_RECORD).stages
        return {name: stage for name, stage in stages.items() if stage.is_finished}

    def check_folder(self) -> None:
        """Raise a `ValueError` if the output folder contains something else than an earlier run of the recipe."""
        if (self.folder / RECIPE_RECORD).is_file():
            return
        for path in sorted(self.folder.iterdir()):
            if path.name != RECIPE_LOCK and path.suffix != ".tmp":
                raise ValueError(f"output_dir must be new or that of this recipe, got {self.folder} with {path.name}.")

    def check_monolingual_texts(self) -> None:
        """Read the monolingual text of each stage that is not finished, before another one trains for hours."""
        finished = self.finished_stages
        for stage in self.stages:
            for name, path in self.plan.texts_of(stage).items():
                if stage.name not in finished:
                    check_monolingual(name, path, self.plan.options[stage.name].get("text_key", TEXT_KEY))

    @cached_property
    def needs_files(self) -> bool:
        """Whether the files of the finished stages are needed, because this run began without a complete result."""
        return not call_on_main_process(self.has_result)

    def has_result(self) -> bool:
        """Whether the result is complete."""
        result = self.finished_stages.get(RESULT)
        return result is not None and bool(result.files) and not result.changed_files()

    def run_recorded(self, *arguments: Any, **options: Any) -> Facts:
        """Do the work of a stage in the record of the recipe; see `Job.run` for the other arguments."""
        job = Job(self.folder / RECIPE_RECORD, RECORD_ADVICE)
        return job.run(*arguments, needs_files=self.needs_files, **options)

    def run_stage(self, stage: StageArguments) -> Facts:
        """Run a stage, or skip a finished one; returns its facts."""
        work = {
            TRAIN: self.train,
            BACK_TRANSLATE: self.back_translate,
            DISTILL: self.distill,
        }[stage.kind]

        def logged_work() -> Facts:
            if self.plan.args.process_index == 0:
                number = self.stages.index(stage) + 1
                # A warning, so that the progress is shown by default.
                logger.warning("Stage %d of %d: %s.", number, len(self.stages), stage.name)
            return work(stage)

        data_args, model_args, args = self.plan.arguments_of(stage)
        inputs = asdict(stage)
        for name in INCREASABLE_ARGUMENTS:
            inputs[name] = getattr(args, name)
        inputs |= weight_arguments(args, data_args, model_args)
        for name, path in self.plan.texts_of(stage).items():
            inputs[name] = file_digest(Path(path))
        files = files_in(self.plan.path(stage.name), PAIR_FILES if stage.kind == BACK_TRANSLATE else SAVED)
        facts = self.run_recorded(stage.name, inputs, logged_work, files, everywhere=True)
        return {"name": stage.name, "kind": stage.kind, **facts}

    def best(self, name: str) -> str:
        """The stage with the highest validation chrF++ among a finished stage and the stages that it started from.

        Training a model further can make it worse, such as distillation from a poor model.
        """
        finished = self.finished_stages
        scores = {}
        earlier: str | None = name
        for stage in reversed(self.stages):
            if stage.name == earlier:
                scores[stage.name] = finished[stage.name].facts["scores"]["validation"]["chrf"]
                earlier = stage.starts_from
        return max(scores, key=scores.__getitem__)

    def data_of(self, stage: StageArguments, data_args: DataArguments) -> DataArguments:
        """The arguments of the data of a stage: the sets of the recipe, with the synthetic pairs of other stages."""
        values: Values = dict.fromkeys((*FILE_ARGUMENTS, "dataset_name"))
        for split in SET_FILES.keys() & self.finished_stages[DATA].facts.keys():
            for side, path in zip(SIDES, files_of(self.plan.path(DATA), split), strict=True):
                values[f"{ARGUMENT_PREFIXES[split]}{side}_file"] = [str(path)]
        for other in self.stages:
            if other.name in stage.synthetic:
                source, target = files_of(self.plan.path(other.name))
                if source.stat().st_size:  # all translations may be empty
                    values["source_file"].append(str(source))
                    values["target_file"].append(str(target))
        synthetic = values["source_file"][1:]
        if synthetic and stage.authentic_weight != 1:
            values["train_weights"] = [stage.authentic_weight, *(1 for _ in synthetic)]
        data_args = data_args.with_sets(**values)
        return data_args.reversed() if stage.reverse else data_args

    # The work of stages

    def train(self, stage: StageArguments) -> Facts:
        """Train a model."""
        data_args, model_args, args = self.plan.arguments_of(stage)
        return facts_of(train_translation(self.data_of(stage, data_args), model_args, args))

    def back_translate(self, stage: StageArguments) -> Facts:
        """Write synthetic pairs."""
        self.plan.path(stage.name).mkdir(parents=True, exist_ok=True)
        options = {"dtype": "float32", **stage.options}
        folder = self.plan.path(self.best(str(stage.uses)))
        model, tokenizer = load_models([folder], options.pop("dtype"), self.plan.args.device)
        if self.plan.data.source_lang and self.plan.data.target_lang:
            options |= {"src_lang": self.plan.data.target_lang[0], "tgt_lang": self.plan.data.source_lang[0]}
        [text] = self.plan.texts_of(stage).values()
        source, target = files_of(self.plan.path(stage.name))
        return {"pairs": back_translate(text, source, target, model, tokenizer, **options).pairs}

    def distill(self, stage: StageArguments) -> Facts:
        """Train a student."""
        data_args, model_args, args = self.plan.arguments_of(stage)
        folder = self.plan.path(self.best(str(stage.uses)))
        sources, _ = files_of(self.plan.path(DATA))
        teacher = self.plan.teacher_of(stage, folder, [str(sources), *self.plan.texts_of(stage).values()])
        if not {"tokenizer", "vocab_size"} & self.plan.options[stage.name].keys():  # the teacher's tokenizer is used
            model_args = replace(model_args, tokenizer=None, vocab_size=None, special_tokens=None)
        sets = StudentDataArguments(**vars(self.data_of(stage, data_args)))
        return facts_of(distill(teacher, sets, model_args, args).run)

    # The result

    def save_result(self, name: str, rows: Sequence[Facts]) -> None:
        """Copy the files of a stage, and add the table of all stages to the model card."""
        best = self.plan.path(name)
        for path in files_in(best, FILES_OF_RESULT):
            if path.name != TRAINING_RECORD:
                shutil.copyfile(path, self.folder / path.name)
        if (best / INT8).is_dir():
            shutil.copytree(best / INT8, self.folder / INT8, dirs_exist_ok=True)
        set_origin(self.folder / CARD, name, self.plan.recipe_path, to_flags(self.plan.overrides))
        set_section(self.folder / CARD, "## Stages\n", self.description(name, rows))

    def description(self, name: str, rows: Sequence[Facts]) -> str:
        """The section of the model card."""
        facts = self.finished_stages[DATA].facts
        counts = ", ".join(f"{name} {facts[name]:,}" for name in (*SET_FILES, "dictionary") if name in facts)
        chosen = "" if self.plan.data.has("validation") else " The validation and test sets were taken from the corpus."
        skipped = "".join(f"- {report}\n" for report in facts["skipped"])
        return f"Pairs: {counts}.{chosen} The result is the model of stage `{name}`.\n\n{skipped}\n{stages_table(rows)}"


def facts_of(result: RunResult) -> Facts:
    """The facts of a training run that the table shows."""
    scores = {}
    for name, metrics in result.scores.items():
        split, _ = split_and_label(name)
        scores[split] = {metric: values["score"] for metric, values in metrics.items()}
    return {
        "pairs": result.pairs,
        "steps": result.steps,
        "minutes": result.seconds / 60,
        "scores": scores,
    }


def stages_table(rows: Sequence[Facts]) -> str:
    """The stages as a Markdown table; a stage has no steps, minutes and scores if it does not train."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        training = ("",) * 4
        if "scores" in row:
            scores = row["scores"]["validation"]
            training = (
                f"{row['steps']:,}",
                f"{row['minutes']:.1f}",
                f"{scores['bleu']:.2f}",
                f"{scores['chrf']:.2f}",
            )
        lines.append((row["name"], row["kind"], f"{row['pairs']:,}", *training))
    header = ("stage", "kind", "pairs", "steps", "minutes", "validation BLEU", "validation chrF++")
    return markdown_table(header, lines)

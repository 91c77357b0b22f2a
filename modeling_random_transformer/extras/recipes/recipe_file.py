"""The content of a recipe, a YAML or JSON file: arguments of `train` by name, and optionally a list `stages`.

Each stage has a `name` and, beside the other keys of `StageArguments`, arguments of its own: those of `train`, for
`kind: back_translate` those of `back_translate`, and for `kind: distill` also those of `distill`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig

from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...base.flags import from_values, to_flags
from ...base.formats import file_format
from ...base.streams import check_readable
from ...configuration_random_transformer import did_you_mean
from ...data.validation import ValidationReport
from ...inputs_random_transformer import check_choice, check_positive, check_type, drop_none
from ...training.arguments import DataArguments
from ...training.tokenizer import load_parent_tokenizer
from ...training.training_arguments import AUTO, TRAINING_ARGUMENTS
from ..parser import Parser, all_from_values
from .device_choices import Values, choose_by_device

logger = logging.getLogger(__name__)

TRAIN, BACK_TRANSLATE, DISTILL = STAGE_KINDS = ("train", "back_translate", "distill")
CONDITIONS = ("monolingual_target", "student")
# The kind of stage that uses each text.
MONOLINGUAL_TEXTS = {"monolingual_source": DISTILL, "monolingual_target": BACK_TRANSLATE}
DATA, RESULT = "data", "result"  # stages of every recipe, before and after its own
# An argument of a call also replaces another one of the recipe.
ALTERNATIVES = {"tokenizer": "vocab_size", "vocab_size": "tokenizer", "eval_strategy": "early_stopping_patience"}
SIZES = ("vocab_size", "max_steps")  # may be `auto`, see `sizes_of`
MEASURED = (1_700_000, 7_300_000)  # characters of the corpora between which `sizes_of` interpolates


@dataclass
class RecipeArguments:
    """Arguments of a recipe with stages.

    Args:
        parent: Saved model of other languages, from whose weights the first models start.
        monolingual_source: Text of the source language, for stages that distill.
        monolingual_target: Text of the target language, to back-translate.
        dictionary: Word list of two columns, whose entries become training pairs.
        student: Also train a small student with an int8 version, which is then the result.

    Raises:
        ValueError: a file is missing, `dictionary` is not a file with columns, or `parent` is not a saved model.
    """

    parent: str | None = None
    monolingual_source: str | None = None
    monolingual_target: str | None = None
    dictionary: str | None = None
    student: bool = False

    def __post_init__(self) -> None:
        for name in (*MONOLINGUAL_TEXTS, "dictionary"):
            path = getattr(self, name)
            if path is not None:
                check_readable(name, path, repeatedly=True)
        if self.dictionary is not None and file_format(self.dictionary) == "text":
            raise ValueError(
                f"dictionary must be a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file, got {self.dictionary!r}."
            )
        if self.parent is not None:
            with reraise_as_value_error(f"parent must be a saved model, got {self.parent!r}"):
                AutoConfig.from_pretrained(self.parent, trust_remote_code=False)
            load_parent_tokenizer("parent", self.parent)


@dataclass(frozen=True)
class StageArguments:
    """What a stage does, and which stages it depends on.

    Args:
        name: the name of its folder.
        kind: `"train"`; `"back_translate"` translates `monolingual_target` with the model of `uses`; `"distill"` trains
            on the translations of the sources, and of `monolingual_source`, by the model of `uses`.
        when: an argument of `RecipeArguments`; the stage is skipped if it is unset.
        starts_from: the stage whose model is trained further, in the same direction; `None` for a new model, or one
            that starts from `parent`.
        uses: the stage whose model translates, or one that it started from, see `RecipeRun.best`: with `reverse` for
            `"back_translate"`, without it for `"distill"`.
        reverse: train from target to source.
        synthetic: stages whose pairs are added to the training set; skipped ones add none.
        authentic_weight: how often the other pairs occur for each synthetic one.
        options: the other arguments.

    Raises:
        ValueError: a value is not allowed.
    """

    name: str
    kind: str = TRAIN
    when: str | None = None
    starts_from: str | None = None
    uses: str | None = None
    reverse: bool = False
    synthetic: Sequence[str] = ()
    authentic_weight: int = 1
    options: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name in ("", "..", DATA, RESULT) or Path(self.name).name != self.name:
            raise ValueError(f"name must be that of a new folder, got {self.name!r}.")
        check_choice(STAGE_KINDS, kind=self.kind)
        check_choice((None, *CONDITIONS), when=self.when)
        check_type("synthetic", self.synthetic, list | tuple, "a list of stages")
        check_type("reverse", self.reverse, bool, "true or false")
        check_positive(authentic_weight=self.authentic_weight)
        if (self.uses is None) != (self.kind == TRAIN):
            raise ValueError(f"uses must be given for back_translate and distill only, got {self}.")
        if self.kind == DISTILL and (self.reverse or self.authentic_weight != 1):
            raise ValueError(f"reverse and authentic_weight must be unset for kind distill, got {self}.")
        if self.authentic_weight != 1 and not self.synthetic:
            raise ValueError(f"authentic_weight must be unset without synthetic, got {self.authentic_weight}.")

    @classmethod
    def of(cls, mapping: Any) -> "StageArguments":
        """The stage of a mapping in a recipe.

        Raises:
            ValueError: it is not a mapping with a name, or a value is not allowed.
        """
        if not isinstance(mapping, Mapping) or not isinstance(mapping.get("name"), str):
            raise ValueError(f"stages must be mappings with a name, got {mapping!r}.")
        names = {entry.name for entry in fields(cls)} - {"options"}
        options = {name: value for name, value in mapping.items() if name not in names}
        values = {name: mapping.get(name) for name in names}
        return cls(**drop_none(**values), options=options)


class UniqueKeys(yaml.SafeLoader):
    """Reads YAML without objects of Python. Of a key that occurs twice, YAML would silently use the last value.

    As in flags, hyphens are another spelling of a key.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node; raises a `ValueError` if a key occurs twice."""
        names = set()
        for key, _ in node.value:
            name = str(key.value).replace("-", "_")
            if name in names:
                raise ValueError(f"keys must be unique, got {key.value!r} again in line {key.start_mark.line + 1}.")
            names.add(name)
        return super().construct_mapping(node, deep)


def read_recipe(path: StrPath) -> Values:
    """The arguments in a YAML or JSON file (JSON is YAML).

    Raises:
        ValueError: the file is missing or damaged, or a mapping has a key twice; the message names the line.
    """
    check_readable("the recipe", path)
    with reraise_as_value_error(f"the recipe {path} must be YAML or JSON"):
        try:
            recipe = yaml.load(Path(path).read_text(encoding="utf-8"), UniqueKeys)
        except yaml.MarkedYAMLError as error:
            raise ValueError(f"{error.problem} in line {error.problem_mark.line + 1}.") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must map argument names to values, got {type(recipe).__name__}.")
    return recipe


def parse_values(arguments: Values, classes: Sequence[type]) -> Values:
    """The values of a recipe, which are parsed like flags: `3e-3` is a text in YAML.

    A key without a value (`null`) is as if it were absent.

    Raises:
        ValueError: an argument is not a field of these dataclasses, or its value is invalid.
    """
    check_names([name for name, value in arguments.items() if value is None], classes)
    parser = Parser("recipe", classes=classes)
    texts = {action.dest for action in parser._actions if action.type is str}
    single = {action.dest for action in parser._actions if action.nargs not in ("+", "*")}
    flags = to_flags(arguments)
    for flag, *values in flags:
        name = flag[2:].replace("-", "_")
        if name in texts and not {"True", "False"}.isdisjoint(values):  # the language `no`, for example
            raise ValueError(f"{name} must be text, in quotes if YAML reads it as a Boolean, got {', '.join(values)}.")
        if len(values) > 1 and name in single:
            raise ValueError(f"{name} must be one value, got {', '.join(values)}.")
    return parser.values(chain.from_iterable(flags))


def not_overridden(arguments: Values, overrides: Values) -> Values:
    """The arguments without those that others override, also as `ALTERNATIVES`."""
    replaced = {*overrides}
    replaced |= {ALTERNATIVES[name] for name in overrides if name in ALTERNATIVES}
    for event in ("eval", "logging", "save"):
        if overrides.get(f"{event}_strategy", "steps") != "steps":
            replaced.add(f"{event}_steps")
    return {name: value for name, value in arguments.items() if name not in replaced}


def training_arguments(
    recipe: Values, overrides: Values, classes: Sequence[type] = TRAINING_ARGUMENTS
) -> tuple[Any, ...]:
    """The arguments of a recipe without stages, as an object of each class.

    Raises:
        ValueError: an argument is invalid.
    """
    return all_from_values(classes, {**recipe_values(recipe, overrides, classes), **overrides})


def recipe_values(recipe: Values, overrides: Values, classes: Sequence[type]) -> Values:
    """The values of a recipe that are not overridden. Those that are `auto` are chosen.

    Raises:
        ValueError: an argument is not a field of these dataclasses, or its value is invalid.
    """
    recipe = choose_by_device(recipe, overrides)
    recipe = not_overridden(recipe, overrides)
    sizes = [name for name in SIZES if recipe.get(name) == AUTO]
    for name in sizes:
        del recipe[name]
    values = parse_values(recipe, classes)
    if sizes:
        data_args = from_values(DataArguments, {**values, **overrides})
        values |= choose_sizes(sizes, data_args)
    return values


def choose_sizes(names: Iterable[str], data_args: DataArguments) -> dict[str, int]:
    """The values of these arguments that suit the training set, which are printed."""
    characters, alphabet = measure_corpus(data_args)
    sizes = sizes_of(characters, alphabet)
    chosen = {}
    for name in names:
        chosen[name] = sizes[name]
        # A warning, so that the choice is shown by default.
        logger.warning("%s is %d: the distinct pairs have %s characters.", name, sizes[name], f"{characters:,}")
    smallest, largest = MEASURED
    if not smallest <= characters <= largest:
        logger.warning("This rule was not measured below %s and above %s characters.", f"{smallest:,}", f"{largest:,}")
    return chosen


def measure_corpus(data_args: DataArguments) -> tuple[int, int]:
    """The characters of the distinct pairs of the training set, source and target, and the distinct characters.

    Raises:
        ValueError: a corpus has no valid pair, or another encoding; see `ValidationReport.check`.
    """
    counts: dict[int, int] = {}  # counts by hash, which takes less memory than counts by text
    alphabet: set[str] = set()
    for corpus in data_args.corpora("train"):
        report = ValidationReport(str(corpus))
        for line in report.valid_lines(corpus.lines()):
            pair = (line.source, line.target)
            counts[hash(pair)] = sum(map(len, pair))
            alphabet.update(*pair)
        report.check(on_invalid="skip")
    return sum(counts.values()), len(alphabet)


def sizes_of(characters: int, alphabet: int) -> dict[str, int]:
    """The arguments that suit a training set of this size (docs/how_to/low_resource.md)."""
    least = 1000 + alphabet  # otherwise, thousands of characters, as those of Chinese, become parts of bytes
    entries = min(6000, max(least, characters // 300))
    steps = int(4.4 * sqrt(characters))
    return {"vocab_size": entries, "max_steps": steps}


def check_names(arguments: Iterable[str], classes: Sequence[type]) -> None:
    """Raise a `ValueError` for an argument that is not a field of these dataclasses."""
    names = [entry.name for dataclass in classes for entry in fields(dataclass)]
    for name in arguments:
        if name not in names:
            raise ValueError(f"arguments must be those of a recipe, got {name}.{did_you_mean(name, names)}")


def stages_to_run(mappings: Any, arguments: RecipeArguments) -> list[StageArguments]:
    """The stages of a recipe whose conditions hold.

    Raises:
        ValueError: a stage is invalid or depends on one that is not before it, the last one does not train a model, or
            a monolingual text is missing or not used.
    """
    if not isinstance(mappings, list):
        raise ValueError(f"stages must be a list of mappings, got {type(mappings).__name__}.")
    stages = [StageArguments.of(mapping) for mapping in mappings]
    chosen = [stage for stage in stages if stage.when is None or getattr(arguments, stage.when)]
    models: dict[str, bool] = {}  # stages before the current one that train, and whether they are reverse
    corpora: list[str] = []  # stages before the current one that back-translate
    for stage in stages:
        if stage.kind == BACK_TRANSLATE and stage not in chosen:
            corpora.append(stage.name)  # a corpus without pairs
    for stage in chosen:
        if stage.name in (*models, *corpora):
            raise ValueError(f"name must be that of a new folder, got {stage.name!r}.")
        is_reverse = stage.reverse or stage.kind == BACK_TRANSLATE
        suitable = [name for name in models if models[name] == is_reverse]
        check_choice(suitable, **drop_none(starts_from=stage.starts_from, uses=stage.uses))
        for name in stage.synthetic:
            check_choice(corpora, synthetic=name)
        if stage.kind == BACK_TRANSLATE:
            corpora.append(stage.name)
        else:
            models[stage.name] = stage.reverse
    if not chosen or chosen[-1].kind == BACK_TRANSLATE or chosen[-1].reverse:
        raise ValueError("stages must end with one that trains a model from source to target.")
    check_texts(chosen, arguments)
    return chosen


def check_texts(stages: Sequence[StageArguments], arguments: RecipeArguments) -> None:
    """Check that each monolingual text and a student have a stage, and that each back-translation has a text."""
    kinds = {stage.kind: stage.name for stage in stages}
    if BACK_TRANSLATE in kinds and arguments.monolingual_target is None:
        raise ValueError(f"monolingual_target must be given for the stage {kinds[BACK_TRANSLATE]}, got None.")
    for name, kind in MONOLINGUAL_TEXTS.items():
        if kind not in kinds and getattr(arguments, name) is not None:
            raise ValueError(f"{name} must be unset without a stage of kind {kind}, got {getattr(arguments, name)!r}.")
    if arguments.student and all(stage.when != "student" for stage in stages):
        raise ValueError("student must be unset without a stage whose condition (when) is student, got True.")

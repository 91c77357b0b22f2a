"""Recipes with stages: training, back-translation and distillation in one folder, one after the other.

A recipe is a mapping of arguments of `train`, which hold for all stages, and a list `stages` of mappings. Each stage
has a `name` and, beside the other keys of `StageArguments`, arguments of its own: those of `train`, for
`kind: back_translate` those of `back_translate`, and for `kind: distill` also those of `distill`. Arguments of the
command line override both.

The folder `stages/NAME` of the output folder contains the files of a stage, `recipe.json` is the record of all. The
same call resumes: finished stages are skipped, an interrupted one continues. The result is the model of the last stage,
or of one that it started from, if that has a higher chrF++ on the validation set.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig
from transformers.hf_argparser import HfArg

from ..base import DTYPES, file_digest
from ..base.atomic_files import remove_if_empty
from ..base.compressed_files import STANDARD_STREAM, check_readable
from ..base.distributed import call_on_main_process, exclusive
from ..base.errors import reraise_as_value_error
from ..base.jobs import Job, run_stage
from ..base.text import markdown_table
from ..data.cleaning import clean_files, clean_pairs
from ..data.filters import SIDES
from ..data.readers import TEXT_KEY, read_texts
from ..data.sources import Corpus, pairs_of
from ..data.validation import validate
from ..inference.loading import load_models
from ..inference.translation import TranslationOptions
from ..inputs_random_transformer import check_choice, check_positive, check_type, drop_none
from ..training.arguments import DROPOUTS, FILES, PREFIXES, DataArguments, ModelArguments, parse_overrides
from ..training.estimation import GIB, dry_run, translation_seconds
from ..training.manifest import MANIFEST, RunResult, determining, fingerprint, folder_digest
from ..training.model_card import CARD, set_origin, set_section
from ..training.run import train_translation
from ..training.tokenizer import load_parent_tokenizer
from ..training.training_arguments import TranslationTrainingArguments
from .back_translation import METHODS, BackTranslationOptions, back_translate
from .distillation import INT8, StudentDataArguments, distill
from .monolingual import write_pairs
from .training_set import DistillationArguments

logger = logging.getLogger(__name__)

RECORD, LOCK, FOLDER, DATA, RESULT = "recipe.json", ".recipe.lock", "stages", "data", "result"
KINDS, CONDITIONS = ("train", "back_translate", "distill"), ("monolingual_target", "student")
TEXTS = {"monolingual_source": "distill", "monolingual_target": "back_translate"}  # by the kind of stage that uses them
OF_RUN = ("resume_from_checkpoint", "push_to_hub")  # would apply to every stage
OF_RECIPE = {*FILES, *CONDITIONS, *TEXTS, *OF_RUN, "dataset_name", "output_dir", "source_text", "teacher"}
TEACHER = [entry.name for entry in fields(DistillationArguments)]  # only for distillation
SETS = {"train": "data", "validation": "data.validation", "test": "data.test"}  # the beginnings of the files' names
HELD_OUT, SHARE = 1000, 20  # pairs of a validation or test set, at most one in 20 of the corpus
# Files whose digests are recorded: those of pairs; and those of a model, without its card, which may be edited
PAIRS = ("data.*source", "data.*target")
SAVED = ("*.safetensors", "config.json", "tokenizer*", f"{INT8}/*.safetensors", f"{INT8}/config.json")
FILES_OF_RESULT = ("*.safetensors", "*.json", "*.py", CARD)  # of the folder of a stage

# The arguments of the recipe with those of a stage, and below those of the command line.
Parsed = tuple[DataArguments, ModelArguments, TranslationTrainingArguments]
Parse = Callable[[Mapping[str, Any]], Parsed]


@dataclass
class RecipeArguments:
    """Arguments of a recipe with stages."""

    parent: str | None = HfArg(default=None, help="Saved model of other languages that the first models start from.")
    monolingual_source: str | None = HfArg(default=None, help="Text of the source language, for stages that distill.")
    monolingual_target: str | None = HfArg(default=None, help="Text of the target language, to back-translate.")
    student: bool = HfArg(default=False, help="Run the stages of a small int8 student, which is the result.")
    remove_stages: bool = HfArg(default=False, help="Keep only the result, not the folders of the stages.")

    def __post_init__(self) -> None:
        for name, path in drop_none(source=self.monolingual_source, target=self.monolingual_target).items():
            check_readable(f"monolingual_{name}", path, repeatedly=True)
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
        starts_from: the stage whose model is trained further; `None` for a new model, or one that starts from `parent`.
        uses: the stage whose model translates, or one that it started from, see `Recipe.best`.
        reverse: train from target to source.
        synthetic: stages whose pairs are added to the training set; skipped ones add none.
        authentic_weight: how often the other pairs occur for each synthetic one.
        options: the other arguments.
    """

    name: str
    kind: str = "train"
    when: str | None = None
    starts_from: str | None = None
    uses: str | None = None
    reverse: bool = False
    synthetic: Sequence[str] = ()
    authentic_weight: int = 1
    options: Mapping[str, Any] = HfArg(default_factory=dict)

    @classmethod
    def of(cls, mapping: Any) -> "StageArguments":
        """The stage of a mapping in a recipe.

        Raises:
            ValueError: it is not a mapping with a name, or a value is not allowed.
        """
        if not isinstance(mapping, Mapping) or not isinstance(mapping.get("name"), str):
            raise ValueError(f"stages must be mappings with a name, got {mapping!r}.")
        names = {entry.name for entry in fields(cls)} - {"options"}
        own = {name: value for name, value in mapping.items() if name in names and value is not None}
        stage = cls(**own, options={name: value for name, value in mapping.items() if name not in names})
        check_choice(KINDS, kind=stage.kind)
        check_choice((None, *CONDITIONS), when=stage.when)
        check_type("synthetic", stage.synthetic, list | tuple, "a list of stages")
        check_positive(authentic_weight=stage.authentic_weight)
        if (stage.uses is None) != (stage.kind == "train"):
            raise ValueError(f"uses must be given for {' and '.join(KINDS[1:])} only, got {mapping!r}.")
        if stage.kind == "distill" and (stage.reverse or stage.authentic_weight != 1):
            raise ValueError(f"reverse and authentic_weight must be unset for kind distill, got {mapping!r}.")
        return stage


def stages_of(mappings: Sequence[Any], recipe: RecipeArguments) -> list[StageArguments]:
    """The stages of a recipe whose conditions hold.

    Raises:
        ValueError: a stage is invalid or depends on one that is not before it, the last one does not train a model, or
            a monolingual text is missing or not used.
    """
    stages = [StageArguments.of(mapping) for mapping in mappings]
    chosen = [stage for stage in stages if stage.when is None or getattr(recipe, stage.when)]
    for number, stage in enumerate(chosen):
        before = {each.name: each.kind for each in chosen[:number]}
        models = [name for name, kind in before.items() if kind != "back_translate"]
        check_choice(models, **drop_none(starts_from=stage.starts_from, uses=stage.uses))
        for name in stage.synthetic:  # those that are skipped are allowed
            corpora = [each.name for each in stages if each.kind == "back_translate" and each not in chosen[number:]]
            check_choice(corpora, synthetic=name)
        if stage.name in ("", "..", *before, DATA, RESULT) or Path(stage.name).name != stage.name:
            raise ValueError(f"name must be that of a new folder, got {stage.name!r}.")
        if stage.kind == "back_translate" and recipe.monolingual_target is None:
            raise ValueError(f"monolingual_target must be given for the stage {stage.name}, got None.")
    if not chosen or chosen[-1].kind == "back_translate" or chosen[-1].reverse:
        raise ValueError("stages must end with one that trains a model from source to target.")
    for name, kind in TEXTS.items():
        if getattr(recipe, name) is not None and all(stage.kind != kind for stage in chosen):
            raise ValueError(f"{name} must be unset without a stage of kind {kind}, got {getattr(recipe, name)!r}.")
    return chosen


class Recipe:
    """A run of all stages.

    Args:
        stages: the mappings of the recipe.
        parse: the arguments of a stage.
        arguments: the arguments of the recipe.
        command: the arguments of the command line, for the model card.

    Raises:
        ValueError: a stage or an argument is invalid.
    """

    def __init__(self, stages: Sequence[Any], parse: Parse, arguments: RecipeArguments, command: Sequence[str] = ()):
        self.command = command
        self.arguments, self.parse = arguments, parse
        self.is_complete = False  # see `has_result`
        self.stages = stages_of(stages, arguments)
        self.data, self.model, self.args = parse({})
        unset = {name: getattr(self.data, name) for name in ("train_weights", "streaming")}
        unset |= {name: getattr(self.args, name) for name in OF_RUN}
        for name, value in unset.items():
            if value:
                raise ValueError(f"{name} must be unset for a recipe with stages, got {value}.")
        for name in (f"{prefix}{side}_lang" for prefix in PREFIXES.values() for side in SIDES):  # corpora become one
            if len({*(codes := getattr(self.data, name) or [])}) > 1:
                raise ValueError(f"{name} must be one language for a recipe with stages, got {', '.join(codes)}.")
        self.folder = Path(self.args.output_dir)
        for stage in self.stages:  # errors before the first one starts
            if fixed := sorted(stage.options.keys() & OF_RECIPE):
                raise ValueError(f"{stage.name} must not have arguments that the recipe sets, got {', '.join(fixed)}.")
            self.parsed(stage)
            if stage.kind == "back_translate":
                options = dict(stage.options)
                check_choice(DTYPES, dtype=options.pop("dtype", "float32"))
                search = TranslationOptions.from_kwargs(**BackTranslationOptions.split(options)[1]).search_options
                if unknown := GenerationConfig().update(**search):
                    raise ValueError(f"{stage.name} must have options of back_translate, got {', '.join(unknown)}.")
            elif stage.kind == "distill":
                self.teacher(stage, self.path(str(stage.uses)), [STANDARD_STREAM])

    def run(self) -> list[dict[str, Any]]:
        """Run the stages that are not finished, and save the result.

        Returns:
            The facts of each stage, see `table`.

        Raises:
            ValueError: an argument or a text is invalid, or the folder contains another run.
            FloatingPointError: a loss is not finite.
            OSError: a file cannot be read or written.
        """
        with exclusive(self.folder / LOCK, f"output_dir must not be in use, got {self.folder} of another recipe."):
            call_on_main_process(self.check_folder)
            sets = {name: fingerprint(corpora) for name, corpora in self.sets().items()}
            inputs = {"on_invalid": self.data.on_invalid, "stages": [stage.name for stage in self.stages], **sets}
            saved = drop_none(parent=self.arguments.parent, tokenizer=self.model.tokenizer)
            inputs |= {name: folder_digest(path) for name, path in saved.items()}
            self.is_complete = call_on_main_process(self.has_result)
            write = partial(call_on_main_process, self.write_data)
            self.run_stage(DATA, inputs, write, files_in(self.path(DATA), PAIRS))
            rows: list[dict[str, Any]] = []
            for number in range(len(self.stages)):
                rows.append(self.run_one(number, rows))
            best = self.best(self.stages[-1].name)
            save = partial(call_on_main_process, partial(self.save_result, best, rows))
            self.run_stage(RESULT, {"stage": best}, save, files_in(self.folder, SAVED))
            if self.arguments.remove_stages:
                call_on_main_process(self.remove_stages)
        return rows

    def check_folder(self) -> None:
        """Raise a `ValueError` if the output folder contains something else than an earlier run of the recipe."""
        others = [path.name for path in sorted(self.folder.iterdir()) if path.name != LOCK and path.suffix != ".tmp"]
        if others and not (self.folder / RECORD).is_file():
            raise ValueError(f"output_dir must be new or that of this recipe, got {self.folder} with {others[0]}.")

    def has_result(self) -> bool:
        """Whether the result is complete, so that the files of the stages are not needed."""
        result = Job(self.folder / RECORD).stages.get(RESULT)
        return result is not None and result.is_finished and bool(result.files) and not result.changed_files()

    def run_stage(self, name: str, inputs: dict[str, Any], work: Callable[[], Any], files: Iterable[Path]) -> Any:
        """`run_stage` with the record of the recipe. Files of a finished stage that are missing are made again.

        The inputs of a stage that is not finished may change, such as a text that had an error. The record of its work
        protects what it has done.

        Raises:
            ValueError: a file of a finished stage has changed, or is still missing after the work.
        """
        earlier, advice = call_on_main_process(lambda: self.finished(name)), "use another output_dir"
        if changed := [path for path in earlier if path.exists()]:
            raise ValueError(f"{changed[0]} must be as the stage {name} has left it, but it has changed: {advice}.")
        options: dict[str, Any] = {"everywhere": True, "needs_files": not self.is_complete, "advice": advice}
        facts = run_stage(self.folder / RECORD, name, inputs, work, files, **options)
        if missing := [path for path in earlier if not path.exists()]:
            raise ValueError(f"{missing[0]} must be a file of the stage {name}, but it is missing: {advice}.")
        return facts

    def finished(self, name: str) -> list[Path]:
        """The files of a finished stage that are missing or have changed; none if they are not needed."""
        stage = Job(self.folder / RECORD).stages.get(name)
        return [] if self.is_complete or stage is None or not stage.is_finished else stage.changed_files()

    def run_one(self, number: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Run a stage, or skip a finished one; returns its facts. `rows` are those of the stages before."""
        stage = self.stages[number]
        work = {"train": self.train, "back_translate": self.back_translate, "distill": self.distill}[stage.kind]

        def begin() -> Any:
            if self.args.process_index == 0:
                left = self.time_left(number, rows)
                logger.warning("Stage %d of %d: %s.%s", number + 1, len(self.stages), stage.name, left)
            return work(stage)

        data, model, args = self.parsed(stage)
        lengths = {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}
        inputs = {**asdict(stage), **lengths, **determining(args, data, model)}
        inputs |= {name: file_digest(Path(path)) for name, path in self.texts(stage).items()}
        files = files_in(self.path(stage.name), PAIRS if stage.kind == "back_translate" else SAVED)
        return {"name": stage.name, "kind": stage.kind, **self.run_stage(stage.name, inputs, begin, files)}

    def time_left(self, number: int, rows: Sequence[Mapping[str, Any]]) -> str:
        """The training time of this and the next stages, from the time of a step in those before."""
        minutes, steps = (sum(row.get(name, 0) for row in rows) for name in ("minutes", "steps"))
        others = [self.parsed(stage)[2].max_steps for stage in self.stages[number:] if stage.kind != "back_translate"]
        if not steps or min(others) < 0:
            return ""
        return f" About {minutes / steps * sum(others) / 60:.1f} hours of training are left."

    # Arguments of stages

    def path(self, name: str) -> Path:
        """The folder of a stage."""
        return self.folder / FOLDER / name

    def best(self, name: str) -> str:
        """Of a finished stage and those that its model started from, the one with the highest chrF++ (validation).

        Training a model further can make it worse, such as distillation from a poor model.
        """
        starts = {stage.name: stage.starts_from for stage in self.stages}
        finished = Job(self.folder / RECORD).stages
        names = [name]
        while (start := starts[names[-1]]) is not None:
            names.append(start)
        return max(names, key=lambda each: finished[each].facts["scores"]["validation"]["chrf"])

    def files_of(self, name: str, split: str = "train") -> list[Path]:
        """The files of both sides of a set of the data, or of the pairs of a stage."""
        return [self.path(name) / f"{SETS[split]}.{side}" for side in SIDES]

    def texts(self, stage: StageArguments) -> dict[str, str]:
        """The monolingual text that a stage translates, by argument."""
        return drop_none(**{name: getattr(self.arguments, name) for name, kind in TEXTS.items() if kind == stage.kind})

    def parsed(self, stage: StageArguments) -> Parsed:
        """The arguments of a stage, with the sets of the recipe."""
        options = {name: value for name, value in stage.options.items() if stage.kind == "train" or name not in TEACHER}
        data, model, args = self.parse({} if stage.kind == "back_translate" else options)
        args.output_dir = str(self.path(stage.name))
        overrides = parse_overrides(model.config_overrides)
        rates = ",".join(f"{name}={overrides[name]}" for name in DROPOUTS if name in overrides)
        if stage.starts_from is not None:
            model = ModelArguments(model_name_or_path=str(self.path(stage.starts_from)), config_overrides=rates)
        elif (parent := self.arguments.parent) is not None and stage.kind == "train":  # a student has other sizes
            model = replace(model, preset=None, model_name_or_path=parent, config_overrides=rates)
        return data, model, args

    def data_of(self, stage: StageArguments, data: DataArguments) -> dict[str, Any]:
        """The arguments of the data of a stage: its sets, with the synthetic pairs of other stages."""
        values: dict[str, Any] = dict.fromkeys((*FILES, "dataset_name"))
        synthetic = [self.files_of(each.name) for each in self.stages if each.name in stage.synthetic]
        synthetic = [files for files in synthetic if files[0].stat().st_size]  # all translations may be empty
        written = Job(self.folder / RECORD).stages[DATA].facts
        sets = {split: [self.files_of(DATA, split)] for split in SETS if split in written}
        sets["train"] = [self.files_of(DATA), *synthetic]
        for split, pairs in sets.items():
            for index, side in enumerate(SIDES):
                values[f"{PREFIXES[split]}{side}_file"] = [str(files[index != stage.reverse]) for files in pairs]
        if synthetic and stage.authentic_weight != 1:
            values["train_weights"] = [stage.authentic_weight, *(1 for _ in synthetic)]
        if stage.reverse:
            for prefix in PREFIXES.values():
                source, target = f"{prefix}source_lang", f"{prefix}target_lang"
                values[source], values[target] = getattr(data, target), getattr(data, source)
        return data.with_sets(**values)

    # The work of stages

    def sets(self) -> dict[str, list[Corpus]]:
        """The corpora of each set that is given."""
        return {split: corpora for split in SETS if (corpora := self.data.corpora(split))}

    def write_data(self) -> dict[str, Any]:
        """Write the valid pairs of each set as aligned text; without a validation set, clean and split the corpus."""
        for path in (path for split in SETS for path in self.files_of(DATA, split)):
            path.unlink(missing_ok=True)  # of an attempt with other arguments, which may have had more sets
        sets = self.sets().items()
        reports = [validate(corpus, self.data.on_invalid) for _, corpora in sets for corpus in corpora]
        if self.data.has("validation"):
            facts = {split: write_pairs(pairs_of(corpora), self.files_of(DATA, split)) for split, corpora in sets}
        else:
            facts = self.split()
        return facts | {"skipped": [str(report) for report in reports if report.invalid]}

    def split(self) -> dict[str, Any]:
        """Clean one corpus, and divide the pairs that remain into the sets."""
        corpora = self.data.corpora("train")
        if len(corpora) != 1 or self.data.has("test"):
            raise ValueError("validation_source_file must be given with several corpora or a test set, got None.")
        size = max(1, min(HELD_OUT, sum(1 for _ in clean_pairs(corpora[0])) // SHARE))
        self.path(DATA).mkdir(parents=True, exist_ok=True)
        with reraise_as_value_error(f"validation_source_file must be given if {corpora[0]} cannot be divided"):
            report = clean_files(corpora[0], *self.files_of(DATA), split=(size, size))
            if (remaining := report.sets["train"]) < size:
                raise ValueError(f"the training set must have at least {size} pairs like the others, got {remaining}.")
        return {**report.sets, "report": str(report)}

    def train(self, stage: StageArguments) -> dict[str, Any]:
        """Train a model."""
        data, model, args = self.parsed(stage)
        return facts_of(train_translation(DataArguments(**self.data_of(stage, data)), model, args))

    def back_translate(self, stage: StageArguments) -> dict[str, Any]:
        """Write synthetic pairs."""
        self.path(stage.name).mkdir(parents=True, exist_ok=True)
        options = {"dtype": "float32", **stage.options}
        folder = self.path(self.best(str(stage.uses)))
        model, tokenizer = load_models([folder], options.pop("dtype"), self.args.device)
        if self.data.source_lang and self.data.target_lang:
            options |= {"src_lang": self.data.target_lang[0], "tgt_lang": self.data.source_lang[0]}
        [text], [source, target] = self.texts(stage).values(), self.files_of(stage.name)
        return {"pairs": back_translate(text, source, target, model, tokenizer, **options).pairs}

    def distill(self, stage: StageArguments) -> dict[str, Any]:
        """Train a student."""
        data, model, args = self.parsed(stage)
        folder = self.path(self.best(str(stage.uses)))
        teacher = self.teacher(stage, folder, [str(self.files_of(DATA)[0]), *self.texts(stage).values()])
        if not {"tokenizer", "vocab_size"} & stage.options.keys():  # that of the teacher
            model = replace(model, tokenizer=None, vocab_size=None, special_tokens=None)
        return facts_of(distill(teacher, StudentDataArguments(**self.data_of(stage, data)), model, args).run)

    def teacher(self, stage: StageArguments, folder: Path, texts: list[str]) -> DistillationArguments:
        """The arguments of the teacher of a stage, and of the texts that it translates."""
        own = {name: value for name, value in stage.options.items() if name in TEACHER}
        return DistillationArguments(teacher=[str(folder)], source_text=texts, **own)

    # The result

    def save_result(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Copy the files of a stage, and add the table of all stages to the model card."""
        best = self.path(name)
        for path in sorted({path for pattern in FILES_OF_RESULT for path in best.glob(pattern)}):
            if path.name != MANIFEST:
                shutil.copyfile(path, self.folder / path.name)
        if (best / INT8).is_dir():
            shutil.copytree(best / INT8, self.folder / INT8, dirs_exist_ok=True)
        set_origin(self.folder / CARD, name, self.command)
        set_section(self.folder / CARD, "## Stages\n", self.description(name, rows))

    def remove_stages(self) -> None:
        """Remove the folders of the stages."""
        folders = [self.path(name) for name in (DATA, *(stage.name for stage in self.stages))]
        for folder in filter(Path.exists, folders):  # an earlier call may have removed some
            shutil.rmtree(folder)
        remove_if_empty(self.folder / FOLDER)

    def description(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        """The section of the model card."""
        facts = Job(self.folder / RECORD).stages[DATA].facts
        counts = ", ".join(f"{split} {count:,}" for split, count in facts.items() if split in SETS)
        chosen = "" if self.data.has("validation") else " The validation and test sets were taken from the corpus."
        skipped = "".join(f"- {report}\n" for report in facts.get("skipped", ()))
        return f"Pairs: {counts}.{chosen} The result is the model of stage `{name}`.\n\n{skipped}\n{table(rows)}"

    # The dry run

    def estimate(self) -> str:
        """A table of the time and the memory of each stage, measured with a few steps and translations.

        Training is measured on the first pairs of the corpus, without synthetic ones. A model that does not exist yet
        is replaced by a new one.
        """
        rows = [self.estimate_one(stage) for stage in self.stages]
        total = sum(hours for _, hours, _ in rows)
        cells = [(name, f"{hours:.3g}", f"{memory / GIB:.3g}") for name, hours, memory in rows]
        header = ("stage", "hours, without evaluation", "memory in GiB")
        return f"{markdown_table(header, cells)}\n\n{total:.3g} hours in all"

    def estimate_one(self, stage: StageArguments) -> tuple[str, float, int]:
        """The name of a stage, its hours, and the peak memory of a device in bytes."""
        data, model, args = self.parsed(replace(stage, starts_from=None))
        args = args.without_evaluation()  # the validation set may not exist yet
        hours, memory = 0.0, 0
        if stage.kind != "back_translate":
            run = dry_run(data, model, args)
            hours, memory = run.hours, run.memory
        beams = stage.options.get("num_beams", METHODS[stage.options.get("method", "beam")]["num_beams"])
        key = stage.options.get("text_key", TEXT_KEY)
        lines = sum(1 for path in self.texts(stage).values() for _ in read_texts(path, key))
        if stage.kind == "distill":
            beams = stage.options.get("teacher_num_beams", DistillationArguments.teacher_num_beams)
            lines += sum(1 for _ in pairs_of(data.corpora("train")))
        if stage.kind != "train":
            hours += lines * translation_seconds(data, model, args, num_beams=beams) / 3600
        return stage.name, hours, memory


def files_in(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """The files of a stage, which are looked up when the iterator is read."""
    for pattern in patterns:
        yield from sorted(folder.glob(pattern))


def facts_of(result: RunResult) -> dict[str, Any]:
    """What the table shows of a training run."""
    found = ((name.split()[0], metrics) for name, metrics in result.scores.items())  # such as "validation en-de"
    scores = {split: {name: values["score"] for name, values in metrics.items()} for split, metrics in found}
    return {"pairs": result.pairs, "steps": result.steps, "minutes": result.seconds / 60, "scores": scores}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The stages as a Markdown table."""

    def cells(row: Mapping[str, Any]) -> Iterator[str]:
        scores = row.get("scores", {}).get("validation", {})
        yield from (row["name"], row["kind"], f"{row['pairs']:,}", f"{row['steps']:,}" if "steps" in row else "")
        yield f"{row['minutes']:.1f}" if "minutes" in row else ""
        yield from (f"{scores[name]:.2f}" if name in scores else "" for name in ("bleu", "chrf"))

    header = ("stage", "kind", "pairs", "steps", "minutes", "validation BLEU", "validation chrF++")
    return markdown_table(header, [tuple(cells(row)) for row in rows])

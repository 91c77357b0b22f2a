"""Sequence-level knowledge distillation (Kim & Rush 2016): a student is trained on the translations of a teacher.

The stages: the teacher translates → the training set is selected → the student is trained → it is exported to int8 →
teacher and student are compared. `distillation.json` in the output folder records the result, and the same call
resumes.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import AutoConfig

from ..data.mixing import CorpusSpec
from ..data.sources import Languages, ParallelText
from ..data.validation import raise_if_empty, raise_if_invalid, validate
from ..inference.loading import load_translator, silence_transformers
from ..inference.startup import load_models
from ..pipeline_random_transformer import encode_texts, languages_of_pair
from ..training.arguments import ModelArguments
from ..training.manifest import MANIFEST, RunResult, fingerprint
from ..training.model_card import CARD
from ..training.model_init import load_tokenizer
from ..training.preparation import check_languages, check_longest
from ..training.recipe import TranslationTrainingArguments
from ..training.run import check_run, train_translation
from ..utils.atomic_files import new_folder, write_atomically
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from .comparison import Row, TestSet, table, usable_dtypes
from .distillation_arguments import DistillationArguments, StudentDataArguments
from .distillation_corpus import SyntheticCorpus, SyntheticReport, pairs_of

RECORD, WORK, INT8 = "distillation.json", "distillation", "int8"
SECTION = "## Distillation\n"


@dataclass
class DistillationResult:
    """The result of a distillation.

    Attributes:
        run: the training of the student; `run.folder` contains the student, and its folder `int8` the int8 export.
        corpus: counts of the training set.
        rows: teacher and student in each dtype.
    """

    run: RunResult
    corpus: SyntheticReport
    rows: list[Row]


def distill(
    arguments: DistillationArguments,
    data: StudentDataArguments,
    model: ModelArguments,
    args: TranslationTrainingArguments,
) -> DistillationResult:
    """Train a student on the translations of a teacher, and compare both; or resume an earlier call.

    `args.output_dir` then contains the student as `train_translation` saves it, its int8 version in `int8`, the
    student's training set in `distillation`, and `distillation.json` with the comparison, which the model card also
    contains.

    Args:
        arguments: the teacher, the texts to translate and the selection of the translations.
        data: the test set, optionally a validation set, and optionally original pairs to add to the training set.
        model: the architecture of the student. It has the teacher's tokenizer, unless `tokenizer`, `vocab_size` or
            `model_name_or_path` is given.
        args: the training arguments of the student.

    Raises:
        ValueError: an argument, a text or a corpus is invalid, or the folder contains a different run.
        FloatingPointError: the loss of the student is not finite.
        OSError: a file cannot be read or written.
    """
    folder, teacher = Path(args.output_dir), [Path(name) for name in arguments.teacher]
    if model.tokenizer is None and model.vocab_size is None and model.model_name_or_path is None:
        model = replace(model, tokenizer=str(teacher[0]))
    check(folder, teacher, arguments, data, model, args)
    original, [test] = data.corpora("train"), data.corpora("test")
    corpus = SyntheticCorpus(folder / WORK, arguments.interpolate)
    translator, tokenizer = load_models(teacher, arguments.teacher_dtype, args.device, argument="teacher")
    report = corpus.make(
        translator,
        tokenizer,
        arguments,
        original,
        data.max_source_length,
        languages=training_languages(data),
        is_in_use=(folder / MANIFEST).is_file(),
    )
    del translator
    run = train_translation(data.with_training_set(*corpus.train), model, args)

    def compare() -> list[Row]:
        comparison = Comparison(folder, teacher, test, args)
        rows = comparison.rows(report)
        add_to_card(folder / CARD, arguments, report, rows)
        return rows

    return DistillationResult(run, report, call_on_main_process(compare))


def check(
    folder: Path,
    teacher: Sequence[Path],
    arguments: DistillationArguments,
    data: StudentDataArguments,
    model: ModelArguments,
    args: TranslationTrainingArguments,
) -> None:
    """Check the arguments before the teacher translates.

    Raises:
        ValueError: an argument or a corpus is invalid.
    """
    for path in teacher:
        if not (path / "config.json").is_file():
            raise ValueError(f"teacher must be folders with a saved model and its tokenizer, got {str(path)!r}.")
        if path.resolve() == folder.resolve():
            raise ValueError(f"output_dir must differ from teacher, got {str(folder)!r} for both.")
    for name in ("train_weights", "train_temperature"):
        if getattr(data, name) is not None:
            raise ValueError(f"{name} must be unset in a distillation, got {getattr(data, name)}.")
    training_languages(data)
    if arguments.interpolate and not data.corpora("train"):
        raise ValueError(
            "source_file and target_file, train_file or dataset_name must be given with interpolate, got no pairs."
        )
    if (count := len(data.corpora("test"))) != 1:
        raise ValueError(f"test_source_file and test_target_file, or test_file, must be one test set, got {count}.")
    if (folder / MANIFEST).is_file() and not (folder / WORK).is_dir():
        raise ValueError(f"output_dir must be new or contain an earlier distillation, got {folder} with another run.")
    if arguments.restart and (folder / MANIFEST).is_file():
        raise ValueError(
            "restart must be False after the training of the student has begun, got True: use another output_dir."
        )
    if model.lora_rank is not None:
        raise ValueError(f"lora_rank must be unset in a distillation, got {model.lora_rank}.")
    corpora = {split: data.corpora(split) for split in ("train", "validation", "test")}
    check_run(data, model, args)
    check_languages(corpora, model)
    for corpus in chain.from_iterable(corpora.values()):
        if isinstance(corpus.text, ParallelText):
            corpus.text.require_files()
        report = validate(corpus.text)
        raise_if_invalid(report, data.on_invalid)
        raise_if_empty(report)
    check_positions(model, [*corpora["validation"], *corpora["test"]])


def check_positions(model: ModelArguments, corpora: Sequence[CorpusSpec]) -> None:
    """Check that learned positions of the student cover its validation and test sets, if its tokenizer exists.

    `train_translation` checks this too, but after the teacher has translated.

    Raises:
        ValueError: a text is longer.
    """
    if model.tokenizer is None:
        return
    tokenizer = load_tokenizer(model.tokenizer, model.special_tokens or ())
    config = model.config(len(tokenizer))
    if config.position_embedding != "learned":
        return
    for corpus in corpora:
        source_lang, target_lang = corpus.languages or (None, None)
        with languages_of_pair(tokenizer, source_lang, target_lang):
            tokenized = (
                encode_texts(tokenizer, source, text_target=target, verbose=False)
                for source, target in pairs_of([corpus])
            )
            longest = max(len(tokens[side]) for tokens in tokenized for side in ("input_ids", "labels"))
        check_longest(longest, f"the tokens of the longest text of {corpus}", config)


def training_languages(data: StudentDataArguments) -> Languages | None:
    """The language codes of the training set, if it has some.

    Raises:
        ValueError: there are several directions.
    """
    source, target = (set(codes or ()) for codes in (data.source_lang, data.target_lang))
    if max(len(source), len(target)) > 1:
        raise ValueError(
            "source_lang and target_lang must be one language each in a distillation, got "
            f"{data.source_lang} and {data.target_lang}."
        )
    return (source.pop(), target.pop()) if source and target else None


@dataclass(frozen=True)
class Comparison:
    """The comparison of a finished student with its teacher.

    Attributes:
        folder: the output folder.
        teacher: the folders of the teacher.
        test: the test set.
        args: the training arguments, with the options of evaluation.
    """

    folder: Path
    teacher: Sequence[Path]
    test: CorpusSpec
    args: TranslationTrainingArguments

    def rows(self, report: SyntheticReport) -> list[Row]:
        """The rows of teacher and student in each dtype; finished ones are read from the record."""
        record, inputs = self.folder / RECORD, self.inputs()
        content: dict[str, Any] = {
            "teacher": [str(path) for path in self.teacher],
            **asdict(report),
            "synthetic": report.synthetic,
            "synthetic_share": report.synthetic_share,
            "inputs": inputs,
        }
        earlier = json.loads(record.read_bytes()) if record.is_file() else {}
        is_same = earlier.get("inputs") == inputs
        rows = [Row(**row) for row in earlier["rows"]] if is_same else []
        if not (is_same and (self.folder / INT8).is_dir()):
            self.export_int8()
        test_set, finished = self.test_set(), {row.dtype for row in rows}
        for dtype, models in self.models_by_dtype().items():
            if dtype not in finished:
                rows += test_set.compare(models, dtype, self.args.device)
                rows_so_far = {"rows": [asdict(row) for row in rows]}
                write_atomically(record, [json.dumps(content | rows_so_far, indent=2).encode()])
        return sorted(rows, key=lambda row: row.model != "teacher")

    def inputs(self) -> dict[str, Any]:
        """Everything that determines the scores."""
        weights = [file_digest(path) for folder in (*self.teacher, self.folder) for path in weight_files(folder)]
        return {"weights": weights, "test set": fingerprint([self.test]), **self.args.generation_kwargs}

    def test_set(self) -> TestSet:
        """The valid pairs of the test set, without a limit on their length, as in the evaluation of the training.

        Learned positions of a model truncate longer sources.
        """
        pairs = list(pairs_of([self.test]))
        return TestSet(
            sources=[source for source, _ in pairs],
            references=[target for _, target in pairs],
            options={**self.args.generation_kwargs, "max_source_tokens": sys.maxsize},
            languages=self.test.languages,
        )

    def models_by_dtype(self) -> dict[str, dict[str, Sequence[Path]]]:
        """The folders of the models that can be compared in each dtype, by name."""
        models: dict[str, Sequence[Path]] = {"teacher": self.teacher, "student": [self.folder]}
        dtypes = {name: usable_dtypes(list(map(model_type, models[name])), self.args.device) for name in models}
        return {dtype: {name: models[name] for name in models if dtype in dtypes[name]} for dtype in dtypes["student"]}

    def export_int8(self) -> None:
        """Save the student in int8, in a folder that replaces that of an earlier call."""
        shutil.rmtree(self.folder / INT8, ignore_errors=True)
        quantized, tokenizer = load_translator(self.folder, "int8")
        with new_folder(self.folder / INT8) as temporary, silence_transformers():
            quantized.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)


def weight_files(folder: Path) -> list[Path]:
    """The files of a saved model's weights."""
    return sorted(folder.glob("*.safetensors"))


def model_type(folder: Path) -> str:
    """The architecture of a saved model."""
    return AutoConfig.from_pretrained(folder).model_type


def add_to_card(path: Path, arguments: DistillationArguments, report: SyntheticReport, rows: Sequence[Row]) -> None:
    """Add the section about the distillation to the student's model card, or replace it."""
    card = ModelCard.load(path)
    teacher = ", ".join(f"`{Path(name).name}`" for name in arguments.teacher)
    method = "interpolation" if arguments.interpolate else "knowledge distillation"
    lines = [
        SECTION,
        f"Trained on translations of {teacher} ({len(arguments.teacher)} model"
        f"{'s' if len(arguments.teacher) > 1 else ''}, {arguments.teacher_num_beams} beams): sequence-level {method} "
        "(Kim & Rush 2016).",
        "",
        f"{report}.",
        "",
        table(rows),
        "",
        "On the test set, with the beam size of the evaluation. The folder `int8` contains the student in int8.",
    ]
    body = str(card).partition(SECTION)[0].rstrip("\n")
    write_atomically(path, ["\n".join([body, "", *lines, ""]).encode()])

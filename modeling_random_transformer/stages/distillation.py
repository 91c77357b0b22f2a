"""Sequence-level knowledge distillation (Kim & Rush 2016): a student is trained on the translations of a teacher.

The stages: the teacher translates → the training set is selected → the student is trained → it is exported to int8 →
teacher and student are compared. `distillation/job.json` in the output folder records them, and the same call resumes.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from ..base.digests import weight_file_digests
from ..base.distributed import call_on_main_process
from ..base.files import folder_size
from ..base.jobs import Job
from ..base.markdown import markdown_table
from ..base.saved_files import JOB_RECORD, SAVED_WEIGHTS, TRAINING_RECORD
from ..data.sources import Corpus, Pair, pairs_of
from ..data.validation import validate
from ..inference import translate
from ..inference.evaluation import score
from ..inference.loading import load_models, load_translator, silence_transformers
from ..inputs_random_transformer import Languages
from ..training.arguments import ARGUMENT_PREFIXES, DataArguments, ModelArguments, check_unset
from ..training.checkpoints import save_atomically
from ..training.checks import check_arguments, check_languages_of_sets
from ..training.model_card import CARD, set_section
from ..training.run import train_translation
from ..training.run_record import final_search, fingerprint
from ..training.run_state import RunResult
from ..training.training_arguments import TranslationTrainingArguments
from .training_set import DistillationArguments, SyntheticReport, TrainingSet

WORK, INT8 = "distillation", "int8"
WARM_UP = 8  # texts that are translated before the time is measured

Model = tuple[str, str, Sequence[Path]]  # name, dtype and folders of a model or an ensemble


@dataclass
class ModelScores:
    """The result of a model in one dtype.

    Attributes:
        model: `"teacher"` or `"student"`.
        dtype: dtype of the weights.
        bleu: BLEU, 0 to 100.
        chrf: chrF++, 0 to 100.
        sentences_per_second: throughput on the test set.
        megabytes: size of the saved weights (10⁶ bytes).
        signature: sacrebleu's signature of BLEU.
    """

    model: str
    dtype: str
    bleu: float
    chrf: float
    sentences_per_second: float
    megabytes: float
    signature: str


def compare_saved(
    models: Sequence[Model],
    pairs: Sequence[Pair],
    languages: Languages,
    device: torch.device,
    options: dict[str, Any],
    bleu_tokenize: str | None,
) -> list[ModelScores]:
    """Translate a test set with saved models or ensembles.

    Sentences of any length are translated, as in evaluation during training. Only learned positions truncate them.

    Args:
        models: name, dtype and folders of each model.
        pairs: the test set.
        languages: languages of the test set, for models with language tags.
        device: where the models run.
        options: the options of `translate`.
        bleu_tokenize: sacreBLEU's tokenizer; by default that of the target language.
    """
    sources, references = zip(*pairs, strict=True)
    rows = []
    for name, dtype, folders in models:
        model, tokenizer = load_models(folders, dtype, device, argument=name)
        search = {**options, **languages.arguments_for(tokenizer), "max_source_tokens": sys.maxsize}
        translate(sources[:WARM_UP], model, tokenizer, **search)
        start = time.perf_counter()
        texts = translate(sources, model, tokenizer, **search)
        seconds = time.perf_counter() - start
        language = languages.target or getattr(tokenizer, "tgt_lang", None)
        scores = score(texts, references, language=language, tokenize=bleu_tokenize)
        row = ModelScores(
            name,
            dtype,
            bleu=scores["bleu"]["score"],
            chrf=scores["chrf"]["score"],
            sentences_per_second=len(sources) / seconds,
            megabytes=sum(folder_size(folder, SAVED_WEIGHTS) for folder in folders),
            signature=scores["bleu"]["signature"],
        )
        rows.append(row)
    return rows


def scores_table(rows: Sequence[ModelScores]) -> str:
    """The rows as a Markdown table."""
    lines = [
        (
            row.model,
            row.dtype,
            f"{row.bleu:.2f}",
            f"{row.chrf:.2f}",
            f"{row.sentences_per_second:.1f}",
            f"{row.megabytes:.1f}",
        )
        for row in rows
    ]
    return markdown_table(("model", "dtype", "BLEU", "chrF++", "sentences/s", "MB"), lines)


@dataclass
class StudentDataArguments(DataArguments):
    """The validation and test sets of the student, and optionally original pairs to add to the training set."""

    requires_train: ClassVar[bool] = False

    def with_training_set(self, source: Path, target: Path, languages: Languages) -> DataArguments:
        """The same sets, with two aligned files as the training set."""
        train = {"source_file": str(source), "target_file": str(target), "train_file": None}
        codes = {"source_lang": languages.source, "target_lang": languages.target}
        return self.with_sets(**train, **codes)


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
    rows: list[ModelScores]


def distill(
    arguments: DistillationArguments,
    data_args: StudentDataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
) -> DistillationResult:
    """Train a student on the translations of a teacher, and compare both, or resume an earlier call.

    Afterwards, `args.output_dir` contains the student as `train_translation` saves it, its int8 version in `int8`, the
    student's training set in `distillation`, and the comparison in the model card and in `distillation/job.json`.

    Args:
        arguments: the teacher, the texts to translate and the selection of the translations.
        data_args: a test set or a validation set for the comparison, or both sets, and optionally original pairs to add
            to the training set.
        model_args: the architecture of the student. It has the teacher's tokenizer, unless `tokenizer`, `vocab_size` or
            `model_name_or_path` is given.
        args: the training arguments of the student.

    Raises:
        ValueError: an argument, a text or a corpus is invalid, or the folder contains a different run.
        FloatingPointError: the loss of the student is not finite.
        OSError: a file cannot be read or written.
    """
    folder = Path(args.output_dir)
    teacher = [Path(name) for name in arguments.teacher]
    if model_args.saved_tokenizer is None and model_args.vocab_size is None:
        model_args = replace(model_args, tokenizer=str(teacher[0]))
    check_distillation(folder, arguments, data_args, model_args, args)
    test = comparison_set(data_args)
    has_run = (folder / TRAINING_RECORD).is_file()
    training_set = TrainingSet(folder / WORK, arguments, data_args.corpora("train"), has_run)
    teacher_model, tokenizer = load_models(teacher, arguments.teacher_dtype, args.device, argument="teacher")
    report = training_set.make(teacher_model, tokenizer, data_args.max_source_length, test.languages)
    del teacher_model
    run = train_translation(data_args.with_training_set(*training_set.files, test.languages), model_args, args)
    rows = export_and_compare(folder, teacher, test, args)
    call_on_main_process(lambda: add_to_card(folder / CARD, arguments, report, rows))
    return DistillationResult(run, report, rows)


def export_and_compare(
    folder: Path, teacher: Sequence[Path], test: Corpus, args: TranslationTrainingArguments
) -> list[ModelScores]:
    """Export the trained student in `folder` to int8, and score teacher and student; finished stages are skipped."""
    job = Job(folder / WORK / JOB_RECORD)
    student_weights = [*weight_file_digests(folder).values()]
    files = [folder / INT8 / name for name in (CONFIG_NAME, SAFE_WEIGHTS_NAME)]
    job.run("int8", {"weights": student_weights}, lambda: export_int8(folder), files, repeats_if_changed=True)

    search = call_on_main_process(lambda: final_search(args, Job(folder / TRAINING_RECORD)))

    def compare_models() -> dict[str, Any]:
        models = [
            ("teacher", "float32", teacher),
            ("student", "float32", [folder]),
            ("student", "int8", [folder / INT8]),
        ]
        pairs = [*pairs_of([test])]
        rows = compare_saved(models, pairs, test.languages, args.device, search, args.bleu_tokenize)
        return {"rows": [asdict(row) for row in rows]}

    teacher_weights = chain.from_iterable(weight_file_digests(path).values() for path in teacher)
    inputs = {
        "weights": [*teacher_weights, *student_weights],
        "test set": fingerprint([test]),
        "bleu_tokenize": args.bleu_tokenize,
        **search,
    }
    facts = job.run("comparison", inputs, compare_models, repeats_if_changed=True)
    return [ModelScores(**row) for row in facts["rows"]]


def comparison_set(data_args: DataArguments) -> Corpus:
    """The test set, or without one the validation set.

    Raises:
        ValueError: the set has several corpora.
    """
    corpora = data_args.corpora("test") or data_args.corpora("validation")
    if len(corpora) != 1:
        raise ValueError(
            "test_source_file and test_target_file, or test_file, must be one test set, or without one, there must be "
            f"one validation set, got {len(corpora)} sets."
        )
    return corpora[0]


def check_distillation(
    folder: Path,
    arguments: DistillationArguments,
    data_args: StudentDataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
) -> None:
    """Check the arguments and the texts before the teacher translates.

    Raises:
        ValueError: an argument or a corpus is invalid.
    """
    check_unset(model_args, "lora_rank", "in a distillation")
    check_unset(data_args, "train_weights", "in a distillation")
    for teacher in arguments.teacher:
        if not (Path(teacher) / CONFIG_NAME).is_file():
            raise ValueError(f"teacher must be folders with a saved model and its tokenizer, got {teacher!r}.")
    languages = comparison_set(data_args).languages
    corpora = {split: data_args.corpora(split) for split in ARGUMENT_PREFIXES}
    if any(corpus.languages != languages for corpus in corpora["train"]):
        raise ValueError(
            "source_lang and target_lang must be those of the test set in a distillation, "
            f"got {data_args.source_lang} and {data_args.target_lang}."
        )
    if arguments.interpolate and not corpora["train"]:
        raise ValueError("source_file and target_file, or train_file, must be given with interpolate, got no pairs.")
    has_run = (folder / TRAINING_RECORD).is_file()
    has_model = has_run or (folder / CONFIG_NAME).is_file() or (folder / INT8).exists()
    if has_model and not (folder / WORK).is_dir():
        raise ValueError(f"output_dir must be new or contain an earlier distillation, got {folder} with another model.")
    if arguments.restart and has_run:
        raise ValueError(
            "restart must be False after the training of the student has begun, got True: use another output_dir."
        )
    tokenizer = check_arguments(data_args, model_args, args)
    check_languages_of_sets(corpora, model_args, tokenizer)
    for corpus in chain.from_iterable(corpora.values()):
        corpus.require_files()
        validate(corpus, data_args.on_invalid)


def export_int8(folder: Path) -> None:
    """Save the student in int8. The files replace those of an earlier call."""
    quantized, tokenizer = load_translator(folder, "int8")
    with save_atomically(folder / INT8) as temporary, silence_transformers():
        quantized.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def add_to_card(
    path: Path, arguments: DistillationArguments, report: SyntheticReport, rows: Sequence[ModelScores]
) -> None:
    """Add the section about the distillation to the student's model card, or replace it."""
    teacher = ", ".join(f"`{Path(name).name}`" for name in arguments.teacher)
    method = "interpolation" if arguments.interpolate else "knowledge distillation"
    section = f"""Trained on translations of {teacher} ({arguments.teacher_num_beams} beams): sequence-level {method} \
(Kim & Rush 2016).

{report}.

{scores_table(rows)}

On the test or validation set, with the beams of the evaluation. The student in int8 is in `int8`."""
    set_section(path, "## Distillation\n", section)

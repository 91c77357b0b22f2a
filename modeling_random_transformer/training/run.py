"""A training run, from parallel text to a scored model: `train_translation`.

The stages: prepare the data → build the model → train → average checkpoints → save → score → write the model card.
The manifest in the output folder records the progress, so that the same call resumes an interrupted run.
"""

import copy
import json
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.trainer_utils import IntervalStrategy

from .. import __version__
from ..data.mixing import CorpusSpec
from ..data.sources import ParallelLine
from ..data.validation import ValidationReport
from ..inference.evaluation import score, translation_metrics
from ..ops_random_transformer import supports_native_matmul
from ..pipeline_random_transformer import language_id, tokenizer_languages
from ..utils.distributed import call_on_main_process
from .arguments import DataArguments, ModelArguments
from .checkpoints import STREAM_REPORT, best_of, is_last, load_average, newest_complete, save_atomically, step_of
from .ema import load_ema
from .languages import check_languages
from .manifest import Manifest, RunResult, check_shared, fingerprint, fixed_values, free_values, locked, open_manifest
from .model_card import CARD, write_model_card
from .model_init import build_model, check_arguments, check_checkpoint
from .preparation import PreparedData, TokenizedSet, check_lengths, prepare_data
from .recipe import TranslationTrainingArguments
from .sets import sets_of, validation_sets, with_digests, with_means
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """The inputs of a run and the record of its progress.

    Args:
        data_args: the parallel text.
        model_args: the tokenizer and the initial model.
        args: the training arguments.
        corpora: the corpora of each set, by its name: those of `"train"`, and one of each validation and test set.
        manifest: the manifest in the output folder, the same in every process.
    """

    data_args: DataArguments
    model_args: ModelArguments
    args: TranslationTrainingArguments
    corpora: dict[str, list[CorpusSpec]]
    manifest: Manifest

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.args.output_dir)


def train_translation(data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> RunResult:
    """Train a translation model and score it, or resume an earlier run in the same folder.

    Afterwards, `args.output_dir` contains the model or the adapter (the average of the last checkpoints, the EMA, or
    the best checkpoint), the tokenizer, the generation settings, a model card and the manifest. `from_pretrained` loads
    it.

    A finished run is not trained again. Only sets without scores are scored.

    Args:
        data: the parallel text.
        model: the tokenizer and the architecture, or the saved model to fine-tune.
        args: the training arguments.

    Raises:
        ValueError: an argument or a line of a corpus is invalid, the folder contains a run with other arguments or
            data, or another run uses the folder.
        FloatingPointError: the loss is not finite.
        OSError: a checkpoint or the model could not be saved; earlier checkpoints are complete.
    """
    check_arguments(model, args)
    check_evaluation(data, args)
    warn_if_slow(args)
    set_seed(args.seed)
    corpora = sets_of(data)  # file locks of datasets, which have no timeout, let one process download
    check_languages(corpora, model)
    with locked(Path(args.output_dir)):
        corpora = with_digests(corpora)
        manifest = call_on_main_process(
            lambda: open_manifest(
                Path(args.output_dir), fixed_values(data, model, args, corpora), free_values(args, __version__)
            )
        )
        check_shared(Path(args.output_dir))
        return _execute(Run(data, model, args, corpora, manifest))


def warn_if_slow(args: TranslationTrainingArguments) -> None:
    """Warn about bf16 on a CPU without instructions for it."""
    if args.bf16 and args.device.type == "cpu" and not supports_native_matmul(torch.bfloat16):
        logger.warning("bf16=True: this CPU has no instructions for bf16; training in float32 is many times faster.")


def check_evaluation(data_args: DataArguments, args: TranslationTrainingArguments) -> None:
    """Raise a `ValueError` if an evaluation during training has no validation set."""
    if args.eval_strategy != "no" and not data_args.has("validation"):
        raise ValueError(
            f"eval_strategy must be 'no' without a validation set, got {IntervalStrategy(args.eval_strategy).value!r}."
        )


def _execute(run: Run) -> RunResult:
    """Run the remaining stages."""
    needs_training = run.manifest.finished is None
    settings = call_on_main_process(lambda: _evaluation_settings(run))
    unscored = [name for name in settings if run.manifest.score_of(name, settings[name]) is None]
    if not needs_training:
        logger.warning("%s contains a finished run: training is skipped.", run.folder)
    reports: list[ValidationReport] = []
    if needs_training or unscored:
        data = _prepare_data(run, names=run.corpora if needs_training else unscored)
        reports = data.reports
        trainer = _build_trainer(run, data, evaluation_only=not needs_training)
        if needs_training:
            training = _train(run, trainer)
            _average_checkpoints(run, trainer)
            _save_model(run, trainer)
            _record_model(run, trainer, data, training)
        else:
            _load_weights(trainer, [run.folder])
        for name in unscored:
            metrics = _score(trainer, data.sets[name])
            run.manifest.scores[name] = {"scored": settings[name], "metrics": metrics}
            _write_manifest(run)
        if run.args.push_to_hub and needs_training:
            trainer.push_to_hub()
    result = _result(run, settings, reports)
    if run.args.process_index == 0 and (needs_training or unscored or not (run.folder / CARD).is_file()):
        write_model_card(run.folder / CARD, result, run.data_args, run.model_args, run.args, run.manifest.history)
    return result


def _evaluation_settings(run: Run) -> dict[str, dict[str, Any]]:
    """All settings that determine the scores of the validation and test sets, except the model."""
    return {
        name: {"set": fingerprint(corpora), "on_invalid": run.data_args.on_invalid, **run.args.generation_kwargs}
        for name, corpora in run.corpora.items()
        if name != "train"
    }


# Data and model


def _prepare_data(run: Run, names: Collection[str]) -> PreparedData:
    return prepare_data(run.corpora, run.data_args, run.model_args, run.args, run.manifest, list(names))


def _build_trainer(run: Run, data: PreparedData, evaluation_only: bool) -> TranslationTrainer:
    """The initial model in a trainer."""
    model = build_model(run.model_args, run.args, data.tokenizer)
    if (code := getattr(data.tokenizer, "tgt_lang", None)) is not None:  # the default of the saved model
        model.generation_config.forced_bos_token_id = language_id(data.tokenizer, code)
    check_lengths(data.sets, model.config)
    if data.tokenizer.model_max_length == VERY_LARGE_INTEGER:  # no limit
        # Saved with the model, so that the pipeline rejects longer texts instead of running out of memory.
        data.tokenizer.model_max_length = model.config.max_position_embeddings
    args = run.args
    if evaluation_only:
        args = copy.copy(args)
        args.eval_strategy, args.load_best_model_at_end, args.early_stopping_patience = IntervalStrategy.NO, False, None
    train = data.sets.get("train")
    return TranslationTrainer(
        model,
        args,
        train_dataset=data.stream if train is None else train.tokens,
        train_weights=data.train_weights,
        run_id=run.manifest.run_id,
        eval_dataset=validation_sets(data.sets),
        processing_class=data.tokenizer,
        compute_metrics=translation_metrics(data.tokenizer),
    )


# Training


@dataclass
class Training:
    """The length of the training: its optimizer steps, and its time in this process in seconds."""

    steps: int
    seconds: float


def _train(run: Run, trainer: TranslationTrainer) -> Training:
    """Train from the newest checkpoint to the last step."""
    newest = call_on_main_process(lambda: newest_complete(run.folder))
    named = run.args.resume_from_checkpoint
    start = Path(named) if newest is None and isinstance(named, str) else newest
    if start is not None:
        check_checkpoint(start, trainer.model)
    if newest is not None and is_last(newest, run.args.max_steps, run.args.num_train_epochs):
        return Training(step_of(newest), 0.0)  # an earlier process was stopped before it had saved the model
    begin = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(start) if start != newest else True)
    return Training(trainer.state.global_step, time.perf_counter() - begin)


def _average_checkpoints(run: Run, trainer: TranslationTrainer) -> None:
    """Load the mean of the last checkpoints or the EMA, or the best checkpoint with `load_best_model_at_end`."""
    has_trained = trainer.state.global_step > 0  # in this process, so the model has its last or best weights
    checkpoints = trainer.last_checkpoints(run.args.average_last)
    if run.args.load_best_model_at_end:
        if has_trained:
            return
        best = best_of(checkpoints[-1])
        checkpoints = checkpoints if best is None else [best]
    if run.args.ema_decay is not None and not has_trained:
        load_ema(trainer.model, checkpoints[-1])
    elif len(checkpoints) > 1 or not has_trained:
        _load_weights(trainer, checkpoints)


def _load_weights(trainer: TranslationTrainer, folders: Sequence[Path]) -> None:
    load_average(trainer.accelerator.unwrap_model(trainer.model), folders)


def _save_model(run: Run, trainer: TranslationTrainer) -> None:
    """Save the final model into the output folder atomically."""
    trainer.accelerator.wait_for_everyone()
    with save_atomically(run.folder, is_writer=run.args.process_index == 0) as temporary:
        # An internal call does not push to the Hub: an upload can fail, and the scores are not available yet.
        trainer.save_model(str(temporary), _internal_call=True)
        trainer.accelerator.wait_for_everyone()


def _record_model(run: Run, trainer: TranslationTrainer, data: PreparedData, training: Training) -> None:
    """Record in the manifest that the final model is saved."""
    sizes, reports, tags = data.corpus_sizes, data.reports, _tags(data.tokenizer)
    if data.stream is not None:
        report = _stream_report(run, data.stream.report)
        reports = [*reports, report]
        if len(sizes) == 1:  # without pairs that are too long, which are not counted by corpus
            sizes = [report.lines - report.invalid]
    _write_manifest(
        run,
        steps=training.steps,
        seconds=training.seconds,
        parameters=trainer.model.num_parameters(),
        trained=trainer.get_num_trainable_parameters(),
        pairs=sum(sizes),
        learning_rate=trainer.args.learning_rate,
        world_size=run.args.world_size,
        corpora=[
            {
                "name": str(corpus),
                "languages": corpus.languages,
                "pairs": size,
                "weight": corpus.weight,
                "tag": _tag_of(corpus, tags),
            }
            for corpus, size in zip(data.corpora, sizes, strict=True)
        ],
        reports=[asdict(report) for report in reports],
    )


def _tags(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The extra special tokens of a tokenizer, such as `<bt>`, except the tags of languages."""
    languages = {language_id(tokenizer, code) for code in tokenizer_languages(tokenizer)}
    tokens = map(str, tokenizer.extra_special_tokens)
    return [token for token in tokens if tokenizer.convert_tokens_to_ids(token) not in languages]


def _tag_of(corpus: CorpusSpec, tags: Sequence[str]) -> str | None:
    """The tag that begins the first source, such as that of a back-translated corpus; `None` for none."""
    first = next(corpus.text.lines(), None)
    source = first.source if isinstance(first, ParallelLine) else ""
    return next((tag for tag in tags if source.startswith(tag)), None)


def _stream_report(run: Run, report: ValidationReport) -> ValidationReport:
    """The report of a streamed training set. If this process trained no step, the newest checkpoint contains it."""
    newest = newest_complete(run.folder)
    if report.lines or newest is None or not (newest / STREAM_REPORT).is_file():
        return report
    return ValidationReport(**json.loads((newest / STREAM_REPORT).read_bytes()))


# Scores and records


def _score(trainer: TranslationTrainer, tokenized: TokenizedSet) -> dict[str, Any]:
    """Compute BLEU and chrF++ of the generated translations against the untokenized references."""
    output = trainer.predict(tokenized.tokens, **trainer.args.generation_kwargs)
    ids = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    translations = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    return score(translations, tokenized.pairs["target"][:])


def _write_manifest(run: Run, **finished: Any) -> None:
    """Write the manifest in the first process; `finished` describes the saved model."""

    def write() -> Manifest:
        if finished:
            run.manifest.finish(run.folder, **finished)
        else:
            run.manifest.write(run.folder)
        return run.manifest

    run.manifest = call_on_main_process(write)


def _result(run: Run, names: Collection[str], new_reports: Sequence[ValidationReport]) -> RunResult:
    """The result of a finished run, from its manifest and the reports of this call."""
    finished = {name: value for name, value in (run.manifest.finished or {}).items() if name != "files"}
    reports = {report["name"]: ValidationReport(**report) for report in finished.pop("reports")}
    reports |= {report.name: report for report in new_reports}
    scores = with_means({name: run.manifest.scores[name]["metrics"] for name in names})
    return RunResult(folder=run.folder, **finished, reports=list(reports.values()), scores=scores)

"""A training run, from parallel text to a scored model: `train_translation`.

The stages: prepare the data → build the model → train → average checkpoints → save → choose the search → score, and
calibrate the confidence → write the model card. The record in the output folder (`base/jobs.py`) contains the
progress, so that the same call resumes an interrupted run.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import TrainerState

from ..base import load_extra
from ..base.distributed import call_on_main_process, exclusive
from ..base.flags import from_values
from ..base.jobs import Job
from ..base.saved_files import SAVED_WEIGHTS, TRAINING_RECORD
from ..data.validation import ValidationReport
from ..inference.calibration import CalibrationError, calibrate, check_pairs
from ..inference.confidence import calibration_file
from ..inference.evaluation import decode_rows, score, target_language, translation_metrics
from ..inference.loading import force_target_language, load_translator, set_source_limit
from .advice import AdviceCallback
from .arguments import DataArguments, ModelArguments, split_and_label
from .callbacks import TimeCallback
from .checkpoints import (
    check_optimizer,
    complete_checkpoints,
    load_average,
    newest_complete,
    save_atomically,
    state_of,
)
from .checks import check_arguments, check_languages_of_sets
from .model_card import CARD, hardware, write_card
from .model_init import build_model, set_generation_config
from .preparation import PreparedData, check_lengths, prepare_data
from .run_record import TRAINING_LOCK, begin_training, final_search, fingerprint, validation_fingerprints
from .run_state import SEARCH_STAGE, Run, RunResult
from .trainer import TranslationTrainer
from .training_arguments import TranslationTrainingArguments

logger = logging.getLogger(__name__)


def train_translation(
    data_args: DataArguments, model_args: ModelArguments, args: TranslationTrainingArguments
) -> RunResult:
    """Train a translation model and score it, or resume an earlier run in the same folder.

    Afterwards, `args.output_dir` contains the model or the adapter (the average of the last checkpoints, or the best
    checkpoint), the tokenizer, the generation settings, a model card and the record. `from_pretrained` loads the
    folder.

    A finished run is not trained again. Only sets without scores are scored.

    Args:
        data_args: the parallel text.
        model_args: the tokenizer and the architecture, or the saved model to fine-tune.
        args: the training arguments.

    Raises:
        ValueError: an argument or a line of a corpus is invalid, the folder contains a run with other arguments or
            data, or another run uses the folder.
        FloatingPointError: the loss is not finite.
        OSError: a checkpoint or the model could not be saved; earlier checkpoints are complete.
    """
    tokenizer = check_arguments(data_args, model_args, args)
    corpora = data_args.sets()  # file locks of datasets, which have no timeout, let one process download
    check_languages_of_sets(corpora, model_args, tokenizer)
    folder = Path(args.output_dir)
    with exclusive(
        folder / TRAINING_LOCK, f"output_dir must not be in use, got {folder} with another run in progress."
    ):
        job = Job(folder / TRAINING_RECORD, advice="use another output_dir")
        run = Run(data_args, model_args, args, corpora, job, tokenizer)
        job.update(lambda: begin_training(run))
        if not (folder / TRAINING_RECORD).is_file():
            raise ValueError(f"output_dir must be on a file system that all nodes share, got {folder}.")
        if run.training_stage.is_finished:
            return score_finished(run)
        return train_and_score(run)


def train_and_score(run: Run) -> RunResult:
    """Train the model of a run, save it, and score it on all sets."""
    data = prepare_data(run, list(run.corpora))
    trainer = make_trainer(run, data, run.args)
    trainer.add_callback(AdviceCallback(data))
    steps, seconds = train(run, trainer)
    load_final_weights(run, trainer)
    save_model(run, trainer)
    record_model(run, trainer, data, steps=steps, seconds=seconds)
    return score_sets(run, trainer, data, run.evaluation_sets)


def score_finished(run: Run) -> RunResult:
    """Score the saved model of a run on the sets without scores. Upload it on request: an upload may have failed."""
    names = call_on_main_process(lambda: unscored_sets(run))
    if not names and not run.args.push_to_hub:
        result = result_of(run, [])
        if not (run.folder / CARD).is_file():
            write_card(run, result)
        return result
    data = prepare_data(run, names)
    trainer = make_trainer(run, data, run.args.without_evaluation())
    load_average(trainer.accelerator.unwrap_model(trainer.model), [run.folder])
    return score_sets(run, trainer, data, names)


# The model


def make_trainer(run: Run, data: PreparedData, args: TranslationTrainingArguments) -> TranslationTrainer:
    """The trainer with the initial model."""
    model = build_model(run.model_args, args, data.tokenizer)
    check_lengths(data.tokens, model.config)
    # The model is saved with both settings.
    force_target_language(model, data.tokenizer)
    set_source_limit(model, data.tokenizer)
    compute_metrics = None
    if args.predict_with_generate and run.evaluation_sets:
        compute_metrics = translation_metrics(data.tokenizer, tokenize=args.bleu_tokenize)
    return TranslationTrainer(
        model,
        args,
        train_dataset=data.stream or data.tokens.get("train"),
        train_weights=data.train_weights,
        run_id=run.training_stage.facts["run_id"],
        eval_dataset=data.validation,
        processing_class=data.tokenizer,
        compute_metrics=compute_metrics,
    )


def train(run: Run, trainer: TranslationTrainer) -> tuple[int, float]:
    """Train from the newest checkpoint to the last step.

    Returns:
        The number of optimizer steps, and the training time in seconds, including earlier processes up to their last
        checkpoint.
    """
    newest = call_on_main_process(lambda: newest_complete(run.folder))
    timer = TimeCallback()
    if newest is not None:
        state = state_of(newest)
        timer.resume(state)
        if has_ended(state, run.args):  # an earlier process was stopped before it had saved the model
            return state.global_step, timer.seconds
        check_optimizer(newest)
    trainer.add_callback(timer)
    trainer.train(resume_from_checkpoint=True)
    return trainer.state.global_step, timer.total


def has_ended(state: TrainerState, args: TranslationTrainingArguments) -> bool:
    """Whether training ended with a checkpoint, at the last step or by early stopping."""
    is_last = state.global_step >= args.max_steps if args.max_steps > 0 else state.epoch >= args.num_train_epochs
    is_stopped = state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    return is_last or (is_stopped and state.global_step < state.max_steps)


def load_final_weights(run: Run, trainer: TranslationTrainer) -> None:
    """Load the mean of the last checkpoints, or the best checkpoint with `load_best_model_at_end`, if necessary."""
    has_trained = trainer.state.global_step > 0  # this process has trained, so the model has its last or best weights
    checkpoints = call_on_main_process(lambda: complete_checkpoints(run.folder)[-run.args.average_last :])
    if run.args.load_best_model_at_end:
        if has_trained:
            return
        best = state_of(checkpoints[-1]).best_model_checkpoint
        # Without an evaluation, the last one.
        checkpoints = [run.folder / Path(best).name] if best else checkpoints[-1:]
    if len(checkpoints) > 1 or not has_trained:
        load_average(trainer.accelerator.unwrap_model(trainer.model), checkpoints)


def save_model(run: Run, trainer: TranslationTrainer) -> None:
    """Save the final model into the output folder atomically."""
    trainer.accelerator.wait_for_everyone()
    with save_atomically(run.folder, is_writer=run.args.process_index == 0) as temporary:
        # An internal call does not push to the Hub: an upload can fail, and the scores are not available yet.
        trainer.save_model(str(temporary), _internal_call=True)
        trainer.accelerator.wait_for_everyone()


# Records


def record_model(run: Run, trainer: TranslationTrainer, data: PreparedData, **facts: Any) -> None:
    """Record that the final model is saved, and the facts of a `RunResult`."""
    sizes = data.corpus_sizes
    reports = [*data.reports]
    if data.stream is not None:
        report = data.stream.longest_report
        if report.lines:  # empty in a process that has not trained
            reports.append(report)
            if len(sizes) == 1:  # excludes pairs that are too long, which are not counted by corpus
                sizes = [report.valid]
    corpora = [
        {
            "name": str(corpus),
            "languages": corpus.languages.codes or None,
            "pairs": size,
            "weight": corpus.weight,
        }
        for corpus, size in zip(data.corpora, sizes, strict=True)
    ]
    facts |= {
        "parameters": trainer.model.num_parameters(),
        "trained": trainer.get_num_trainable_parameters(),
        "pairs": sum(sizes),
        "learning_rate": trainer.args.learning_rate,
        "world_size": run.args.world_size,
        "hardware": hardware(run.args),
        "corpora": corpora,
        "reports": [asdict(report) for report in reports],
        "overlap": data.overlap,
    }
    run.job.update(lambda: run.training_stage.finish(sorted(run.folder.glob(SAVED_WEIGHTS)), **facts))


# Scores


def score_sets(run: Run, trainer: TranslationTrainer, data: PreparedData, names: Sequence[str]) -> RunResult:
    """Score the trained model on sets, write the model card, and upload both on request."""
    trainer.args.predict_with_generate = True  # evaluation during training may compute the loss only
    trainer.args.prediction_loss_only = False
    save_search(run, trainer)
    for name in names:
        work = partial(score_set, run, trainer, data, name)
        # Other inputs are not an error: the set is scored again.
        run.job.run(score_stage(name), score_inputs(run, name), work, everywhere=True, repeats_if_changed=True)
    result = result_of(run, data.reports)
    write_card(run, result)
    if run.args.push_to_hub:
        trainer.push_to_hub()
    return result


def save_search(run: Run, trainer: TranslationTrainer) -> None:
    """Choose the length penalty and the patience of the trained model, unless they are given, and save them with it."""
    if not call_on_main_process(lambda: is_search_chosen(run)):
        choice = partial(load_extra("search_choice").choose_search, trainer)
        run.job.run(SEARCH_STAGE, search_inputs(run), choice, everywhere=True, repeats_if_changed=True)
    set_generation_config(trainer.model, **final_search(run.args, run.job))
    if run.model_args.lora_rank is None:  # an adapter has that of its base model
        call_on_main_process(lambda: trainer.model.generation_config.save_pretrained(run.folder))


def is_search_chosen(run: Run) -> bool:
    """Whether the options of the search are given, or were chosen for the trained model."""
    return not run.args.chooses_length_penalty or run.job.has_finished(SEARCH_STAGE, search_inputs(run))


def search_inputs(run: Run) -> dict[str, Any]:
    """The values that determine the choice of the search."""
    return {
        "weights": run.training_stage.files,
        "num_beams": run.args.num_beams,
        "metric": run.args.translation_metric,
        **validation_fingerprints(run),
    }


def unscored_sets(run: Run) -> list[str]:
    """The names of the sets without scores of the saved model with its search; all if the search is not chosen."""
    names = run.evaluation_sets
    if not is_search_chosen(run):
        return names
    return [name for name in names if not run.job.has_finished(score_stage(name), score_inputs(run, name))]


def score_stage(name: str) -> str:
    """The name of the stage that scores a set."""
    return f"score {name}"


def score_inputs(run: Run, name: str) -> dict[str, Any]:
    """The values that determine the scores of a set."""
    return {
        "weights": run.training_stage.files,
        "set": fingerprint(run.corpora[name]),
        "on_invalid": run.data_args.on_invalid,
        **final_search(run.args, run.job),
    }


def score_set(run: Run, trainer: TranslationTrainer, data: PreparedData, name: str) -> dict[str, Any]:
    """Compute BLEU and chrF++ of the generated translations, and calibrate the confidence on a validation set."""
    output = trainer.predict(data.tokens[name], **final_search(run.args, run.job))
    translations = decode_rows(trainer.processing_class, output.predictions)
    [pairs] = data.pairs[name]
    language = target_language(trainer.processing_class, data.tokens[name][0]["labels"])
    metrics = score(translations, pairs["target"][:], language=language, tokenize=run.args.bleu_tokenize)
    if is_only_validation(run, name):
        call_on_main_process(lambda: calibrate_saved(run, name, pairs, translations))
    return {"metrics": metrics}


def is_only_validation(run: Run, name: str) -> bool:
    """Whether a set is the only validation set of its direction. A folder has one calibration per direction."""
    names = run.validation_sets
    directions = [run.corpora[validation_set][0].languages for validation_set in names]
    return name in names and directions.count(run.corpora[name][0].languages) == 1


def calibrate_saved(run: Run, name: str, pairs: Dataset, translations: Sequence[str]) -> None:
    """Fit the confidence of the saved model on its translations of a validation set."""
    [corpus] = run.corpora[name]
    languages = corpus.languages.arguments
    rows = [*zip(pairs["source"][:], pairs["target"][:], strict=True)]
    try:
        check_pairs(rows, translations)  # before the model is loaded
        model, tokenizer = load_translator(run.folder)
        model.to(run.args.device)
        calibration = calibrate(model, tokenizer, rows, translations, **languages)
    except CalibrationError as error:
        logger.warning("The model has no confidence: %s", error)
        return
    calibration.save(run.folder, calibration_file(tokenizer, **languages))


def result_of(run: Run, new_reports: Sequence[ValidationReport]) -> RunResult:
    """The result of a finished run, from its record and the reports of this call."""
    facts = run.training_stage.facts
    recorded = [ValidationReport(**report) for report in facts["reports"]]
    reports = {report.name: report for report in (*recorded, *new_reports)}
    scores = {name: run.job.stages[score_stage(name)].facts["metrics"] for name in run.evaluation_sets}
    values = {"folder": run.folder, "reports": [*reports.values()], "scores": with_means(scores)}
    # `from_values` ignores facts that are not part of the result, such as `run_id`, and facts of earlier versions.
    return from_values(RunResult, facts | values)


def with_means(scores: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add the mean scores of several validation sets and of several test sets, such as `"test mean"`."""
    means = {}
    for split in ("validation", "test"):
        sets = [metrics for name, metrics in scores.items() if split_and_label(name)[0] == split]
        if len(sets) > 1:
            means[f"{split} mean"] = {
                metric: {
                    "score": fmean(metrics[metric]["score"] for metrics in sets),
                    "name": values["name"],
                    "signature": values["signature"],
                }
                for metric, values in sets[0].items()
            }
    return scores | means

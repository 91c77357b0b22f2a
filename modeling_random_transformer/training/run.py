"""A translator from parallel text, from the corpus to a scored folder: what `examples/train_translation.py` runs."""

import errno
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import IntervalStrategy

from .. import __version__
from ..data.batches import padding_multiple
from ..data.corpus import lengths_of, load_pairs, refuse_or_drop, tokenize_pairs
from ..data.report import Report
from ..data.sources import Corpus, ParallelText
from ..data.streaming import TokenBudgetStream
from ..evaluation import score, translation_metrics
from ..tokenization_random_transformer import RandomTransformerTokenizer
from ..translation.files import first_process_decides
from ..utils.errors import first_line
from .arguments import VOCAB_SIZE, DataArguments, ModelArguments
from .averaging import load_average
from .checkpoints import best_of, is_last, newest_complete, step_of
from .manifest import Manifest, file_digest, fingerprint, fixed_values, free_values, locked, open_manifest
from .model_card import CARD, write_model_card
from .model_init import build_model, check_checkpoint, check_start
from .recipe import TranslationTrainingArguments
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)
# The most pairs to learn a vocabulary from.
TOKENIZER_PAIRS = 1_000_000


@dataclass
class Result:
    """What came of a run.

    Args:
        folder: the output folder.
        seconds: time of training in the process that finished it.
        steps: optimizer steps.
        parameters: parameters of the model.
        trained: those of them that were trained.
        pairs: training pairs.
        learning_rate: the peak learning rate.
        world_size: processes that trained it.
        reports: what was found in each set.
        scores: the metrics of the validation and the test set.
    """

    folder: Path
    seconds: float
    steps: int
    parameters: int
    trained: int
    pairs: int
    learning_rate: float
    world_size: int
    reports: list[Report] = field(default_factory=list)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class PreparedSet:
    """A set as text and as token ids, row by row."""

    pairs: Dataset
    tokens: Dataset


def train_translation(data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> Result:
    """Train a translator and score it; resumes an earlier run in the same folder.

    The folder `args.output_dir` then holds the model, or its adapter (the mean of the last checkpoints, or the best
    one), its tokenizer, its generation settings, a model card and the manifest of the run. `from_pretrained` loads it.

    A run that is finished is not trained again: sets that were not scored yet are scored, and the model stays as it is.

    Args:
        data: the parallel text.
        model: tokenizer and sizes, or the saved translator to start from.
        args: the recipe.

    Raises:
        ValueError: an argument or a line of the corpus is invalid, the run in the folder is of other arguments or data,
            or another run uses the folder.
        FloatingPointError: the loss is not finite.
        OSError: a checkpoint or the model could not be saved; the checkpoints before are complete.
    """
    check_start(model, args)
    if args.eval_strategy != "no" and not data.has("validation"):
        raise ValueError(
            f"eval_strategy must be 'no' without a validation set, got {IntervalStrategy(args.eval_strategy).value!r}."
        )
    set_seed(args.seed)
    if args.bf16 and args.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        logger.warning("bf16=True: this CPU has no instructions for bf16. Without it, training is many times faster.")
    with args.main_process_first(desc="finding the corpus"):
        texts = {split: text for split in ("train", "validation", "test") if (text := data.text(split)) is not None}
    with locked(Path(args.output_dir)):
        return _Run(data, model, args, texts).result()


class _Run:
    """A run in a folder that no other run uses."""

    def __init__(
        self,
        data: DataArguments,
        model: ModelArguments,
        args: TranslationTrainingArguments,
        texts: dict[str, Corpus],
    ):
        self.data, self.model, self.args, self.texts = data, model, args, texts
        self.folder = Path(args.output_dir)
        self.reports: list[Report] = []
        self.manifest: Manifest = first_process_decides(
            lambda: open_manifest(self.folder, fixed_values(data, model, args, texts), free_values(args, __version__))
        )

    def result(self) -> Result:
        """Train where that is left to do, then score what is not scored yet."""
        trained = self._train() if self.manifest.finished is None else None
        if trained is None:
            logger.warning("%s holds a finished run; nothing is trained.", self.folder)
        scored = first_process_decides(self._what_to_score)
        missing = [split for split in scored if self.manifest.score_of(split, scored[split]) is None]
        if missing:
            trainer, sets = trained or self._load(missing)
            for split in missing:
                metrics = _score(trainer, sets[split])
                self.manifest.scores[split] = {"scored": scored[split], "metrics": metrics}
                self._write()
        if self.args.push_to_hub and trained is not None:
            trained[0].push_to_hub()
        result = self._result({split: self.manifest.scores[split]["metrics"] for split in scored})
        if self.args.process_index == 0 and (missing or trained is not None or not (self.folder / CARD).is_file()):
            command = shlex.join([sys.executable, *sys.argv])
            write_model_card(self.folder / CARD, result, self.model, self.args, command, self.manifest.history)
        return result

    def _what_to_score(self) -> dict[str, dict[str, Any]]:
        """Each set but the one for training, with what determines its score beside the model."""
        return {
            split: {"set": fingerprint(text), "on_invalid": self.data.on_invalid, **self.args.generation_kwargs}
            for split, text in self.texts.items()
            if split != "train"
        }

    def _result(self, scores: dict[str, dict[str, Any]]) -> Result:
        facts = {name: value for name, value in (self.manifest.finished or {}).items() if name != "files"}
        reports = {report["name"]: Report(**report) for report in facts.pop("reports")}
        reports |= {report.name: report for report in self.reports}
        return Result(folder=self.folder, **facts, reports=list(reports.values()), scores=scores)

    # Preparation

    def _read(self, splits: list[str], lines: int | None = None) -> dict[str, PreparedSet]:
        """Read and tokenize these sets; a training set that is streamed is not among them.

        Args:
            splits: the sets.
            lines: the number of lines of a training set that is not among them, if it is known.
        """
        # One process reads and tokenizes; the others wait for its files, and not in a barrier, which has a time limit.
        pairs: dict[str, Dataset] = {}
        for split in splits:
            logger.info("reading the %s set, %s", split, self.texts[split])
            pairs[split], report = load_pairs(self.texts[split], on_invalid=self.data.on_invalid)
            self.reports.append(report)
            lines = report.lines if split == "train" else lines
        self.tokenizer = self._tokenizer(lines)
        sets = {split: _tokenize(pairs[split], self.tokenizer, split, self.data, self.reports) for split in splits}
        if self.args.process_index == 0:
            for report in self.reports:
                logger.warning("%s", report)
        return sets

    def _tokenizer(self, lines: int | None) -> PreTrainedTokenizerBase:
        """The tokenizer that is given, or the one of this run, trained on the corpus."""
        given = self.model.model_name_or_path or self.model.tokenizer
        if given is not None:
            return AutoTokenizer.from_pretrained(given)
        first_process_decides(lambda: self._train_tokenizer(lines))
        return AutoTokenizer.from_pretrained(self.folder)

    def _train_tokenizer(self, lines: int | None) -> None:
        path = self.folder / "tokenizer.json"
        if self.manifest.tokenizer is not None and path.is_file():
            if file_digest(path) != self.manifest.tokenizer:
                raise ValueError(f"tokenizer must be the one of this run, got a {path} that has changed.")
            return
        tokenizer = RandomTransformerTokenizer.train(
            _both_sides(self.texts["train"], lines), vocab_size=self.model.vocab_size or VOCAB_SIZE
        )
        with new_files(self.folder) as unfinished:
            tokenizer.save_pretrained(unfinished)
        self.manifest.tokenizer = file_digest(path)
        self.manifest.write(self.folder)

    def _load(self, splits: list[str]) -> tuple[TranslationTrainer, dict[str, PreparedSet]]:
        """The finished model in a trainer that only scores, and these sets."""
        sets = self._read(splits)
        only_score: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
        trainer = self._trainer(replace(self.args, **only_score, early_stopping_patience=None))
        for split, prepared in sets.items():
            check_lengths(split, prepared.tokens, trainer.model.config)
        load_average(trainer.accelerator.unwrap_model(trainer.model), [self.folder])
        return trainer, sets

    def _trainer(
        self,
        args: TranslationTrainingArguments,
        train: Dataset | TokenBudgetStream | None = None,
        validation: PreparedSet | None = None,
    ) -> TranslationTrainer:
        return TranslationTrainer(
            build_model(self.model, self.args, self.tokenizer),
            args,
            train_dataset=train,
            eval_dataset=None if validation is None else validation.tokens,
            processing_class=self.tokenizer,
            compute_metrics=translation_metrics(self.tokenizer),
        )

    # Training

    def _train(self) -> tuple[TranslationTrainer, dict[str, PreparedSet]]:
        """Train, save the final model and record that it is finished."""
        streaming = self.data.streaming
        lines = _check_stream(self.texts["train"], self.data.on_invalid) if streaming else None
        sets = self._read([split for split in self.texts if split != "train" or not streaming], lines)
        train = (
            _stream(self.texts["train"], self.tokenizer, self.data, self.args) if streaming else sets["train"].tokens
        )
        trainer = self._trainer(self.args, train, sets.get("validation"))
        for split, prepared in sets.items():
            check_lengths(split, prepared.tokens, trainer.model.config)
        start = time.perf_counter()
        steps = self._train_to_the_end(trainer)
        seconds = time.perf_counter() - start
        self._save(trainer)
        if isinstance(train, TokenBudgetStream):
            self.reports.append(train.report)
            pairs = train.report.lines - train.report.broken
        else:
            pairs = len(train)
        self._write(
            seconds=seconds,
            steps=steps,
            parameters=trainer.model.num_parameters(),
            trained=trainer.get_num_trainable_parameters(),
            pairs=pairs,
            learning_rate=trainer.args.learning_rate,
            world_size=self.args.world_size,
            reports=[asdict(report) for report in self.reports],
        )
        return trainer, sets

    def _train_to_the_end(self, trainer: TranslationTrainer) -> int:
        """Train from where the run is and load the final weights; returns the number of steps."""
        args = self.args
        newest = first_process_decides(lambda: newest_complete(self.folder))
        named = args.resume_from_checkpoint
        start = Path(named) if newest is None and isinstance(named, str) else newest
        if start is not None:
            check_checkpoint(start, trainer.model)
        if newest is not None and is_last(newest, args.max_steps, args.num_train_epochs):
            # Training ended, but the process did before it had saved the model.
            best = best_of(newest) if args.load_best_model_at_end else None
            last = trainer.last_checkpoints(args.average_last) if best is None else [best]
            load_average(trainer.accelerator.unwrap_model(trainer.model), last)
            return step_of(newest)
        trainer.train(resume_from_checkpoint=str(start) if start != newest else True)
        last = trainer.last_checkpoints(args.average_last)
        if len(last) > 1 and not args.load_best_model_at_end:
            load_average(trainer.accelerator.unwrap_model(trainer.model), last)
        return trainer.state.global_step

    def _save(self, trainer: TranslationTrainer) -> None:
        """Save the final model, so that it is in the folder complete or not at all."""
        trainer.accelerator.wait_for_everyone()
        with new_files(self.folder, write=self.args.process_index == 0) as unfinished:
            # Not pushed from here: an upload may fail, and the scores are still to come.
            trainer.save_model(str(unfinished), _internal_call=True)
            trainer.accelerator.wait_for_everyone()

    def _write(self, **finished: Any) -> None:
        """Write the manifest; `finished` is what is known of the model that was saved."""

        def write() -> Manifest:
            if finished:
                self.manifest.finish(self.folder, **finished)
            else:
                self.manifest.write(self.folder)
            return self.manifest

        self.manifest = first_process_decides(write)


def _check_stream(text: Corpus, on_invalid: str) -> int | None:
    """The number of lines of files, checked before training rather than during it; `None` for a data set's stream."""
    if not isinstance(text, ParallelText):
        return None
    report = text.check()
    refuse_or_drop(report, on_invalid)
    return report.lines


def _both_sides(text: Corpus, lines: int | None) -> Iterator[str]:
    """Texts to learn a vocabulary from: every n-th pair of all lines; the first ones if their number is unknown."""
    step = 1 if lines is None else -(-lines // TOKENIZER_PAIRS)
    for line in islice(text.lines(), 0, TOKENIZER_PAIRS * step, step):
        yield from line[1:] if len(line) == 3 else ()


@contextmanager
def new_files(folder: Path, write: bool = True) -> Iterator[Path]:
    """A folder within `folder` to save to; then its files move into `folder`, one by one, the tokenizer last.

    Args:
        folder: where the files belong.
        write: whether this process moves them; another one of the same run does otherwise.

    Raises:
        OSError: they could not be saved; the message names the folder.
    """
    unfinished = folder / ".unfinished"
    if write:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a call that was killed
    try:
        yield unfinished
        if write:
            for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "tokenizer.json"):
                os.replace(path, folder / path.name)
    except (OSError, SafetensorError, RuntimeError) as error:
        code = getattr(error, "errno", None) or errno.EIO
        free = shutil.disk_usage(folder).free // 2**20
        raise OSError(code, f"files could not be saved in {folder} ({first_line(error)}; {free} MiB free)") from error
    finally:
        if write:
            shutil.rmtree(unfinished, ignore_errors=True)


def _tokenize(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, split: str, data: DataArguments, reports: list[Report]
) -> PreparedSet:
    # Nothing is cut from a validation or test set: its scores would be of another set.
    limits = (data.max_source_length, data.max_target_length) if split == "train" else (None, None)
    tokens, report = tokenize_pairs(
        pairs,
        tokenizer,
        max_source_length=limits[0],
        max_target_length=limits[1],
        num_proc=data.preprocessing_num_workers,
        name=f"{split} pairs",
    )
    if report.broken:
        reports.append(report)
    return PreparedSet(pairs, tokens)


def _stream(
    text: Corpus, tokenizer: PreTrainedTokenizerBase, data: DataArguments, args: TranslationTrainingArguments
) -> TokenBudgetStream:
    return TokenBudgetStream(
        text,
        tokenizer,
        args.max_tokens_per_batch,
        buffer_pairs=data.buffer_pairs,
        max_source_length=data.max_source_length,
        max_target_length=data.max_target_length,
        on_invalid=data.on_invalid,
        process_index=args.process_index,
        num_processes=args.world_size,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        pad_to_multiple_of=padding_multiple(args.device),
        num_workers=args.dataloader_num_workers,
    )


def check_lengths(split: str, tokens: Dataset, config: PretrainedConfig) -> None:
    """Check before training that the model has positions for every text of a set.

    Raises:
        ValueError: a text is longer.
    """
    longest = int(lengths_of(tokens).max())
    if config.position_embedding == "learned" and longest > config.max_position_embeddings:
        raise ValueError(
            f"max_position_embeddings must be at least {longest}, the longest text of the {split} set, got "
            f"{config.max_position_embeddings}."
        )


def _score(trainer: TranslationTrainer, given: PreparedSet) -> dict[str, Any]:
    """BLEU and chrF++ of the texts themselves."""
    output = trainer.predict(given.tokens, **trainer.args.generation_kwargs)
    ids = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    translations = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    return score(translations, given.pairs["target"][:])

"""A translator from parallel text, from the corpus to a scored folder: what `examples/train_translation.py` runs."""

import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..evaluation import score, translation_metrics
from ..tokenization_random_transformer import RandomTransformerTokenizer
from .arguments import VOCAB_SIZE, DataArguments, ModelArguments
from .averaging import load_average
from .batches import padding_multiple
from .card import write_card
from .corpus import load_pairs, refuse_or_drop, tokenize_pairs
from .network import check_start, starting_network
from .recipe import TranslationTrainingArguments
from .report import Report
from .sources import Corpus, ParallelText
from .streaming import TokenBudgetStream
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)
# The most pairs to learn a vocabulary from.
TOKENIZER_PAIRS = 1_000_000


@dataclass
class Result:
    """What came of a run."""

    folder: Path
    seconds: float
    steps: int
    parameters: int
    trained: int
    pairs: int
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)


@dataclass
class PreparedSet:
    """A set as text and as token ids, row by row."""

    pairs: Dataset
    tokens: Dataset


def train_translation(data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> Result:
    """Train a translator and score it; goes on where an earlier run in the same folder was stopped.

    The folder `args.output_dir` then holds the model, or its adapter (the mean of the last checkpoints, or the best
    one), its tokenizer, its generation settings and a model card. `from_pretrained` loads it.

    Args:
        data: the parallel text.
        model: tokenizer and sizes, or the saved translator to start from.
        args: the recipe.

    Raises:
        ValueError: an argument or a line of the corpus is refused.
        FloatingPointError: the loss is not finite.
        OSError: a checkpoint could not be saved; the one before is whole.
    """
    check_start(model, args)
    set_seed(args.seed)
    if args.bf16 and args.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        logger.warning("bf16=True: this CPU has no instructions for bf16. Without it, training is many times faster.")
    reports: list[Report] = []
    folder = Path(args.output_dir)
    with args.main_process_first(desc="finding the corpus"):
        texts = {split: text for split in ("train", "validation", "test") if (text := data.text(split)) is not None}
    # One process reads and tokenizes; the others wait for its files, and not in a barrier, which has a time limit.
    kept = {split: text for split, text in texts.items() if split != "train" or not data.streaming}
    pairs = {split: _load(text, split, data, reports) for split, text in kept.items()}
    lines = _check_stream(texts["train"], data.on_broken) if data.streaming else reports[0].lines
    tokenizer = _tokenizer(model, _both_sides(texts["train"], lines), folder)
    sets = {split: _tokenize(rows, tokenizer, split, data, reports) for split, rows in pairs.items()}
    for report in reports:
        logger.warning("%s", report)

    train = _stream(texts["train"], tokenizer, data, args) if data.streaming else sets["train"].tokens
    trainer = _trainer(model, args, tokenizer, train, sets.get("validation"))
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=True)
    result = Result(
        folder=folder,
        seconds=time.perf_counter() - start,
        steps=trainer.state.global_step,
        parameters=trainer.model.num_parameters(),
        trained=trainer.get_num_trainable_parameters(),
        pairs=train.report.lines - train.report.broken if isinstance(train, TokenBudgetStream) else len(train),
        reports=[*reports, train.report] if isinstance(train, TokenBudgetStream) else reports,
    )
    checkpoints = trainer.last_checkpoints(args.average_last)
    if len(checkpoints) > 1 and not args.load_best_model_at_end:
        load_average(trainer.accelerator.unwrap_model(trainer.model), checkpoints)
    result.scores = {split: _score(trainer, tokenizer, sets[split]) for split in sets if split != "train"}
    trainer.save_model()
    if trainer.is_world_process_zero():
        write_card(folder / "README.md", result, model, args, shlex.join([sys.executable, *sys.argv]))
    return result


def _load(text: Corpus, split: str, data: DataArguments, reports: list[Report]) -> Dataset:
    logger.info("reading the %s set, %s", split, text)
    pairs, report = load_pairs(text, on_broken=data.on_broken)
    reports.append(report)
    return pairs


def _check_stream(text: Corpus, on_broken: str) -> int | None:
    """The number of lines of files, checked before training rather than during it; `None` for a data set's stream."""
    if not isinstance(text, ParallelText):
        return None
    report = text.check()
    refuse_or_drop(report, on_broken)
    return report.lines


def _both_sides(text: Corpus, lines: int | None) -> Iterator[str]:
    """Texts to learn a vocabulary from: every n-th pair of all lines; the first ones if their number is unknown."""
    step = 1 if lines is None else -(-lines // TOKENIZER_PAIRS)
    for line in islice(text.lines(), 0, TOKENIZER_PAIRS * step, step):
        yield from line[1:] if len(line) == 3 else ()


def _tokenizer(model: ModelArguments, texts: Iterator[str], folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that is given, that an interrupted run left, or that the corpus trains."""
    given = model.model_name_or_path or model.tokenizer
    if given is not None:
        return AutoTokenizer.from_pretrained(given)
    with PartialState().main_process_first():
        if not (folder / "tokenizer.json").is_file():
            tokenizer = RandomTransformerTokenizer.train(texts, vocab_size=model.vocab_size or VOCAB_SIZE)
            _save_whole(tokenizer, folder)
    return AutoTokenizer.from_pretrained(folder)


def _save_whole(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save so that `tokenizer.json` appears last and whole, whenever the process may be killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tokenizer-") as unfinished:
        tokenizer.save_pretrained(unfinished)
        for path in sorted(Path(unfinished).iterdir(), key=lambda path: path.name == "tokenizer.json"):
            os.replace(path, folder / path.name)


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
        on_broken=data.on_broken,
        process_index=args.process_index,
        num_processes=args.world_size,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        pad_to_multiple_of=padding_multiple(args.device),
        num_workers=args.dataloader_num_workers,
    )


def _trainer(
    model: ModelArguments,
    args: TranslationTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    train: Dataset | TokenBudgetStream,
    validation: PreparedSet | None,
) -> TranslationTrainer:
    return TranslationTrainer(
        starting_network(model, args, tokenizer),
        args,
        train_dataset=train,
        eval_dataset=None if validation is None else validation.tokens,
        processing_class=tokenizer,
        compute_metrics=translation_metrics(tokenizer),
    )


def _score(trainer: TranslationTrainer, tokenizer: PreTrainedTokenizerBase, given: PreparedSet) -> dict[str, Any]:
    """BLEU and chrF++ of the texts themselves."""
    output = trainer.predict(given.tokens, **trainer.args.search)
    ids = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    return score(tokenizer.batch_decode(ids, skip_special_tokens=True), given.pairs["target"][:])

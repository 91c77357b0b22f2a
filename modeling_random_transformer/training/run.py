"""A translator from parallel text, from the files to a scored folder: what `examples/train_translation.py` runs."""

import logging
import shlex
import sys
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..evaluation import score, translation_metrics
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..tokenization_random_transformer import RandomTransformerTokenizer
from .arguments import DataArguments, ModelArguments
from .averaging import load_average
from .card import write_card
from .corpus import Report, load_pairs, tokenize_pairs
from .recipe import TranslationTrainingArguments
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)


@dataclass
class Result:
    """What came of a run."""

    folder: Path
    seconds: float
    steps: int
    parameters: int
    pairs: int
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)


def train_translation(data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> Result:
    """Train a translator and score it; goes on where an earlier run in the same folder was stopped.

    The folder `args.output_dir` then holds the model (the mean of the last checkpoints), its tokenizer, its generation
    settings and a model card. `from_pretrained` loads it.

    Args:
        data: the parallel text.
        model: tokenizer and sizes.
        args: the recipe.

    Raises:
        ValueError: an argument or a line of the corpus is refused.
        FloatingPointError: the loss is not finite.
        OSError: a checkpoint could not be saved; the one before is whole.
    """
    set_seed(args.seed)
    folder = Path(args.output_dir)
    reports: list[Report] = []
    with args.main_process_first(desc="reading the corpus"):
        pairs = _load(data, "train", reports)
    tokenizer = _tokenizer(model, pairs, folder)
    datasets = {"train": _tokens(pairs, tokenizer, data, args, "train", reports)}
    if data.text("validation") is not None:
        validation = _load(data, "validation", reports)
        datasets["validation"] = _tokens(validation, tokenizer, data, args, "validation", reports)
    for report in reports:
        logger.warning("%s", report)

    trainer = _trainer(model, args, tokenizer, datasets)
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=True)
    result = Result(
        folder=folder,
        seconds=time.perf_counter() - start,
        steps=trainer.state.global_step,
        parameters=trainer.model.num_parameters(),
        pairs=len(datasets["train"]),
        reports=reports,
    )
    checkpoints = trainer.last_checkpoints(args.average_last)
    if checkpoints:
        load_average(trainer.accelerator.unwrap_model(trainer.model), checkpoints)
    result.scores = _score(trainer, tokenizer, data, args)
    trainer.save_model()
    if trainer.is_world_process_zero():
        write_card(folder / "README.md", result, model, args, shlex.join([sys.executable, *sys.argv]))
    return result


def _load(data: DataArguments, split: str, reports: list[Report]) -> Dataset:
    text = data.text(split)
    if text is None:
        raise ValueError(f"{split} files must be given, got none.")
    pairs, report = load_pairs(text, on_broken=data.on_broken)
    reports.append(report)
    return pairs


def _tokenizer(model: ModelArguments, pairs: Dataset, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that is given, that an interrupted run left, or that the corpus trains."""
    if model.tokenizer is not None:
        return AutoTokenizer.from_pretrained(model.tokenizer)
    state = PartialState()
    with state.main_process_first():
        if not (folder / "tokenizer.json").is_file():
            texts = chain.from_iterable((row["source"], row["target"]) for row in pairs)
            RandomTransformerTokenizer.train(texts, vocab_size=model.vocab_size).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def _tokens(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    data: DataArguments,
    args: TranslationTrainingArguments,
    name: str,
    reports: list[Report],
) -> Dataset:
    # Nothing is cut from a validation or test set: its scores would be of another set.
    limits = (data.max_source_length, data.max_target_length) if name == "train" else (None, None)
    with args.main_process_first(desc="tokenising"):
        tokens, report = tokenize_pairs(
            pairs,
            tokenizer,
            max_source_length=limits[0],
            max_target_length=limits[1],
            num_proc=data.preprocessing_num_workers,
            name=f"{name} pairs",
        )
    if report.broken:
        reports.append(report)
    return tokens


def _trainer(
    model: ModelArguments,
    args: TranslationTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    datasets: dict[str, Dataset],
) -> TranslationTrainer:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    config = model.config(len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id, **ids)
    set_seed(args.seed)  # the weights depend on the seed alone, not on what was drawn before
    network = RandomTransformerForConditionalGeneration(config)
    network.generation_config.update(
        num_beams=args.num_beams, length_penalty=args.length_penalty, max_length=config.max_position_embeddings
    )
    return TranslationTrainer(
        network,
        args,
        train_dataset=datasets["train"],
        eval_dataset=datasets.get("validation"),
        processing_class=tokenizer,
        compute_metrics=translation_metrics(tokenizer),
    )


def _score(
    trainer: TranslationTrainer,
    tokenizer: PreTrainedTokenizerBase,
    data: DataArguments,
    args: TranslationTrainingArguments,
) -> dict[str, dict[str, Any]]:
    """BLEU and chrF++ of the texts themselves, for each set that there is."""
    scores = {}
    for split in ("validation", "test"):
        if data.text(split) is None:
            continue
        pairs = _load(data, split, [])
        tokens = _tokens(pairs, tokenizer, data, args, split, [])
        output = trainer.predict(tokens, num_beams=args.num_beams, length_penalty=args.length_penalty)
        ids = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
        scores[split] = score(tokenizer.batch_decode(ids, skip_special_tokens=True), pairs["target"][:])
    return scores

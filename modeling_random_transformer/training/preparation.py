"""The data of a run: validated corpora, the tokenizer and token ids."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ..data.batches import padding_multiple
from ..data.bpe_dropout import BPEDropout
from ..data.mixing import CorpusMixture, CorpusSpec, temperature_weights
from ..data.sources import Corpus, ParallelText
from ..data.streaming import TokenBudgetStream
from ..data.tokenization import LengthLimits, lengths_of, tokenize_pairs
from ..data.validation import ValidationReport, load_pairs, raise_if_empty, raise_if_invalid, validate
from .arguments import DataArguments, ModelArguments
from .manifest import Manifest
from .recipe import TranslationTrainingArguments
from .tokenizer import prepare_tokenizer

logger = logging.getLogger(__name__)


@dataclass
class TextSet:
    """One data set before its tokenization.

    Args:
        parts: the pairs of each corpus; the corpora themselves if the set is streamed.
        reports: the validation report of each corpus.
    """

    parts: list[Any]
    reports: list[ValidationReport]


@dataclass
class TokenizedSet:
    """One data set, as rows of text and of token ids. The rows of several corpora follow each other.

    Args:
        pairs: the texts.
        tokens: the token ids, of training pairs only those within the maximum lengths.
        sizes: number of rows of `tokens` of each corpus.
    """

    pairs: Dataset
    tokens: Dataset
    sizes: list[int]


@dataclass
class PreparedData:
    """The data of a run.

    Args:
        tokenizer: the tokenizer.
        sets: the tokenized sets by name.
        reports: the validation reports, in the order of validation.
        corpora: the training corpora with their final weights.
        corpus_sizes: number of pairs of each training corpus.
        stream: the training set if it is streamed; in this case, it is not in `sets`.
    """

    tokenizer: PreTrainedTokenizerBase
    sets: dict[str, TokenizedSet]
    reports: list[ValidationReport]
    corpora: list[CorpusSpec]
    corpus_sizes: list[int]
    stream: TokenBudgetStream | None = None

    @property
    def train_weights(self) -> np.ndarray | None:
        """How often each training pair is seen per epoch, `[pairs]`; `None` for once."""
        weights = [corpus.weight for corpus in self.corpora]
        if "train" not in self.sets or set(weights) == {1.0}:
            return None
        return np.repeat(weights, self.sets["train"].sizes)


def prepare_data(
    corpora: dict[str, list[CorpusSpec]],
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
    manifest: Manifest,
    names: list[str],
) -> PreparedData:
    """Validate and tokenize the sets with these names. A streamed training set is only validated.

    Every process calls this function. One of them reads the corpora, trains the tokenizer and tokenizes, under file
    locks. The others wait for the locks and then load the files. Unlike collective operations, locks have no timeout.

    Raises:
        ValueError: a corpus is invalid.
    """
    streamed = data_args.streaming and "train" in names
    texts = {
        name: _read(name, corpora[name], data_args.on_invalid, only_check=streamed and name == "train")
        for name in names
    }
    train_texts = texts.get("train") or TextSet([corpus.text for corpus in corpora["train"]], [])
    tokenizer = prepare_tokenizer(
        Path(args.output_dir), manifest, model_args, corpora["train"], train_texts.parts, train_texts.reports
    )
    bpe_dropout = BPEDropout(tokenizer, args.bpe_dropout) if args.bpe_dropout else None
    if streamed:
        del texts["train"]
    reports = [report for text_set in texts.values() for report in text_set.reports]
    sets = {
        name: _tokenize(name, text_set, corpora[name], tokenizer, data_args, reports, words=bpe_dropout is not None)
        for name, text_set in texts.items()
    }
    sizes = sets["train"].sizes if "train" in sets else [report.valid for report in train_texts.reports]
    train = _weighted(corpora["train"], sizes, data_args.train_temperature)
    stream = None
    if streamed:
        stream = _stream(train, train_texts.reports, tokenizer, data_args, args, bpe_dropout)
        # The report of the stream itself counts lines of all corpora together.
        reports = [*train_texts.reports, *reports] if len(train) > 1 else reports
    if args.process_index == 0:
        for report in reports:
            logger.warning("%s", report)
    return PreparedData(tokenizer, sets, reports, train, sizes, stream)


def _read(name: str, corpora: list[CorpusSpec], on_invalid: str, only_check: bool) -> TextSet:
    """Validate the corpora of a set, and load them unless they are streamed."""
    if only_check:
        texts = [corpus.text for corpus in corpora]
        return TextSet(texts, [_check_stream(text, on_invalid) for text in texts])
    parts, reports = [], []
    for corpus in corpora:
        logger.info("reading the %s set, %s", name, corpus)
        pairs, report = load_pairs(corpus.text, on_invalid=on_invalid, languages=corpus.languages)
        parts.append(pairs)
        reports.append(report)
    return TextSet(parts, reports)


def _check_stream(corpus: Corpus, on_invalid: str) -> ValidationReport:
    """Validate files before training. The report on the stream of a dataset, which is not read, has no lines."""
    if not isinstance(corpus, ParallelText):
        return ValidationReport(str(corpus))
    report = validate(corpus)
    raise_if_invalid(report, on_invalid)
    raise_if_empty(report)
    return report


def _weighted(corpora: list[CorpusSpec], sizes: list[int], temperature: float | None) -> list[CorpusSpec]:
    """The corpora with the weights of the temperature, if there is one and their sizes are known."""
    if temperature is None or len(sizes) < 2:
        return corpora
    weights = temperature_weights(sizes, temperature)
    return [replace(corpus, weight=weight) for corpus, weight in zip(corpora, weights, strict=True)]


def _tokenize(
    name: str,
    texts: TextSet,
    corpora: list[CorpusSpec],
    tokenizer: PreTrainedTokenizerBase,
    data_args: DataArguments,
    reports: list[ValidationReport],
    words: bool,
) -> TokenizedSet:
    # Only training pairs are filtered by length: scores refer to complete validation and test sets.
    limits = _limits(data_args) if name == "train" else LengthLimits()
    tokenized = []
    for pairs, corpus in zip(texts.parts, corpora, strict=True):
        tokens, report = tokenize_pairs(
            pairs,
            tokenizer,
            limits,
            num_proc=data_args.preprocessing_num_workers,
            words=words and name == "train",
            name=f"{name} pairs" if len(corpora) == 1 else f"{name} pairs of {corpus}",
        )
        tokenized.append(tokens)
        if report.invalid:
            reports.append(report)
    return TokenizedSet(_concatenated(texts.parts), _concatenated(tokenized), list(map(len, tokenized)))


def _limits(data_args: DataArguments) -> LengthLimits:
    """The maximum lengths of training pairs."""
    return LengthLimits(data_args.max_source_length, data_args.max_target_length, data_args.max_length_ratio)


def _concatenated(parts: list[Dataset]) -> Dataset:
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def _stream(
    corpora: list[CorpusSpec],
    reports: list[ValidationReport],
    tokenizer: PreTrainedTokenizerBase,
    data_args: DataArguments,
    args: TranslationTrainingArguments,
    bpe_dropout: BPEDropout | None,
) -> TokenBudgetStream:
    plain = len(corpora) == 1 and corpora[0] == CorpusSpec(corpora[0].text)  # without weight and languages
    mixture = CorpusMixture(corpora, [max(1, report.lines) for report in reports])
    return TokenBudgetStream(
        corpora[0].text if plain else mixture,
        tokenizer,
        args.max_tokens_per_batch,
        buffer_pairs=data_args.buffer_pairs,
        limits=_limits(data_args),
        on_invalid=data_args.on_invalid,
        seed=args.order_seed,
        pad_to_multiple_of=padding_multiple(args.device),
        num_workers=args.dataloader_num_workers,
        bpe_dropout=bpe_dropout,
    )


def check_lengths(sets: dict[str, TokenizedSet], config: PretrainedConfig) -> None:
    """Check before training that learned positions cover the longest text of every set.

    Raises:
        ValueError: a text is longer.
    """
    if config.position_embedding != "learned":
        return
    for split, tokenized in sets.items():
        longest = int(lengths_of(tokenized.tokens).max())
        check_longest(longest, f"the longest text of the {split} set", config)


def check_longest(longest: int, name: str, config: PretrainedConfig) -> None:
    """Raise a `ValueError` unless the positions cover a text of this many tokens; `name` says which text it is."""
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"max_position_embeddings must be at least {longest}, {name}, got {config.max_position_embeddings}."
        )

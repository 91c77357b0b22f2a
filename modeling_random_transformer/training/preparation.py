"""The data of a run: validated corpora, the tokenizer and token ids."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from filelock import FileLock
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ..data.batches import padding_multiple
from ..data.bpe_dropout import BPEDropout
from ..data.mixing import CorpusMixture, CorpusSpec, temperature_weights
from ..data.sources import Corpus, ParallelText
from ..data.streaming import TokenBudgetStream
from ..data.tokenization import lengths_of, tokenize_pairs, vocabulary_sample
from ..data.validation import ValidationReport, load_pairs, raise_if_invalid, validate
from ..tokenization_random_transformer import RandomTransformerTokenizer
from ..utils.digests import file_digest
from .arguments import VOCAB_SIZE, DataArguments, ModelArguments
from .checkpoints import save_atomically
from .manifest import Manifest
from .model_init import load_tokenizer
from .recipe import TranslationTrainingArguments

logger = logging.getLogger(__name__)
TOKENIZER_LOCK = ".tokenizer.lock"


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
    stream_reports: list[ValidationReport] = []
    if streamed:
        stream_reports = [_check_stream(corpus.text, data_args.on_invalid) for corpus in corpora["train"]]
    loaded = {
        name: [_load(name, corpus, data_args.on_invalid) for corpus in corpora[name]]
        for name in names
        if not (streamed and name == "train")
    }
    parts = {name: [pairs for pairs, _ in entries] for name, entries in loaded.items()}
    reports = [report for entries in loaded.values() for _, report in entries]
    saved = model_args.model_name_or_path or model_args.tokenizer
    if saved is None:
        texts = parts.get("train", [corpus.text for corpus in corpora["train"]])
        lines = sum(report.lines for report in stream_reports or [report for _, report in loaded.get("train", [])])
        sample = chain.from_iterable(vocabulary_sample(text, lines or None) for text in texts)
        train_tokenizer(
            Path(args.output_dir), manifest, sample, model_args.vocab_size, **_tag_options(corpora["train"], model_args)
        )
    tokenizer = load_tokenizer(args.output_dir if saved is None else saved)
    for name, code in _default_languages(corpora["train"]).items():
        setattr(tokenizer, name, code)
    bpe_dropout = BPEDropout(tokenizer, args.bpe_dropout) if args.bpe_dropout else None
    sets = {
        name: _tokenize(name, parts[name], corpora[name], tokenizer, data_args, reports, words=bpe_dropout is not None)
        for name in parts
    }
    train, sizes = corpora["train"], [report.lines - report.invalid for report in stream_reports]
    if "train" in sets:
        sizes = sets["train"].sizes
    if data_args.train_temperature is not None and len(sizes) > 1:
        weights = temperature_weights(sizes, data_args.train_temperature)
        train = [replace(corpus, weight=weight) for corpus, weight in zip(train, weights, strict=True)]
    stream = None
    if streamed:
        stream = _stream(train, stream_reports, tokenizer, data_args, args, bpe_dropout)
        # The report of the stream itself counts lines of all corpora together.
        reports = [*stream_reports, *reports] if len(train) > 1 else reports
    if args.process_index == 0:
        for report in reports:
            logger.warning("%s", report)
    return PreparedData(tokenizer, sets, reports, train, sizes, stream)


def _load(name: str, corpus: CorpusSpec, on_invalid: str) -> tuple[Dataset, ValidationReport]:
    logger.info("reading the %s set, %s", name, corpus)
    return load_pairs(corpus.text, on_invalid=on_invalid, languages=corpus.languages)


def _check_stream(corpus: Corpus, on_invalid: str) -> ValidationReport:
    """Validate files before training. The report on the stream of a dataset, which is not read, has no lines."""
    if not isinstance(corpus, ParallelText):
        return ValidationReport(str(corpus))
    report = validate(corpus)
    raise_if_invalid(report, on_invalid)
    return report


def languages_of(corpora: list[CorpusSpec]) -> list[str]:
    """The codes of all languages of the corpora, in the order of their first use."""
    return list(dict.fromkeys(chain.from_iterable(corpus.languages or () for corpus in corpora)))


def _default_languages(corpora: list[CorpusSpec]) -> dict[str, str]:
    """The `src_lang` and the `tgt_lang` of the tokenizer, if it is the same for all corpora."""
    pairs = [corpus.languages for corpus in corpora if corpus.languages is not None]
    sides = {"src_lang": {source for source, _ in pairs}, "tgt_lang": {target for _, target in pairs}}
    return {name: codes.pop() for name, codes in sides.items() if len(codes) == 1}


def _tag_options(corpora: list[CorpusSpec], model_args: ModelArguments) -> dict[str, Any]:
    """The options of the tokenizer for language tags and other special tokens."""
    options: dict[str, Any] = {"special_tokens": model_args.special_tokens} if model_args.special_tokens else {}
    if languages := languages_of(corpora):
        options |= {"languages": languages, **_default_languages(corpora)}
    return options


def train_tokenizer(
    folder: Path, manifest: Manifest, texts: Iterable[str], vocab_size: int | None, **options: Any
) -> None:
    """Train the tokenizer of a run and save it in the run's folder, once per run.

    Args:
        folder: the output folder.
        manifest: the manifest of the run; its digest of the tokenizer is set.
        texts: the corpus, read only if the tokenizer is trained by this call.
        vocab_size: maximum size; `None` for the default.
        **options: other options of `RandomTransformerTokenizer.train`.

    Raises:
        ValueError: the folder has a tokenizer that differs from the one in the manifest.
    """
    path = folder / "tokenizer.json"
    with FileLock(folder / TOKENIZER_LOCK):
        current = Manifest.read(folder) or manifest  # another process may have trained it in the meantime
        if current.tokenizer is not None and path.is_file():
            if file_digest(path) != current.tokenizer:
                raise ValueError(f"tokenizer must be that of this run, but {path} has changed.")
        else:
            tokenizer = RandomTransformerTokenizer.train(texts, vocab_size=vocab_size or VOCAB_SIZE, **options)
            with save_atomically(folder) as temporary:
                tokenizer.save_pretrained(temporary)
            current.tokenizer = file_digest(path)
            current.write(folder)
        manifest.tokenizer = current.tokenizer


def _tokenize(
    name: str,
    parts: list[Dataset],
    corpora: list[CorpusSpec],
    tokenizer: PreTrainedTokenizerBase,
    data_args: DataArguments,
    reports: list[ValidationReport],
    words: bool,
) -> TokenizedSet:
    # Only training pairs are filtered by length: scores refer to complete validation and test sets.
    limits = (data_args.max_source_length, data_args.max_target_length) if name == "train" else (None, None)
    tokenized = []
    for pairs, corpus in zip(parts, corpora, strict=True):
        tokens, report = tokenize_pairs(
            pairs,
            tokenizer,
            max_source_length=limits[0],
            max_target_length=limits[1],
            num_proc=data_args.preprocessing_num_workers,
            words=words and name == "train",
            name=f"{name} pairs" if len(parts) == 1 else f"{name} pairs of {corpus}",
        )
        tokenized.append(tokens)
        if report.invalid:
            reports.append(report)
    return TokenizedSet(_concatenated(parts), _concatenated(tokenized), list(map(len, tokenized)))


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
        max_source_length=data_args.max_source_length,
        max_target_length=data_args.max_target_length,
        on_invalid=data_args.on_invalid,
        process_index=args.process_index,
        num_processes=args.world_size,
        seed=args.data_seed if args.data_seed is not None else args.seed,
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
        if longest > config.max_position_embeddings:
            raise ValueError(
                f"max_position_embeddings must be at least {longest}, the longest text of the {split} set, got "
                f"{config.max_position_embeddings}."
            )

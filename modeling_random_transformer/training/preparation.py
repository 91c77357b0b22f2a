"""The data of a run: validated corpora, the tokenizer and token ids."""

import logging
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from filelock import FileLock
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ..data.batches import padding_multiple
from ..data.bpe_dropout import BPEDropout
from ..data.sources import Corpus, ParallelText
from ..data.streaming import TokenBudgetStream
from ..data.tokenization import lengths_of, tokenize_pairs, vocabulary_sample
from ..data.validation import ValidationReport, load_pairs, raise_if_invalid, validate
from ..tokenization_random_transformer import RandomTransformerTokenizer
from .arguments import VOCAB_SIZE, DataArguments, ModelArguments
from .checkpoints import save_atomically
from .manifest import Manifest, file_digest
from .model_init import load_tokenizer
from .recipe import TranslationTrainingArguments

logger = logging.getLogger(__name__)
TOKENIZER_LOCK = ".tokenizer.lock"


@dataclass
class TokenizedSet:
    """One data set, as aligned rows of text and of token ids."""

    pairs: Dataset
    tokens: Dataset


@dataclass
class PreparedData:
    """The data of a run.

    Args:
        tokenizer: the tokenizer.
        sets: the tokenized sets by split.
        reports: the validation reports, in the order of validation.
        stream: the training set if it is streamed; in this case, it is not in `sets`.
    """

    tokenizer: PreTrainedTokenizerBase
    sets: dict[str, TokenizedSet]
    reports: list[ValidationReport]
    stream: TokenBudgetStream | None = None


def prepare_data(
    corpora: dict[str, Corpus],
    data_args: DataArguments,
    model_args: ModelArguments,
    args: TranslationTrainingArguments,
    manifest: Manifest,
    splits: list[str],
) -> PreparedData:
    """Validate and tokenize these splits. A streamed training set is only validated.

    Every process calls this function. One of them reads the corpora, trains the tokenizer and tokenizes, under file
    locks. The others wait for the locks and then load the files. Unlike collective operations, locks have no timeout.

    Raises:
        ValueError: a corpus is invalid.
    """
    streamed = {"train"} & {*splits} if data_args.streaming else set()
    pairs, reports, train_lines = {}, [], None
    for split in streamed:
        train_lines = _check_stream(corpora[split], data_args.on_invalid)
    for split in (split for split in splits if split not in streamed):
        logger.info("reading the %s set, %s", split, corpora[split])
        pairs[split], report = load_pairs(corpora[split], on_invalid=data_args.on_invalid)
        reports.append(report)
        train_lines = report.lines if split == "train" else train_lines
    saved = model_args.model_name_or_path or model_args.tokenizer
    if saved is None:
        corpus = pairs.get("train", corpora["train"])
        train_tokenizer(Path(args.output_dir), manifest, corpus, train_lines, model_args.vocab_size)
    tokenizer = load_tokenizer(args.output_dir if saved is None else saved)
    bpe_dropout = BPEDropout(tokenizer, args.bpe_dropout) if args.bpe_dropout else None
    sets = {
        split: _tokenize(split, pairs[split], tokenizer, data_args, reports, words=bpe_dropout is not None)
        for split in pairs
    }
    if args.process_index == 0:
        for report in reports:
            logger.warning("%s", report)
    stream = _stream(corpora["train"], tokenizer, data_args, args, bpe_dropout) if streamed else None
    return PreparedData(tokenizer, sets, reports, stream)


def _check_stream(corpus: Corpus, on_invalid: str) -> int | None:
    """Validate files before training and return their number of lines; `None` for the stream of a dataset."""
    if not isinstance(corpus, ParallelText):
        return None
    report = validate(corpus)
    raise_if_invalid(report, on_invalid)
    return report.lines


def train_tokenizer(
    folder: Path, manifest: Manifest, corpus: Corpus | Dataset, lines: int | None, vocab_size: int | None
) -> None:
    """Train the tokenizer of a run and save it in the run's folder, once per run.

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
            texts = vocabulary_sample(corpus, lines)
            tokenizer = RandomTransformerTokenizer.train(texts, vocab_size=vocab_size or VOCAB_SIZE)
            with save_atomically(folder) as temporary:
                tokenizer.save_pretrained(temporary)
            current.tokenizer = file_digest(path)
            current.write(folder)
        manifest.tokenizer = current.tokenizer


def _tokenize(
    split: str,
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    data_args: DataArguments,
    reports: list[ValidationReport],
    words: bool,
) -> TokenizedSet:
    # Only training pairs are filtered by length: scores refer to complete validation and test sets.
    limits = (data_args.max_source_length, data_args.max_target_length) if split == "train" else (None, None)
    tokens, report = tokenize_pairs(
        pairs,
        tokenizer,
        max_source_length=limits[0],
        max_target_length=limits[1],
        num_proc=data_args.preprocessing_num_workers,
        name=f"{split} pairs",
        words=words and split == "train",
    )
    if report.invalid:
        reports.append(report)
    return TokenizedSet(pairs, tokens)


def _stream(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    data_args: DataArguments,
    args: TranslationTrainingArguments,
    bpe_dropout: BPEDropout | None,
) -> TokenBudgetStream:
    return TokenBudgetStream(
        corpus,
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

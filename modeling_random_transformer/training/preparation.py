"""The data of a run: validated corpora, the tokenizer and token ids."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ..base.distributed import call_on_main_process
from ..data.batches import padding_multiple
from ..data.lengths import NO_LIMITS
from ..data.overlap import Counts, describe_overlap, shared_texts
from ..data.sources import Corpus
from ..data.streaming import CorpusMixture, TokenBudgetStream
from ..data.tokenization import lengths_of, tokenize_pairs
from ..data.validation import ValidationReport, load_pairs, validate
from ..inputs_random_transformer import max_target_positions
from .arguments import split_and_label
from .run_state import Run
from .tokenizer import prepare_tokenizer

logger = logging.getLogger(__name__)


@dataclass
class PreparedData:
    """The data of a run.

    Attributes:
        tokenizer: the tokenizer.
        reports: the validation reports, in the order of validation.
        pairs: the valid pairs of each corpus, by the name of the set.
        tokens: the token ids of each set. The training set has only pairs within the maximum lengths. The rows of
            several corpora follow each other.
        corpora: the training corpora.
        corpus_sizes: number of pairs of each training corpus.
        stream: the training set if it is streamed; in this case, it is not in `pairs` and `tokens`.
        overlap: validation and test sets with texts that occur in the training set, see `shared_texts`; not computed
            for a stream.
    """

    tokenizer: PreTrainedTokenizerBase
    reports: list[ValidationReport]
    pairs: dict[str, list[Dataset]]
    corpora: list[Corpus]
    tokens: dict[str, Dataset] = field(default_factory=dict)
    corpus_sizes: list[int] = field(default_factory=list)
    stream: TokenBudgetStream | None = None
    overlap: dict[str, Counts] = field(default_factory=dict)

    @property
    def train_weights(self) -> np.ndarray | None:
        """How often each training pair occurs per epoch, `[pairs]`; `None` for once."""
        weights = [corpus.weight for corpus in self.corpora]
        if "train" not in self.tokens or set(weights) == {1}:
            return None
        return np.repeat(weights, self.corpus_sizes)

    @property
    def validation(self) -> Dataset | dict[str, Dataset] | None:
        """The validation set; if it has a label, or there are several, by their labels (see `split_and_label`)."""
        sets = {}
        for name, rows in self.tokens.items():
            split, label = split_and_label(name)
            if split == "validation":
                sets[label] = rows
        return sets.get("", sets or None)


def prepare_data(run: Run, names: Collection[str]) -> PreparedData:
    """Validate and tokenize the sets with these names. A streamed training set is only validated.

    Every process calls this function. One process reads the corpora and tokenizes under the file locks of the cache,
    which have no timeout. The other processes wait, and then map the files.

    Raises:
        ValueError: a corpus is invalid.
    """
    pairs, reports = load_sets(run, names)
    train_reports = reports.get("train", [])
    lines = [report.lines for report in train_reports]
    tokenizer = prepare_tokenizer(run, sum(lines))
    is_streamed = "train" in names and run.data_args.streaming
    if is_streamed and len(train_reports) == 1:  # the stream has a report of its own
        del reports["train"]
    data = PreparedData(tokenizer, [*chain.from_iterable(reports.values())], pairs, run.corpora["train"])
    for name, pairs_of_corpora in pairs.items():
        tokenized, skipped = tokenize_set(run, name, pairs_of_corpora, tokenizer)
        data.tokens[name] = concatenate_datasets(tokenized)
        data.reports += [report for report in skipped if report.invalid]
        if name == "train":
            data.corpus_sizes = [*map(len, tokenized)]
    if is_streamed:
        data.corpus_sizes = [report.valid for report in train_reports]
        data.stream = make_stream(run, lines, tokenizer)
    if run.args.process_index == 0:
        for report in data.reports:
            logger.log(logging.WARNING if report.invalid else logging.INFO, "%s", report)
    if "train" in pairs and len(pairs) > 1:
        data.overlap = call_on_main_process(lambda: find_overlap(pairs))
    return data


def load_sets(run: Run, names: Collection[str]) -> tuple[dict[str, list[Dataset]], dict[str, list[ValidationReport]]]:
    """The valid pairs and the reports of each corpus, by the name of its set, without the pairs of a stream.

    The files of a stream are validated before training. A streamed dataset is not read: its report has no lines.
    """
    pairs_by_set: dict[str, list[Dataset]] = {}
    reports: dict[str, list[ValidationReport]] = {}
    for name in names:
        reports[name] = []
        for corpus in run.corpora[name]:
            if name != "train" or not run.data_args.streaming:
                pairs, report = load_pairs(corpus, run.data_args.on_invalid)
                pairs_by_set.setdefault(name, []).append(pairs)
            elif corpus.files:
                report = validate(corpus, run.data_args.on_invalid)
            else:
                report = ValidationReport(str(corpus))
            reports[name].append(report)
    return pairs_by_set, reports


def tokenize_set(
    run: Run, name: str, pairs_of_corpora: Sequence[Dataset], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Dataset], list[ValidationReport]]:
    """Tokenize the corpora of a set; returns the token ids and the report of the skipped pairs of each corpus."""
    is_train = name == "train"
    tokenized = []
    reports = []
    for pairs, corpus in zip(pairs_of_corpora, run.corpora[name], strict=True):
        tokens, report = tokenize_pairs(
            pairs,
            tokenizer,
            # Only training pairs are filtered by length: scores refer to complete validation and test sets.
            run.data_args.length_limits if is_train else NO_LIMITS,
            languages=corpus.languages,
            num_proc=run.data_args.preprocessing_num_workers,
            with_words=is_train and bool(run.args.bpe_dropout or run.args.augment),
            name=f"{name} pairs of {corpus}",
        )
        tokenized.append(tokens)
        reports.append(report)
    return tokenized, reports


def make_stream(run: Run, lines: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> TokenBudgetStream:
    """The training set as a stream of batches.

    Args:
        run: the run.
        lines: number of lines of each corpus; 0 if it is unknown.
        tokenizer: the tokenizer.
    """
    corpora = run.corpora["train"]
    corpus: Corpus | CorpusMixture = corpora[0]
    if len(corpora) > 1 or corpora[0].weight != 1:
        corpus = CorpusMixture(corpora, [max(1, count) for count in lines])
    return TokenBudgetStream(
        corpus,
        tokenizer,
        run.args.max_tokens_per_batch,
        buffer_pairs=run.data_args.buffer_pairs,
        limits=run.data_args.length_limits,
        on_invalid=run.data_args.on_invalid,
        seed=run.args.order_seed,
        pad_to_multiple_of=padding_multiple(run.args.device),
        num_workers=run.args.dataloader_num_workers,
    )


def find_overlap(pairs_by_set: Mapping[str, list[Dataset]]) -> dict[str, Counts]:
    """Compute `PreparedData.overlap`, and warn of sets with shared texts."""
    held_out = {name: concatenate_datasets(pairs) for name, pairs in pairs_by_set.items() if name != "train"}
    overlap = shared_texts(pairs_by_set["train"], held_out)
    for name, counts in overlap.items():
        logger.warning("%s; `clean --exclude` removes them.", describe_overlap(name, counts))
    return overlap


def check_lengths(sets: dict[str, Dataset], config: PretrainedConfig) -> None:
    """Check before training that learned positions cover the longest text of every set.

    Raises:
        ValueError: a text is longer.
    """
    positions = max_target_positions(config)
    if positions is None:
        return
    for split, tokens in sets.items():
        longest = int(lengths_of(tokens).max())
        if longest > positions:
            raise ValueError(
                f"max_position_embeddings must be at least {longest}, the longest text of the {split} set, "
                f"got {positions}."
            )

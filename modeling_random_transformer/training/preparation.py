"""The data of a run: validated corpora, the tokenizer and token ids."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ..base.distributed import call_on_main_process
from ..base.jobs import Job
from ..data.batches import padding_multiple
from ..data.sources import Corpus
from ..data.splitting import Counts, describe_overlap, shared_texts
from ..data.tokenization import LengthLimits, lengths_of, tokenize_pairs, vocabulary_sample
from ..data.validation import ValidationReport, load_pairs, validate
from ..inputs_random_transformer import tokenizer_languages
from ..tokenization_random_transformer import RandomTransformerTokenizer
from .arguments import VOCAB_SIZE, ModelArguments
from .checkpoints import save_atomically
from .manifest import Run, fingerprint
from .model_init import load_tokenizer

logger = logging.getLogger(__name__)


@dataclass
class PreparedData:
    """The data of a run.

    Args:
        tokenizer: the tokenizer.
        texts: the valid pairs of each corpus of a set, by its name.
        sets: the token ids of each set, of training pairs only those within the maximum lengths. The rows of several
            corpora follow each other.
        reports: the validation reports, in the order of validation.
        corpora: the training corpora.
        corpus_sizes: number of pairs of each training corpus.
        stream: the training set if it is streamed; in this case, it is not in `texts` and `sets`.
        overlap: validation and test sets with texts that occur in the training set, see `shared_texts`; not computed
            for a stream.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: dict[str, list[Dataset]]
    sets: dict[str, Dataset]
    reports: list[ValidationReport]
    corpora: list[Corpus]
    corpus_sizes: list[int]
    stream: Any = None
    overlap: dict[str, Counts] = field(default_factory=dict)

    @property
    def train_weights(self) -> np.ndarray | None:
        """How often each training pair is seen per epoch, `[pairs]`; `None` for once."""
        weights = [corpus.weight for corpus in self.corpora]
        if "train" not in self.sets or set(weights) == {1}:
            return None
        return np.repeat(weights, self.corpus_sizes)

    @property
    def validation(self) -> Dataset | dict[str, Dataset] | None:
        """The validation set; if there are several, by the part of their names after `"validation "`."""
        names = [name for name in self.sets if name.startswith("validation")]
        sets = {name.removeprefix("validation "): self.sets[name] for name in names}
        return self.sets.get("validation", sets or None)


def prepare_data(run: Run, names: Collection[str]) -> PreparedData:
    """Validate and tokenize the sets with these names. A streamed training set is only validated.

    Every process calls this function. One of them reads the corpora and tokenizes under the file locks of the cache,
    which have no timeout. The others wait, and then map the files.

    Raises:
        ValueError: a corpus is invalid.
    """
    train, on_invalid = run.corpora["train"], run.data.on_invalid
    texts: dict[str, list[Dataset]] = {}
    reports: dict[str, list[ValidationReport]] = {}
    for name in names:
        corpora = run.corpora[name]
        if name == "train" and run.data.streaming:
            # Files are validated before training. The stream of a dataset is not read: its report has no lines.
            reports[name] = [
                validate(corpus, on_invalid) if corpus.files else ValidationReport(str(corpus)) for corpus in corpora
            ]
        else:
            loaded = [load_pairs(corpus, on_invalid) for corpus in corpora]
            texts[name], reports[name] = ([pair[i] for pair in loaded] for i in (0, 1))
    lines = [report.lines for report in reports.get("train", ())]
    tokenizer = prepare_tokenizer(run, sum(lines))
    # The report of a stream itself counts the lines of all corpora together.
    shown = [report for name in names if name in texts or len(train) > 1 for report in reports[name]]
    limits = LengthLimits(run.data.max_source_length, run.data.max_target_length, run.data.max_length_ratio)
    tokenized = {name: _tokenize(run, name, texts[name], tokenizer, limits, shown) for name in texts}
    sizes = [*map(len, tokenized["train"])] if "train" in texts else [each.valid for each in reports.get("train", ())]
    is_stream = "train" in reports and "train" not in texts
    stream = _stream(run, train, lines, tokenizer, limits) if is_stream else None
    if run.args.process_index == 0:
        for report in shown:
            logger.warning("%s", report)
    sets = {name: concatenate_datasets(parts) for name, parts in tokenized.items()}
    return PreparedData(tokenizer, texts, sets, shown, train, sizes, stream, _overlap(texts))


def _overlap(texts: dict[str, list[Dataset]]) -> dict[str, Counts]:
    """See `PreparedData.overlap`; warns in the first process."""
    held_out = {name: concatenate_datasets(parts) for name, parts in texts.items() if name != "train"}

    def count() -> dict[str, Counts]:
        found = shared_texts(texts["train"], held_out)
        for name, counts in found.items():
            logger.warning("%s; `clean --exclude` removes them.", describe_overlap(name, counts))
        return found

    return call_on_main_process(count) if "train" in texts and held_out else {}


def _tokenize(
    run: Run,
    name: str,
    texts: list[Dataset],
    tokenizer: PreTrainedTokenizerBase,
    limits: LengthLimits,
    reports: list[ValidationReport],
) -> list[Dataset]:
    """Tokenize the corpora of a set, and add a report for each one with skipped pairs."""
    is_train, tokenized = name == "train", []
    for pairs, corpus in zip(texts, run.corpora[name], strict=True):
        tokens, report = tokenize_pairs(
            pairs,
            tokenizer,
            # Only training pairs are filtered by length: scores refer to complete validation and test sets.
            limits if is_train else LengthLimits(),
            languages=corpus.languages,
            num_proc=run.data.preprocessing_num_workers,
            words=is_train and bool(run.args.bpe_dropout),
            name=f"{name} pairs of {corpus}",
        )
        tokenized.append(tokens)
        if report.invalid:
            reports.append(report)
    return tokenized


def _stream(
    run: Run, corpora: list[Corpus], lines: list[int], tokenizer: PreTrainedTokenizerBase, limits: LengthLimits
) -> Any:
    from ..data.streaming import CorpusMixture, TokenBudgetStream
    from .methods.bpe_dropout import BPEDropout

    mixture = CorpusMixture(corpora, [max(1, count) for count in lines])
    return TokenBudgetStream(
        corpora[0] if len(corpora) == 1 and corpora[0].weight == 1 else mixture,
        tokenizer,
        run.args.max_tokens_per_batch,
        buffer_pairs=run.data.buffer_pairs,
        limits=limits,
        on_invalid=run.data.on_invalid,
        seed=run.args.order_seed,
        pad_to_multiple_of=padding_multiple(run.args.device),
        num_workers=run.args.dataloader_num_workers,
        bpe_dropout=BPEDropout(tokenizer, run.args.bpe_dropout) if run.args.bpe_dropout else None,
    )


# The tokenizer and its languages


def prepare_tokenizer(run: Run, lines: int) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a run, which is trained first if the arguments name no saved one.

    Its `src_lang` and `tgt_lang` become the languages of the training corpora, if they are the same for all.

    Args:
        run: the run.
        lines: number of lines of the training corpora, which are read if the tokenizer is trained; 0 if unknown.

    Raises:
        ValueError: the folder has a tokenizer that differs from the recorded one.
    """
    saved = run.model.saved_tokenizer
    pairs = [corpus.languages.codes for corpus in run.corpora["train"] if corpus.languages.codes]
    sides = zip(("src_lang", "tgt_lang"), zip(*pairs, strict=True), strict=False)
    defaults = {name: codes[0] for name, codes in sides if len({*codes}) == 1}
    if saved is None:
        run.record(lambda job: _train_tokenizer(run, job, lines, defaults))
    tokenizer = load_tokenizer(str(run.folder) if saved is None else saved, run.model.special_tokens or ())
    for name, code in defaults.items():
        setattr(tokenizer, name, code)
    return tokenizer


def _train_tokenizer(run: Run, job: Job, lines: int, defaults: dict[str, str]) -> None:
    """Train the tokenizer of a run and save it in the output folder, unless an earlier call has."""
    corpora, path = run.corpora["train"], run.folder / "tokenizer.json"
    options: dict[str, Any] = {"vocab_size": run.model.vocab_size or VOCAB_SIZE, **defaults}
    options |= {"languages": distinct_languages(corpora), "special_tokens": run.model.special_tokens or []}
    # Inputs change only if nothing has been trained with the tokenizer.
    inputs = {"training set": fingerprint(corpora), **options}
    stage = job.begin("tokenizer", inputs, may_change=lambda *_: True)
    if stage.is_finished:
        return
    if path.is_file() and stage.changed_files():
        raise ValueError(f"tokenizer must be that of this run, but {path} has changed.")
    sample = chain.from_iterable(vocabulary_sample(corpus, lines or None) for corpus in corpora)
    tokenizer = RandomTransformerTokenizer.train(sample, **options)
    with save_atomically(run.folder) as temporary:
        tokenizer.save_pretrained(temporary)
    stage.finish([path])


def distinct_languages(corpora: Iterable[Corpus]) -> list[str]:
    """The codes of all languages of corpora, in the order of their first use."""
    return list(dict.fromkeys(code for corpus in corpora for code in corpus.languages.codes))


def check_languages(sets: Mapping[str, Sequence[Corpus]], model_args: ModelArguments) -> None:
    """Check that the tokenizer has, or will have, the languages of all sets.

    Raises:
        ValueError: it does not.
    """
    used = distinct_languages(chain.from_iterable(sets.values()))
    available, origin = distinct_languages(sets["train"]), "the training corpora"
    if (saved := model_args.saved_tokenizer) is not None:
        tokenizer = load_tokenizer(saved)
        available, origin = tokenizer_languages(tokenizer), f"the tokenizer in {saved}"
        if available and not used and None in (tokenizer.src_lang, tokenizer.tgt_lang):
            raise ValueError(f"source_lang and target_lang must be of {', '.join(available)} for {origin}, got none.")
    unknown = [code for code in used if code not in available]
    if unknown:
        allowed = f"languages of {origin} ({', '.join(available) or 'none'})"
        raise ValueError(f"source_lang and target_lang must be {allowed}, got {', '.join(unknown)}.")


def check_lengths(sets: dict[str, Dataset], config: PretrainedConfig) -> None:
    """Check before training that learned positions cover the longest text of every set.

    Raises:
        ValueError: a text is longer.
    """
    for split, tokens in sets.items() if config.position_embedding == "learned" else ():
        if (longest := int(lengths_of(tokens).max())) > config.max_position_embeddings:
            allowed = f"at least {longest}, the longest text of the {split} set"
            raise ValueError(f"max_position_embeddings must be {allowed}, got {config.max_position_embeddings}.")

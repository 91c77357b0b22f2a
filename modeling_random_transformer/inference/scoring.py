"""Log-probabilities of translations under a model, and the batches of pairs that alignments share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration, shift_right
from ..ops_random_transformer import label_log_probabilities
from ..pipeline_random_transformer import (
    CHUNK_SIZE,
    Seq2SeqPipeline,
    check_language,
    check_positive,
    check_type,
    current_device,
    encode_texts,
    evaluation_mode,
    language_id,
    languages_of_pair,
    source_limit,
    tokenizer_languages,
)
from .translation import progress_bar

IGNORED = -100  # the label of positions that are not scored
LOGIT_ROWS = 512  # tokens whose logits are in memory together

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PairScore:
    """The probability of a translation, given its source.

    Attributes:
        log_probability: sum of the natural logarithms of the target tokens' probabilities, including the end token.
        tokens: number of these tokens.
        token_log_probabilities: the terms of the sum, in the order of the tokens, if they were requested.
    """

    log_probability: float
    tokens: int
    token_log_probabilities: list[float] | None = None


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Iterable[tuple[str, str]],
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    max_batch_tokens: int = 4096,
    token_scores: bool = False,
    truncation: bool = False,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
) -> Iterator[PairScore]:
    """The log-probability of each pair of source and target, in the order of the pairs.

    A lazy iterator, which reads one chunk at a time. The costs are those of a forward pass. A target-language tag that
    `generate()` would be forced to begin with is neither scored nor counted.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`. It stays on its device and runs in evaluation mode.
        tokenizer: its tokenizer.
        pairs: sources and targets. A target may be empty, a source may not.
        src_lang: language code of the sources, for a tokenizer with language tags; `None` for the tokenizer's.
        tgt_lang: language code of the targets; `None` for the tokenizer's.
        max_batch_tokens: limit on the size of a batch: pairs × (tokens of the longest source + longest target). A
            longer pair forms a separate batch.
        token_scores: return `token_log_probabilities` too.
        truncation: truncate texts with more tokens than `tokenizer.model_max_length` or the model's learned positions.
            By default they raise an error.
        chunk_size: number of pairs that are sorted by length together.
        progress: show a progress bar on stderr; `None` shows it after a delay.

    Raises:
        ValueError: an argument is invalid, or a pair is not two strings, has a blank source or is too long. Arguments
            are checked immediately, pairs when they are read.
    """
    scorer = Scorer(model, tokenizer, max_batch_tokens, truncation, src_lang, tgt_lang, token_scores=token_scores)
    return process_pairs(pairs, scorer, chunk_size, progress)


def process_pairs(
    pairs: Iterable[T],
    process: Callable[[Sequence[T], Sequence[int], str], list[Any]],
    chunk_size: int,
    progress: bool | None,
    unit: str = "index",
) -> Iterator[Any]:
    """The results of a function of chunks of pairs, lazily and in the order of the pairs.

    Args:
        pairs: sources and targets.
        process: called with the pairs of a chunk, their numbers and the unit.
        chunk_size: number of pairs of a chunk.
        progress: see `score_pairs`.
        unit: `"index"` or `"line"`, which counts from 1: how error messages identify a pair.
    """
    check_positive(chunk_size=chunk_size)

    def results() -> Iterator[Any]:
        iterator, first = iter(pairs), int(unit == "line")
        with progress_bar(pairs, progress, unit="pair") as bar:
            while chunk := list(islice(iterator, chunk_size)):
                yield from process(chunk, range(first, first + len(chunk)), unit)
                bar.update(len(chunk))
                first += len(chunk)

    return results()


class PairModel:
    """A model and its tokenizer, which encodes and batches pairs.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        max_batch_tokens: see `score_pairs`, as for the following arguments.
        truncation: truncate texts that are too long.
        src_lang: language code of the sources.
        tgt_lang: language code of the targets.

    Raises:
        ValueError: an argument is invalid, or a language is not known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_tokens: int = 4096,
        truncation: bool = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ):
        check_positive(max_batch_tokens=max_batch_tokens)
        check_type("truncation", truncation, bool, "True or False")
        self.pipe = Seq2SeqPipeline(model, tokenizer, device=current_device(model))
        self.model, self.tokenizer = model, tokenizer
        self.max_batch_tokens, self.truncation = max_batch_tokens, truncation
        self.start = decoder_start(model)
        self.languages = languages_of(tokenizer, src_lang, tgt_lang)

    def tokenize(
        self, pairs: Sequence[tuple[str, str]], numbers: Sequence[int], unit: str
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Token ids of the sources and of the targets; errors identify a pair by its number and unit."""
        for number, pair in zip(numbers, pairs, strict=True):
            if isinstance(pair, str) or len(pair) != 2 or not isinstance(pair[1], str):
                raise ValueError(f"pairs must be two strings, but the one at {unit} {number} is {pair!r}.")
        src_lang, _ = self.languages
        sources = self.pipe.tokenize(
            [source for source, _ in pairs], numbers, unit, False, src_lang=src_lang, truncation=self.truncation
        )
        texts = [target for _, target in pairs]
        with languages_of_pair(self.tokenizer, *self.languages):
            targets = encode_texts(self.tokenizer, text_target=texts, verbose=False)["input_ids"] if texts else []
        limit, reason = source_limit(self.tokenizer, self.pipe.positions, None)
        long = [i for i, target in enumerate(targets) if len(target) > limit]
        if long and not self.truncation:
            raise ValueError(
                f"targets must have at most {limit} tokens ({reason}), but the one at {unit} {numbers[long[0]]} has "
                f"{len(targets[long[0]])}. To truncate it, set truncation."
            )
        for i in long:
            with languages_of_pair(self.tokenizer, *self.languages):
                cut = encode_texts(self.tokenizer, text_target=texts[i], truncation=True, max_length=limit)
                targets[i] = cut["input_ids"]
        return sources, targets

    def batches(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[int]]:
        """The indices of the pairs of each batch."""
        lengths = [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        return batches_of_pairs(lengths, self.max_batch_tokens)

    def inputs(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> tuple[dict[str, Tensor], Tensor]:
        """The arguments of the model for a batch, and the labels, `[batch, target_len]`."""
        rows = [torch.tensor(target) for target in targets]
        labels = pad_sequence(rows, batch_first=True, padding_value=IGNORED).to(self.model.device)
        inputs = {name: value.to(self.model.device) for name, value in self.pipe.pad(sources).items()}
        inputs["decoder_input_ids"] = shift_right(labels, self.start, self.tokenizer.pad_token_id or 0)
        return inputs, labels


class Scorer(PairModel):
    """Scores pairs that are sorted by length together; see `score_pairs` for the arguments."""

    def __init__(self, *args: Any, token_scores: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.token_scores = token_scores

    def __call__(self, pairs: Sequence[tuple[str, str]], numbers: Sequence[int], unit: str) -> list[PairScore]:
        """Score pairs; errors identify a pair by its number and unit, such as `"line"`."""
        sources, targets = self.tokenize(pairs, numbers, unit)
        forced = forced_first_token(self.model, self.tokenizer, self.languages[1])
        scores: dict[int, PairScore] = {}
        for batch in self.batches(sources, targets):
            log_probabilities = self.forward([sources[i] for i in batch], [targets[i] for i in batch], forced)
            for i, row in zip(batch, log_probabilities, strict=True):
                values = row[int(targets[i][:1] == [forced]) : len(targets[i])]
                scores[i] = PairScore(sum(values), len(values), values if self.token_scores else None)
        return [scores[i] for i in range(len(pairs))]

    @torch.inference_mode()
    def forward(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], forced: int | None
    ) -> list[list[float]]:
        """The log-probability of each target token, `[batch, target_len]`; 0 for padding and a forced first token."""
        inputs, labels = self.inputs(sources, targets)
        if forced is not None:
            labels[:, 0].masked_fill_(labels[:, 0] == forced, IGNORED)
        with evaluation_mode(self.model):
            if isinstance(self.model, RandomTransformerForConditionalGeneration):
                return self.forward_without_padding(inputs, labels).tolist()
            logits = self.model(**inputs, use_cache=False).logits
        return label_log_probabilities(logits, labels, IGNORED).tolist()

    def forward_without_padding(self, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        """`forward` without logits of padding. A few rows of logits at a time are in memory."""
        states = self.model.model(**inputs, use_cache=False).last_hidden_state
        scored = labels != IGNORED
        chunks = zip(states[scored].split(LOGIT_ROWS), labels[scored].split(LOGIT_ROWS), strict=True)
        values = [label_log_probabilities(self.model.lm_head(rows), row_labels) for rows, row_labels in chunks]
        result = values[0].new_zeros(labels.shape)
        result[scored] = torch.cat(values)
        return result


def decoder_start(model: PreTrainedModel) -> int:
    """The id of the decoder's first input, as in `generate()`.

    Raises:
        ValueError: the model has none.
    """
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            start = getattr(config, name, None)
            if isinstance(start, int):
                return start
    raise ValueError(f"decoder_start_token_id must be set in the model's configuration, got {start}.")


def languages_of(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
    """The language codes of sources and targets; `None` for a tokenizer without language tags.

    Raises:
        ValueError: a code is not known, or neither given nor set in the tokenizer.
    """
    codes: list[str | None] = []
    for name, code in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
        check_language(name, code, tokenizer)
        codes.append(getattr(tokenizer, name, None) if code is None else code)
        if codes[-1] is None and (languages := tokenizer_languages(tokenizer)):
            raise ValueError(f"{name} must be one of {', '.join(languages)}, got None.")
    return codes[0], codes[1]


def forced_first_token(model: PreTrainedModel, tokenizer: Any, tgt_lang: str | None) -> int | None:
    """The id that `generate()` is forced to begin with: that of the target language, if there is one."""
    if tgt_lang and tokenizer_languages(tokenizer):
        return language_id(tokenizer, tgt_lang)
    return model.generation_config.forced_bos_token_id


def batches_of_pairs(lengths: Sequence[tuple[int, int]], max_tokens: int) -> list[list[int]]:
    """Indices of pairs in batches of at most `max_tokens`, the longest first; a longer pair forms a separate batch.

    Args:
        lengths: tokens of source and target.
        max_tokens: limit on pairs × (longest source + longest target).
    """
    batches: list[list[int]] = []
    longest_source = longest_target = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i][::-1], reverse=True):
        source, target = max(longest_source, lengths[i][0]), max(longest_target, lengths[i][1])
        if batches and (len(batches[-1]) + 1) * (source + target) <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            source, target = lengths[i]
        longest_source, longest_target = source, target
    return batches

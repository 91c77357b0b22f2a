"""Log-probabilities of translations under a model, and batches of pairs, which alignments use too."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.progress import Update, process_stream
from ..data.sources import Pair, is_pair
from ..inputs_random_transformer import (
    CHUNK_SIZE,
    Ids,
    Languages,
    TextError,
    batches_by_tokens,
    check_positive,
    check_text,
    language_id,
    pad_ids,
    renumber_errors,
    source_text,
)
from ..modeling_random_transformer import shift_right
from ..ops_random_transformer import IGNORE_INDEX, row_chunks
from ..pipeline_random_transformer import Seq2SeqPipeline, current_device, evaluation_mode


@dataclass(frozen=True, slots=True)
class PairScore:
    """The probability of a translation, given its source.

    Attributes:
        log_probability: sum of the natural logarithms of the target tokens' probabilities, including the end token.
        tokens: number of these tokens.
        source_tokens: number of tokens of the source.
        token_log_probabilities: the terms of the sum, in the order of the tokens, if they were requested.
    """

    log_probability: float
    tokens: int
    source_tokens: int
    token_log_probabilities: list[float] | None = None


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Iterable[Pair | None],
    *,
    token_scores: bool = False,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> Iterator[PairScore]:
    """The log-probability of each pair of source and target, in the order of the pairs.

    The function returns a lazy iterator that reads one chunk at a time. Scoring takes one forward pass. A
    target-language tag that `generate()` would force as the first token is neither scored nor counted.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`. It stays on its device and runs in evaluation mode.
        tokenizer: its tokenizer.
        pairs: sources and targets. A target may be empty, a source may not. The score of `None` is `None`.
        token_scores: return `token_log_probabilities` too.
        chunk_size: number of pairs that are sorted by length together.
        progress: show a progress bar on stderr; `None` shows it after a delay.
        **options: `src_lang`, `tgt_lang`, `max_batch_tokens=4096` and `truncation=False`; see `PairModel`.

    Raises:
        ValueError: an argument is invalid, or a pair is not two strings, has a blank source or is too long. Arguments
            are checked immediately, pairs when they are read.
    """
    scorer = Scorer(model, tokenizer, token_scores=token_scores, **options)
    return process_stream(pairs, scorer, chunk_size, progress, length_hint(pairs), "pair")


class PairModel(ABC):
    """Base of classes that process pairs with a model, in batches of similar length.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        src_lang: language code of the sources, for a tokenizer with language tags; `None` for the tokenizer's.
        tgt_lang: language code of the targets; `None` for the tokenizer's.
        max_batch_tokens: limit on the size of a batch: pairs × (tokens of the longest source + longest target). A
            longer pair forms a separate batch.
        truncation: truncate texts with more tokens than `tokenizer.model_max_length` or the model's learned positions.
            By default they raise an error.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        max_batch_tokens: int = 4096,
        truncation: bool = False,
    ):
        check_positive(max_batch_tokens=max_batch_tokens)
        self.model = model
        self.tokenizer = tokenizer
        self.languages = Languages.of(tokenizer, src_lang, tgt_lang)
        self.pipe = Seq2SeqPipeline(model, tokenizer, device=current_device(model), truncation=truncation)
        self.pipe.warns_of_truncation = False
        self.max_batch_tokens = max_batch_tokens
        self.start = decoder_start(model)

    @abstractmethod
    def effective_options(self) -> dict[str, Any]:
        """The settings that change the results, without the model and its languages."""

    @abstractmethod
    def process(self, pairs: Sequence[Pair], sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Any]:
        """The result of each pair of a batch, from the texts as they are tokenized, and the token ids."""

    def __call__(self, pairs: Sequence[Pair | None], _first: int, update: Update) -> list[Any]:
        """The result of each pair, and `None` for `None`; see `process_stream`."""
        results = [None] * len(pairs)
        numbers = [number for number, pair in enumerate(pairs) if pair is not None]
        present = [pair for pair in pairs if pair is not None]
        update(len(pairs) - len(present))
        with renumber_errors(numbers):
            texts, sources, targets = self.tokenize(present)
        # The target length is the first criterion, since the logits need the most memory.
        lengths = list(zip(map(len, targets), map(len, sources), strict=True))
        for batch in batches_by_tokens(lengths, self.max_batch_tokens):
            processed = self.process(
                [texts[i] for i in batch],
                [sources[i] for i in batch],
                [targets[i] for i in batch],
            )
            for i, result in zip(batch, processed, strict=True):
                results[numbers[i]] = result
            update(len(batch))
        return results

    def tokenize(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Ids], list[Ids]]:
        """The texts as they are tokenized, and their token ids; raises a `TextError` for an invalid pair."""
        for index, pair in enumerate(pairs):
            if not is_pair(pair) or not isinstance(pair[1], str):
                raise TextError(index, f"pairs must be two strings, got {pair!r}.")
            check_text(pair[0], index)
        options = self.pipe.call_options(**self.languages.arguments)
        texts = [self.texts_to_tokenize(*pair) for pair in pairs]
        source_ids = self.pipe.tokenize([source for source, _ in texts], options)
        target_ids = self.pipe.tokenize([target for _, target in texts], options, is_target=True)
        return texts, source_ids, target_ids

    @abstractmethod
    def texts_to_tokenize(self, source: str, target: str) -> Pair:
        """A source and a target as they are tokenized."""

    def inputs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> tuple[dict[str, Tensor], Tensor]:
        """The arguments of the model for a batch, and the labels, `[batch, target_len]`."""
        device = self.model.device
        labels = pad_ids(targets, IGNORE_INDEX).to(device)
        inputs = {name: value.to(device) for name, value in self.pipe.pad(sources).items()}
        padding = self.tokenizer.pad_token_id or 0
        inputs["decoder_input_ids"] = shift_right(labels, self.start, padding)
        return inputs, labels


class Scorer(PairModel):
    """Scores pairs; see `score_pairs` and `PairModel` for the arguments."""

    def __init__(self, *args: Any, token_scores: bool = False, **options: Any):
        super().__init__(*args, **options)
        self.token_scores = token_scores
        self.forced = self.model.generation_config.forced_bos_token_id
        if self.languages.target is not None:
            self.forced = language_id(self.tokenizer, self.languages.target)

    def effective_options(self) -> dict[str, Any]:
        """Whether the probabilities of tokens are returned."""
        return {"token_scores": self.token_scores}

    def texts_to_tokenize(self, source: str, target: str) -> Pair:
        """The source as it is translated, and the target as it is given."""
        return source_text(source, self.tokenizer, self.model.config), target

    def process(self, pairs: Sequence[Pair], sources: Sequence[Ids], targets: Sequence[Ids]) -> list[PairScore]:  # noqa: ARG002
        """The score of each pair of a batch."""
        scores = []
        for source, target, row in zip(sources, targets, self.forward(sources, targets), strict=True):
            first = int(target[:1] == [self.forced])
            values = row[first : len(target)]
            scores.append(PairScore(sum(values), len(values), len(source), values if self.token_scores else None))
        return scores

    @torch.inference_mode()
    def forward(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[list[float]]:
        """The log-probability of each target token, `[batch, target_len]`; 0 for padding and a forced first token."""
        inputs, labels = self.inputs(sources, targets)
        if self.forced is not None:
            labels[:, 0].masked_fill_(labels[:, 0] == self.forced, IGNORE_INDEX)
        with evaluation_mode(self.model):
            # Calling `lm_head` alone would need less memory, but the code of the model may have been edited.
            logits = self.model(**inputs, use_cache=False).logits
        return label_log_probabilities(logits, labels).tolist()


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


def label_log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """The natural logarithm of each label's probability, and 0 for ignored labels: `[batch, target_len]`.

    Equals `logits.log_softmax(-1)` gathered at the labels, in float32 at least, without a copy of all logits: a few
    rows at a time are converted. It has no gradient.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`, -100 for positions without a target.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    rows = logits.detach().flatten(0, -2)
    targets = labels.flatten()
    losses = []
    for chunk in row_chunks(rows):
        losses.append(cross_entropy(rows[chunk].to(dtype), targets[chunk], reduction="none"))
    return 0 - torch.cat(losses).view(labels.shape)

"""Translation of texts: batched by length, given back in order, a chunk at a time."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import tqdm

from ..pipeline_random_transformer import TOKENIZER_LOCK, evaluation_mode, source_limit
from ..utils.checks import check_positive

CHUNK_SIZE = 1000
# The paper ends an output at the length of its input plus 50 (section 6.1). All texts of a batch have one limit, as the
# library's search looks ahead to it. Lengths rounded up to a multiple of 16 give enough texts the same.
LONGER_THAN_SOURCE = 50
LENGTH_STEP = 16
# Options of `generate()` that would give a text no translation, or several.
RESERVED = ("decoder_input_ids", "max_length", "num_return_sequences", "return_dict_in_generate", "streamer")


class Translator:
    """A model, its tokenizer and how to search: what every function of this package translates with.

    The translation of a text is that of the text alone: the texts around it change nothing but the rounding of its
    numbers (and what a sample draws). Several threads may translate with one model and one tokenizer at a time.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`. It runs where it is, in evaluation mode.
        tokenizer: its tokenizer.
        max_batch_tokens: size of a batch: texts × beams × tokens of the longest source. A text beyond it makes a batch
            of its own.
        num_beams: hypotheses of beam search (paper 6.1: 4); 1 for greedy search or plain sampling.
        length_penalty: a hypothesis of n tokens scores its log-probability divided by n to this power (paper 6.1: 0.6,
            there with (5 + n) / 6 for n). More favours longer translations. Without meaning for one beam.
        max_new_tokens: limit on a translation's tokens; `None` for its source's tokens, rounded up to a multiple of 16,
            plus 50 (paper 6.1, without the rounding). Where the model's positions end before, they are the limit.
        max_source_tokens: cut longer sources to this number of tokens. With `None`, a source longer than
            `tokenizer.model_max_length` raises an error. A source longer than the model's positions always does.
        seed: set torch's random number generator to it (plus the number of the chunk's first text) before each chunk,
            so that `do_sample=True` draws the same again; `None` leaves the generator alone. All threads share it.
        **generate_options: any other option of `generate()`, such as `do_sample`, `temperature` or
            `no_repeat_ngram_size`.

    Raises:
        ValueError: an option is not allowed; the message names it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch_tokens: int = 4096,
        num_beams: int = 4,
        length_penalty: float = 0.6,
        max_new_tokens: int | None = None,
        max_source_tokens: int | None = None,
        seed: int | None = None,
        **generate_options: Any,
    ):
        check_positive(max_batch_tokens=max_batch_tokens, num_beams=num_beams)
        check_positive(or_none=True, max_new_tokens=max_new_tokens, max_source_tokens=max_source_tokens)
        for name in RESERVED:
            if name in generate_options:
                raise ValueError(f"{name} must be left to the translator, got {generate_options[name]!r}.")
        self.model = model
        self.tokenizer = tokenizer
        self.max_batch_tokens = max_batch_tokens
        self.max_new_tokens = max_new_tokens
        self.max_source_tokens = max_source_tokens
        self.seed = seed
        self.generate_options = {**generate_options, "num_beams": num_beams}
        if num_beams > 1:
            self.generate_options["length_penalty"] = length_penalty

    def __call__(self, texts: Sequence[str], first: int = 1, count: Callable[[int], Any] = lambda _: None) -> list[str]:
        """Translate one chunk of texts.

        Args:
            texts: what to translate. A text of nothing but white space has an empty translation.
            first: the number of the first text, for errors and for the seed.
            count: called with the number of texts done, once per batch.

        Raises:
            ValueError: a text is no string or too long for the model; the message gives its number.
        """
        sources = self.tokenize(texts, first)
        translations = [""] * len(texts)
        count(sources.count([]))
        if self.seed is not None:
            torch.manual_seed(self.seed + first)
        for batch in self.batches([len(source) for source in sources]):
            for index, translation in zip(batch, self.generate([sources[i] for i in batch]), strict=True):
                translations[index] = translation
            count(len(batch))
        return translations

    def tokenize(self, texts: Sequence[str], first: int = 1) -> list[list[int]]:
        """Token ids of each text, none for a blank one."""
        for number, text in enumerate(texts, start=first):
            check_text(text, number)
        written = [text for text in texts if text.strip()]
        cut = {"truncation": True, "max_length": self.max_source_tokens} if self.max_source_tokens else {}
        with TOKENIZER_LOCK:  # not verbose: the lengths are checked below
            tokenized = iter(self.tokenizer(written, verbose=False, **cut)["input_ids"] if written else ())
        sources = [next(tokenized) if text.strip() else [] for text in texts]
        limit, reason = source_limit(self.tokenizer, self.positions, self.max_source_tokens)
        for number, source in enumerate(sources, start=first):
            if len(source) > limit:
                raise ValueError(
                    f"texts must have at most {limit} tokens ({reason}), but text {number} has {len(source)}; "
                    "max_source_tokens cuts it."
                )
        return sources

    def batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of texts of similar length and the same limit, the longest first: what is too much fails soon."""
        order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
        while order:
            longest = lengths[order[0]]
            size = max(1, self.max_batch_tokens // (longest * self.generate_options["num_beams"]))
            limit = self.longest_target(longest)
            batch = [i for i in order[:size] if self.longest_target(lengths[i]) == limit]
            yield batch
            order = order[len(batch) :]

    def generate(self, sources: list[list[int]]) -> list[str]:
        """Translate one batch of token ids."""
        # On the right whatever the tokenizer would do: positions count from the left.
        padded = self.tokenizer.pad({"input_ids": sources}, padding_side="right", return_tensors="pt")
        inputs = padded.to(self.model.device)
        limit = self.longest_target(max(map(len, sources)))
        with evaluation_mode(self.model), torch.inference_mode():
            # The limit as a length, 1 for the start token: the library warns of two where a model's folder has its own.
            targets = self.model.generate(**inputs, **self.generate_options, max_length=1 + limit, max_new_tokens=None)
        with TOKENIZER_LOCK:
            return self.tokenizer.batch_decode(targets, skip_special_tokens=True)

    def longest_target(self, source_len: int) -> int:
        """The limit on the tokens of a translation."""
        return longest_target(source_len, self.model.config, self.max_new_tokens)

    @property
    def positions(self) -> int | None:
        """How many tokens the model has positions for; `None` for any number."""
        return position_limit(self.model.config)


def longest_target(source_len: int, config: PretrainedConfig, max_new_tokens: int | None = None) -> int:
    """The limit on the tokens that `generate()` adds to the start token, for translation and for evaluation alike.

    Args:
        source_len: tokens of the source; of a batch, those of its longest source, padding not counted.
        config: the model's configuration, whose positions limit the target too.
        max_new_tokens: the caller's limit; `None` for `source_len`, rounded up to a multiple of 16, plus 50 (paper 6.1,
            without the rounding).
    """
    limit = max_new_tokens or math.ceil(source_len / LENGTH_STEP) * LENGTH_STEP + LONGER_THAN_SOURCE
    positions = position_limit(config)
    return limit if positions is None else min(limit, positions)


def position_limit(config: PretrainedConfig) -> int | None:
    """How many tokens a model has positions for; `None` for any number."""
    endless = getattr(config, "position_embedding", "learned") != "learned"
    return None if endless else getattr(config, "max_position_embeddings", None)


def translate(
    texts: Iterable[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> list[str]:
    """Translate texts, batched by length; the translations are in the order of the texts.

    Args:
        texts: any iterable of strings.
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        chunk_size: how many texts to sort by length at a time.
        progress: draw a progress bar on stderr; `None` draws it if there is time to look at it.
        **options: those of `Translator` (`max_batch_tokens=4096`, `num_beams=4`, `length_penalty=0.6`,
            `max_new_tokens`, `max_source_tokens`, `seed`) and of `generate()`.

    Raises:
        ValueError: an argument is not allowed, or a text is no string or too long for the model.
    """
    return list(translate_stream(texts, model, tokenizer, chunk_size=chunk_size, progress=progress, **options))


def translate_stream(
    texts: Iterable[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> Iterator[str]:
    """`translate` for any number of texts: reads a chunk, yields its translations, and keeps nothing.

    With `chunk_size=1` each text is translated before the next is read. Arguments and errors are those of `translate`;
    arguments are checked at once, texts when their turn comes.
    """
    if isinstance(texts, str | bytes):
        raise ValueError(f"texts must be an iterable of strings, got one {type(texts).__name__}.")
    check_positive(chunk_size=chunk_size)
    return _stream(iter(texts), Translator(model, tokenizer, **options), chunk_size, progress_bar(texts, progress))


def _stream(texts: Iterator[str], translator: Translator, chunk_size: int, bar: Any) -> Iterator[str]:
    first = 1
    with bar:
        while chunk := list(islice(texts, chunk_size)):
            yield from translator(chunk, first, bar.update)
            first += len(chunk)


def progress_bar(texts: Iterable[Any], shown: bool | None, done: int = 0) -> Any:
    """A bar on stderr that counts texts. Left to itself it appears after a second, or a minute in a log file."""
    watched = sys.stderr.isatty()
    return tqdm(
        total=len(texts) if isinstance(texts, Sized) else None,
        initial=done,
        unit="text",
        disable=shown is False,
        delay=0 if shown else 1 if watched else 60,
        mininterval=0.1 if watched or shown else 60,
    )


def check_text(text: Any, number: int) -> None:
    """Refuse what a tokenizer cannot read: anything but a string of Unicode characters."""
    if not isinstance(text, str):
        raise ValueError(f"texts must be strings, but text {number} is a {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"texts must be Unicode, but text {number} is not: {error}.") from error

"""Translation of lists and streams of texts through the pipeline."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import zip_longest
from operator import length_hint
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.progress import process_stream
from ..inputs_random_transformer import (
    CHUNK_SIZE,
    LanguageTags,
    check_positive,
    check_text,
    check_type,
    renumber_errors,
    tokenizer_languages,
)
from ..pipeline_random_transformer import OUTPUT_OPTIONS, Seq2SeqPipeline, current_device, search_options
from ..tokenization_random_transformer import is_blank
from .engine import length_penalty_of
from .glossary import LISTED, Glossary, place_terms
from .markup import Block
from .mbr import SAMPLING, most_similar
from .placement import UnitAligner, protect, restore
from .sentences import SentenceSplitter

# Beam search begins all beams but the first with a score of -1e9. They keep it if other options, such as
# `prefix_allowed_tokens_fn`, allow fewer tokens than there are beams.
EXCLUDED = -1e6
# Options of the pipeline and of `generate()` that are not allowed, because they would change the type of the output.
RESERVED = (
    *("batch_size", "decoder_input_ids", "device", "max_length", "return_key", "return_tokens", "streamer"),
    *OUTPUT_OPTIONS,
)


@dataclass(frozen=True)
class TranslationOptions:
    """The options of `translate`, `translate_stream` and `translate_file`.

    The translation of a text does not depend on the other texts, except for rounding (and for sampling).

    Attributes:
        max_batch_tokens: limit on the size of a batch: texts × beams × tokens of the longest source. A longer
            text forms a separate batch. An engine gets several batches at once.
        num_beams: hypotheses of beam search (paper 6.1: 4); 1 for greedy search or sampling.
        length_penalty: exponent of the length by which the log-probability of a hypothesis is divided; `None` for that
            of the model's generation config, or 0.6 (paper 6.1, with (5 + length) / 6 as the length). Larger values
            favor longer translations. Unused with one beam.
        max_new_tokens: limit on the tokens of a translation, including those of a forced prefix; `None` for
            `longest_target`. Learned positions limit both.
        max_source_tokens: truncate longer sources. With `None`, a source longer than `tokenizer.model_max_length` or
            than the model's positions is an error.
        n_best: number of candidates per text, for `translate_n_best` and `translate_file`; at most `num_beams`, unless
            they are sampled without beams. Beam search may find fewer if other options limit the tokens.
        mbr: number of samples, of which the most similar to all others is the translation (minimum Bayes risk), instead
            of beam search; not with `n_best`. Without other options, samples are of the 5 most probable tokens with
            a temperature of 0.7.
        seed: before each chunk, torch's random number generator is set to this number plus that of the chunk's first
            text (from 1), so that sampling is reproducible. `None` leaves the generator, which all threads share,
            unchanged.
        glossary: phrases that translations must contain; not with `n_best`. A translation that lacks one is continued
            again after it, and is replaced if the result lacks fewer. All others are those without a glossary.
        generate_options: `src_lang`, `tgt_lang` and options of `generate()`, such as `do_sample`, `temperature` or
            `no_repeat_ngram_size`.

    Raises:
        ValueError: an option is invalid; the message names it.
    """

    max_batch_tokens: int = 4096
    num_beams: int = 4
    length_penalty: float | None = None
    max_new_tokens: int | None = None
    max_source_tokens: int | None = None
    n_best: int | None = None
    mbr: int | None = None
    seed: int | None = None
    split_sentences: bool = False
    glossary: Glossary | None = None
    generate_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(max_batch_tokens=self.max_batch_tokens, num_beams=self.num_beams)
        check_positive(or_none=True, max_new_tokens=self.max_new_tokens, max_source_tokens=self.max_source_tokens)
        for name in RESERVED:
            if name in self.generate_options:
                raise ValueError(f"{name} must not be given, got {self.generate_options[name]!r}.")
        check_positive(or_none=True, n_best=self.n_best, mbr=self.mbr)
        check_type("glossary", self.glossary, Glossary, "a Glossary")
        for name in ("mbr", "split_sentences", "glossary"):
            if self.n_best is not None and getattr(self, name):
                raise ValueError(f"n_best must be None with {name}, got {self.n_best}.")
        sampled = self.num_beams == 1 and self.generate_options.get("do_sample")
        if self.n_best is not None and self.n_best > self.num_beams and not sampled:
            raise ValueError(f"n_best must be at most num_beams={self.num_beams}, got {self.n_best}.")

    @classmethod
    def from_kwargs(cls, **options: Any) -> "TranslationOptions":
        """Separate the options of this class from those of `generate()`."""
        names = [entry.name for entry in fields(cls) if entry.name in options]
        return cls(**{name: options.pop(name) for name in names}, generate_options=options)

    @property
    def search_options(self) -> dict[str, Any]:
        """The options of `generate()`, except for the limit on new tokens."""
        if self.mbr is not None:
            return search_options(1, **{**SAMPLING, **self.generate_options, "num_return_sequences": self.mbr})
        count = {} if self.n_best is None else {"num_return_sequences": self.n_best}
        return search_options(self.num_beams, self.length_penalty, **self.generate_options, **count)

    def languages(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """`src_lang` and `tgt_lang` as far as they are given, for a tokenizer with language tags."""
        given = LanguageTags(self.generate_options.get("src_lang"), self.generate_options.get("tgt_lang"))
        return given.options(tokenizer)

    def pipeline(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Seq2SeqPipeline:
        """A pipeline with these options. The model stays on its device."""
        search = self.search_options
        if self.split_sentences and not tokenizer_languages(tokenizer):
            search.pop("src_lang", None)
        pipe = Seq2SeqPipeline(
            model,
            tokenizer,
            device=current_device(model),
            max_batch_tokens=self.max_batch_tokens * getattr(getattr(model, "engine", None), "batches", 1),
            max_source_tokens=self.max_source_tokens,
            max_new_tokens=self.max_new_tokens,
            return_scores=self.n_best is not None,
            return_tokens=True,
            **search,
        )
        pipe.warns = False
        pipe.check_target_language()
        return pipe


def open_pipeline(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> tuple[Seq2SeqPipeline, TranslationOptions]:
    """A pipeline with these options of `translate`, and the options with the model's length penalty by default."""
    settings = TranslationOptions.from_kwargs(**options)
    if settings.length_penalty is None:
        settings = replace(settings, length_penalty=length_penalty_of(model.generation_config))
    return settings.pipeline(model, tokenizer), settings


@dataclass(frozen=True, slots=True)
class Candidate:
    """A translation.

    Attributes:
        translation: the text.
        score: see `return_scores` of the pipeline.
        tokens: the generated tokens with special ones; empty for a blank text, which is not passed to the model.
    """

    translation: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list, compare=False, repr=False)


def translate_chunk(
    pipe: Seq2SeqPipeline,
    options: TranslationOptions,
    texts: Sequence[tuple[str, str]],
    first: int,
    update: Callable[[int], Any],
) -> list[list[Candidate]]:
    """Translate texts that are sorted by length together.

    Args:
        pipe: see `TranslationOptions.pipeline`.
        options: the options of the pipeline.
        texts: each text with what its translation must begin with. The translation of a blank text is `""`.
        first: index of the first text in its file or stream, from 0, for the seed.
        update: called after each batch with its number of texts.

    Returns:
        The candidates of each text, the best first: `n_best` of them, or fewer if beam search finds no more; without
        `n_best`, one without a score.

    Raises:
        TextError: a text is not a string or is too long.
    """
    if options.split_sentences:
        return translate_sentences(pipe, options, texts, first, update)
    candidates = [[Candidate("")] * (options.n_best or 1) for _ in texts]
    given = [i for i, (text, _) in enumerate(texts) if not isinstance(text, str) or not is_blank(text)]
    update(len(texts) - len(given))
    if options.seed is not None:
        torch.manual_seed(options.seed + first + 1)
    preprocess_params, forward_params, postprocess_params = pipe.params_of_call()
    preprocess_params["target_prefix"] = [texts[i][1] for i in given]
    params = (preprocess_params, forward_params, postprocess_params)
    with renumber_errors(given):
        for batch in pipe.answers([texts[i][0] for i in given], 1, params):
            for i, answer in batch.items():
                candidates[given[i]] = best_first(answer if isinstance(answer, list) else [answer])
            update(len(batch))
    if options.mbr is not None:
        candidates = [[row[most_similar([each.translation for each in row])]] for row in candidates]
    if options.glossary is None:
        return candidates
    others = replace(options, glossary=None, seed=None)
    listing = replace(others, mbr=None, n_best=LISTED, num_beams=LISTED)

    def search(rows: Sequence[tuple[str, str]], several: bool) -> list[list[Candidate]]:
        chosen = (listing.pipeline(pipe.model, pipe.tokenizer), listing) if several else (pipe, others)
        return translate_chunk(*chosen, rows, first, lambda _: None)

    return [[best] for best in place_terms(pipe, options, texts, [best for [best] in candidates], search)]


def translate_sentences(
    pipe: Seq2SeqPipeline,
    options: TranslationOptions,
    texts: Sequence[tuple[str, str]],
    first: int,
    update: Callable[[int], Any],
) -> list[list[Candidate]]:
    """`translate_chunk` for texts of several sentences. A prefix is that of the first sentence."""
    splitter = SentenceSplitter(pipe, options.max_source_tokens, options.generate_options.get("src_lang"))
    owners, rows, documents = [], [], []
    for index, (text, prefix) in enumerate(texts):
        if not isinstance(text, str) or not is_blank(text):
            check_text(text, index)
        documents.append(splitter(text))
        owners += [index] * len(documents[-1].sentences)
        rows += [(sentence, "" if i else prefix) for i, sentence in enumerate(documents[-1].sentences)]
    done, total = 0, max(1, len(rows))

    def update_texts(count: int) -> None:
        nonlocal done
        update((done + count) * len(texts) // total - done * len(texts) // total)
        done += count

    protected = [protect(sentence) for sentence, _ in rows]
    rows = [row if block is None else (block.text, row[1]) for row, block in zip(rows, protected, strict=True)]
    with renumber_errors(owners):
        results = translate_chunk(pipe, replace(options, split_sentences=False), rows, first, update_texts)
    found = iter(with_placeholders(pipe, options, protected, [best for [best] in results]))
    candidates = []
    for document in documents:
        parts = [next(found) for _ in document.sentences]
        tokens = [token for part in parts for token in part.tokens]
        candidates.append([Candidate(document.join([part.translation for part in parts]), tokens=tokens)])
    return candidates


def with_placeholders(
    pipe: Seq2SeqPipeline, options: TranslationOptions, protected: Sequence[Block | None], found: Sequence[Candidate]
) -> list[Candidate]:
    """The translations of sentences, with the placeholders of those that are protected."""
    numbers = [number for number, block in enumerate(protected) if block is not None]
    if not numbers:
        return list(found)
    aligner = None
    if not (hasattr(pipe.model, "members") or getattr(pipe.model.config, "prefix", None)):
        aligner = UnitAligner(pipe.model, pipe.tokenizer, truncation=True, **options.languages(pipe.tokenizer))
    blocks = [block for block in protected if block is not None]
    texts = restore(blocks, [found[number].translation.strip() for number in numbers], aligner)
    restored = list(found)
    for number, text in zip(numbers, texts, strict=True):
        restored[number] = replace(found[number], translation=text)
    return restored


def best_first(answers: Sequence[dict[str, Any]]) -> list[Candidate]:
    """The candidates of a text, without the excluded beams; samples are in random order."""
    found = [Candidate(answer["generated_text"], answer.get("score", 0.0), answer["tokens"]) for answer in answers]
    found.sort(key=lambda candidate: candidate.score, reverse=True)
    return [found[0], *(other for other in found[1:] if other.score > EXCLUDED)]


def translate(
    texts: Iterable[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    prefixes: Iterable[str] | None = None,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> list[str]:
    """Translate texts in batches of similar length; translations are in the order of the texts.

    Args:
        texts: any iterable of strings.
        model: any model of `AutoModelForSeq2SeqLM`. It stays on its device and runs in evaluation mode.
        tokenizer: its tokenizer.
        prefixes: what the translation of each text must begin with, `""` for anything; see `target_prefix` of the
            pipeline.
        chunk_size: number of texts that are sorted by length together.
        progress: show a progress bar on stderr; `None` shows it after a delay.
        **options: those of `TranslationOptions` (`max_batch_tokens=4096`, `num_beams=4`, `length_penalty`,
            `max_new_tokens`, `max_source_tokens`, `mbr`, `seed`, `split_sentences=False`), `src_lang` and `tgt_lang`
            for a model of several languages, and those of `generate()`.

    Raises:
        ValueError: an argument is invalid, or a text is not a string or too long for the model.
    """
    job: dict[str, Any] = {"prefixes": prefixes, "chunk_size": chunk_size, "progress": progress}
    return list(translate_stream(texts, model, tokenizer, **job, **options))


def translate_stream(
    texts: Iterable[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> Iterator[str]:
    """`translate` for any number of texts: a lazy iterator that reads one chunk at a time.

    With `chunk_size=1`, each text is translated before the next is read. Arguments and errors are those of `translate`;
    arguments are checked immediately, texts when they are read.
    """
    if (n_best := options.pop("n_best", None)) is not None:
        raise ValueError(f"n_best must be given to translate_n_best, got {n_best}.")
    stream = translate_n_best(texts, model, tokenizer, n_best=None, **options)
    return (candidates[0].translation for candidates in stream)


def translate_n_best(
    texts: Iterable[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    n_best: int | None,
    prefixes: Iterable[str] | None = None,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> Iterator[list[Candidate]]:
    """`translate_stream` with the `n_best` best translations of each text and their scores, the best first.

    With `None`, there is one translation without a score. Otherwise, the scores of all tokens at all steps of a batch
    are in memory: decrease `max_batch_tokens` if it is exceeded.
    """
    if isinstance(texts, str | bytes):
        raise ValueError(f"texts must be an iterable of strings, got one {type(texts).__name__}.")
    process = partial(translate_chunk, *open_pipeline(model, tokenizer, n_best=n_best, **options))
    return process_stream(with_prefixes(texts, prefixes), process, chunk_size, progress, length_hint(texts))


def with_prefixes(
    texts: Iterable[str], prefixes: Iterable[str] | None, name: str = "prefixes"
) -> Iterator[tuple[str, str]]:
    """Each text with what its translation must begin with; `name` is that of the prefixes in an error."""
    absent = object()
    for text, prefix in zip_longest(texts, () if prefixes is None else prefixes, fillvalue=absent):
        if text is absent or (prefix is absent and prefixes is not None):
            raise ValueError(f"{name} must be one per text, got {'more' if text is absent else 'fewer'}.")
        yield text, "" if prefix is absent else prefix  # type: ignore[misc]

"""Translation of lists and streams of texts through the pipeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from numbers import Integral, Real
from operator import length_hint
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..base import load_extra
from ..base.errors import reraise_as_value_error
from ..base.flags import split_values
from ..base.progress import Update, process_stream
from ..inputs_random_transformer import (
    CHUNK_SIZE,
    HIGHEST_PENALTY,
    LOWEST_PENALTY,
    MAX_HYPOTHESES,
    Languages,
    TextError,
    check_positive,
    check_string,
    check_type,
    renumber_errors,
    tokenizer_languages,
)
from ..pipeline_random_transformer import (
    OUTPUT_OPTIONS,
    CallOptions,
    Seq2SeqPipeline,
    check_target_language,
    current_device,
)
from ..tokenization_random_transformer import check_iterable_of_texts, is_blank
from ..verification_random_transformer import generation_option
from .candidates import Candidate, PrefixedText, TranslateRows

PAPER_LENGTH_PENALTY = 0.6  # paper 6.1
# Beam search starts all beams except the first with a score of -1e9. Beams keep this score if other options, such as
# `prefix_allowed_tokens_fn`, allow fewer tokens than there are beams.
MAX_EXCLUDED_SCORE = -1e6
# Options of the pipeline and of `generate()` that this module sets, or that would change the type of the output.
RESERVED = {
    "batch_size",
    "decoder_input_ids",
    "device",
    "max_length",
    "return_key",
    "return_scores",
    "return_tokens",
    "streamer",
    "target_prefix",
    *OUTPUT_OPTIONS,
}

# Options whose functions are in `extras/wrappers`
WRAPPERS = ("mbr", "split_sentences", "glossary", "repair", "confidence", "min_confidence")
SINGLE_CANDIDATE_OPTIONS = ("mbr", "glossary", "min_confidence")  # options that cannot be combined with `n_best`
LARGEST_SEED = 2**62  # torch accepts 64 bits, and the numbers of texts are added
MBR_SAMPLING = {"do_sample": True, "top_k": 5, "temperature": 0.7}


@dataclass(frozen=True)
class TranslationOptions:
    """The options of `translate`, `translate_stream` and `translate_file`.

    The translation of a text does not depend on the other texts, except for rounding (and for sampling).

    Attributes:
        max_batch_tokens: limit on the size of a batch: texts × beams × tokens of the longest source. A longer
            text forms a separate batch. An engine gets several batches at once.
        num_beams: hypotheses of beam search (paper 6.1: 4); 1 for greedy search or sampling.
        length_penalty: exponent of the length by which the log-probability of a hypothesis is divided. Larger values
            favor longer translations. The default is the value of the model's generation config, otherwise 0.6 (paper
            6.1, with (5 + length) / 6 as the length). `None` without beam search.
        max_new_tokens: limit on the tokens of a translation, including a forced prefix. The default is
            `longest_target`. Learned positions limit both.
        max_source_tokens: truncate longer sources. With `None`, a source longer than `tokenizer.model_max_length` or
            than the model's positions is an error.
        n_best: number of candidates per text, for `translate_n_best` and `translate_file`; at most `num_beams`, unless
            they are sampled without beams. Beam search may find fewer if other options limit the tokens.
        mbr: number of samples for minimum Bayes risk decoding, which replaces beam search. The translation is the
            sample that is most similar to all others. By default, samples are drawn from the 5 most probable tokens
            with a temperature of 0.7. Not with `n_best`.
        seed: seed of sampling. Before each chunk, torch's random number generator, which all threads share, is set to
            this number plus the number of the chunk's first text (from 1). `None` does not set the generator. Only with
            `do_sample` or `mbr`.
        split_sentences: translate each text sentence by sentence, for a model that was trained on sentences. Requires
            sentencex.
        glossary: phrases that translations must contain. If a translation lacks a phrase, the search is continued after
            the phrase, and the result replaces the translation if it lacks fewer phrases. Other translations do not
            change. Not with `n_best`.
        repair: copy placeholders, translate texts in capitals in ordinary case, and replace translations with
            `problems`, such as a loop or a missing number. The replacement is another hypothesis of beam search, a
            hypothesis of a search without repetitions, or the translations of the clauses. With `n_best`, only the best
            translation of a text is replaced. Other translations do not change. Requires sentencex.
        confidence: rate the translations, for a model with a calibration.
        min_confidence: replace translations with a lower confidence by an empty text; not with `n_best`.
        keep_source: with `min_confidence`, replace these translations by their sources instead.
        pipeline_kwargs: `src_lang`, `tgt_lang` and options of `generate()`, such as `do_sample`, `temperature` or
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
    glossary: Any = None
    repair: bool = False
    confidence: bool = False
    min_confidence: float | None = None
    keep_source: bool = False
    pipeline_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(max_batch_tokens=self.max_batch_tokens)
        check_positive(or_none=True, max_new_tokens=self.max_new_tokens, max_source_tokens=self.max_source_tokens)
        check_positive(limit=MAX_HYPOTHESES, num_beams=self.num_beams)
        check_positive(or_none=True, limit=MAX_HYPOTHESES, n_best=self.n_best, mbr=self.mbr)
        check_range("length_penalty", self.length_penalty, LOWEST_PENALTY, HIGHEST_PENALTY)
        check_range("min_confidence", self.min_confidence, 0, 1)
        check_range("seed", self.seed, -LARGEST_SEED, LARGEST_SEED, Integral)
        for name in ("split_sentences", "repair", "confidence", "keep_source"):
            check_type(name, getattr(self, name), bool, "True or False")
        if self.pipeline_kwargs.get("generation_config") is not None:  # the defaults here would override its options
            raise ValueError("generation_config must be None: give its options as arguments.")
        if self.keep_source and self.min_confidence is None:
            raise ValueError("keep_source must be False without min_confidence, got True.")
        for name, value in self.pipeline_kwargs.items():
            if name in RESERVED:
                raise ValueError(f"{name} must not be given, got {value!r}.")
        if self.n_best is not None:
            self.check_n_best(self.n_best)
        self.check_effects()

    def check_n_best(self, n_best: int) -> None:
        """Check that the search returns a number of candidates."""
        for name in SINGLE_CANDIDATE_OPTIONS:
            if name in self.wrappers:
                raise ValueError(f"n_best must be None with {name}, got {n_best}.")
        is_sampled = self.num_beams == 1 and self.pipeline_kwargs.get("do_sample")
        if n_best > self.num_beams and not is_sampled:
            raise ValueError(f"n_best must be at most num_beams={self.num_beams}, got {n_best}.")

    def check_effects(self) -> None:
        """Check that the options of the search have an effect together."""
        if self.length_penalty is not None and not self.uses_length_penalty:
            raise ValueError(f"length_penalty must be None without beam search, got {self.length_penalty}.")
        if self.seed is not None and self.mbr is None and not self.pipeline_kwargs.get("do_sample"):
            raise ValueError(f"seed must be None without do_sample or mbr, got {self.seed}.")
        config = GenerationConfig()
        with reraise_as_value_error("options must be valid for generate()"):
            config.update(**self.search_kwargs)
            config.validate(strict=True)

    @property
    def uses_length_penalty(self) -> bool:
        """Whether there is a beam search. Glossaries and repairs search with several beams."""
        return self.repair or self.glossary is not None or (self.num_beams > 1 and self.mbr is None)

    @classmethod
    def from_kwargs(cls, **options: Any) -> "TranslationOptions":
        """Separate the options of this class from those of `generate()`."""
        settings, pipeline_kwargs = split_values(cls, options)
        return cls(**settings, pipeline_kwargs=pipeline_kwargs)

    @property
    def wrappers(self) -> list[str]:
        """The options that select wrappers, which change texts before and translations after the model."""
        return [name for name in WRAPPERS if is_set(getattr(self, name))]

    @property
    def search_kwargs(self) -> dict[str, Any]:
        """The arguments of the pipeline that select the languages and the search, without limits on lengths."""
        if self.mbr is not None:
            return search_options(1, **{**MBR_SAMPLING, **self.pipeline_kwargs, "num_return_sequences": self.mbr})
        search = search_options(self.num_beams, self.length_penalty, **self.pipeline_kwargs)
        if self.n_best is not None:
            search["num_return_sequences"] = self.n_best
        return search


def check_range(name: str, value: Any, lowest: float, highest: float, kind: Any = Real) -> None:
    """Raise a `ValueError` unless an option is `None` or a number in a range."""
    is_of_kind = isinstance(value, kind) and not isinstance(value, bool)
    if value is None or (is_of_kind and lowest <= value <= highest):
        return
    description = "an integer" if kind is Integral else "a number"
    raise ValueError(f"{name} must be None or {description} from {lowest} to {highest}, got {value!r}.")


def is_set(value: Any) -> bool:
    """Whether the value of an option is neither `None` nor `False`. 0 counts as set."""
    return value is not None and value is not False


def check_options_unset(options: Mapping[str, Any], names: Iterable[str], reason: str) -> None:
    """Raise a `ValueError` if one of these options is set; `reason` says why they must not be."""
    for name in names:
        value = options.get(name)
        if is_set(value):
            raise ValueError(f"{name} must be unset {reason}, got {value!r}.")


def search_options(num_beams: int, length_penalty: float | None = None, **options: Any) -> dict[str, Any]:
    """The options of `generate()` for translation. Evaluation in training, commands and engines share them.

    Args:
        num_beams: hypotheses of beam search; 1 for greedy search.
        length_penalty: see `TranslationOptions`; the model's value when `None`. It has no effect with one beam.
        **options: other options of `generate()`, such as `do_sample`, which a saved generation config does not enable.
    """
    search = {"do_sample": False, **options, "num_beams": num_beams}
    if num_beams > 1 and length_penalty is not None:
        search["length_penalty"] = length_penalty
    return search


def length_penalty_of(options: GenerationConfig) -> float:
    """The length penalty of a generation config, or the paper's."""
    stored = getattr(options, "length_penalty", None)
    return PAPER_LENGTH_PENALTY if stored is None else stored


@dataclass(frozen=True)
class BatchTranslator:
    """Translates rows through a pipeline, in batches of similar length. The translation of a blank text is `""`."""

    pipe: Seq2SeqPipeline
    options: CallOptions

    def __call__(self, rows: Sequence[PrefixedText], _first: int, update: Update) -> list[list[Candidate]]:
        """`num_return_sequences` candidates of each row, by default one, or fewer if beam search finds fewer.

        Raises:
            TextError: a text is too long.
        """
        count = self.options.generate_kwargs.get("num_return_sequences", 1)
        candidates = [[Candidate("")] * count for _ in rows]
        visible = [i for i, row in enumerate(rows) if not is_blank(row.text)]
        update(len(rows) - len(visible))
        texts = [rows[i].text for i in visible]
        prefixes = [rows[i].prefix for i in visible]
        with renumber_errors(visible):
            for i, answer in self.pipe.answers(texts, prefixes, self.options):
                candidates[visible[i]] = best_first(answer if isinstance(answer, list) else [answer])
                update(1)
        return candidates


def best_first(answers: Sequence[dict[str, Any]]) -> list[Candidate]:
    """The candidates of a text in descending order of score, if it has scores, without excluded beams."""
    candidates = [Candidate(answer["generated_text"], answer.get("score", 0.0), answer["tokens"]) for answer in answers]
    candidates.sort(key=lambda candidate: candidate.score, reverse=True)
    return [candidates[0], *(candidate for candidate in candidates[1:] if candidate.score > MAX_EXCLUDED_SCORE)]


@dataclass(frozen=True)
class SeededTranslator:
    """Translates by another function, after the random number generator is set to a number that depends on the rows."""

    translate_rows: TranslateRows
    seed: int

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row."""
        torch.manual_seed(self.seed + first + 1)
        return self.translate_rows(rows, first, update)


class Translator:
    """A model with options of `translate`, which are prepared once for any number of calls.

    Args:
        model: see `translate`.
        tokenizer: its tokenizer.
        **options: the options of `translate`.

    Attributes:
        options: the options, in which the model's length penalty is the default.
        pipe: the pipeline.
        languages: the languages of the call, for a tokenizer with language tags.
        composition: the `Composition` of the wrappers that the options select; `None` if they select none.
        translate_rows: translates texts.

    Raises:
        ValueError: an option is invalid.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any):
        device = current_device(model)  # first, since it reports arguments in another order
        self.options = TranslationOptions.from_kwargs(**options)
        if self.options.length_penalty is None and self.options.uses_length_penalty:
            self.options = replace(self.options, length_penalty=length_penalty_of(model.generation_config))
        search = self.options.search_kwargs
        if self.options.split_sentences and not tokenizer_languages(tokenizer):
            search.pop("src_lang", None)  # the language selects abbreviations only
        engine = getattr(model, "engine", None)
        self.pipe = Seq2SeqPipeline(
            model,
            tokenizer,
            device=device,
            max_batch_tokens=self.options.max_batch_tokens * getattr(engine, "batches_per_call", 1),
            max_source_tokens=self.options.max_source_tokens,
            max_new_tokens=self.options.max_new_tokens,
            return_scores=self.options.n_best is not None,
            return_tokens=True,
            **search,
        )
        self.pipe.warns_of_truncation = False
        check_target_language(model, tokenizer, self.pipe.defaults.generate_kwargs)

        self.languages = Languages(self.pipe.defaults.src_lang, self.pipe.defaults.tgt_lang)
        self.composition: Any = None
        translate_rows: TranslateRows = BatchTranslator(self.pipe, self.pipe.defaults)
        if self.options.wrappers:
            extra = load_extra("wrappers.composition")
            self.composition = extra.Composition(translate_rows, self.pipe, self.options, self.languages)
            translate_rows = self.composition.translate_rows
        elif self.options.seed is not None:
            translate_rows = SeededTranslator(translate_rows, self.options.seed)
        self.translate_rows = translate_rows

    def stream(
        self,
        texts: Iterable[str],
        prefixes: Iterable[str] | None = None,
        chunk_size: int = CHUNK_SIZE,
        progress: bool | None = None,
    ) -> Iterator[list[Candidate]]:
        """The candidates of each text, lazily; see `translate_n_best`.

        Raises:
            ValueError: the texts or the prefixes are one string, or not iterable; or, while texts are translated, a
                text or a prefix is invalid.
        """
        check_iterable_of_texts("texts", texts)
        if prefixes is not None:
            check_iterable_of_texts("prefixes", prefixes)
        prefixed = with_prefixes(texts, prefixes)
        return process_stream(prefixed, self.translate_rows, chunk_size, progress, length_hint(texts))

    def effective_options(self) -> dict[str, Any]:
        """The options that determine the translations, with their effective values."""
        # The effective limit: truncating longer sources does not change the translation of sources within the limit.
        limit, _ = self.pipe.source_limit(self.options.max_source_tokens)
        effective = {
            **self.options.search_kwargs,
            "max_source_tokens": limit,
            "max_new_tokens": self.options.max_new_tokens,
            "seed": self.options.seed,
            "mbr": self.options.mbr,
        }
        engine = getattr(self.pipe.model, "engine", None)
        if engine is not None:
            effective["engine"] = engine.name
        if self.composition is not None:
            effective |= self.composition.effective_options()
        if generation_option(self.pipe.model, effective, "do_sample"):
            effective["max_batch_tokens"] = self.options.max_batch_tokens  # the texts of a batch share random numbers
        return effective


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
        prefixes: the prefix of each translation, `""` for none; see `target_prefix` of the pipeline.
        chunk_size: number of texts that are sorted by length together.
        progress: show a progress bar on stderr; `None` shows it after a delay.
        **options: options of `TranslationOptions`, except for `n_best` and `confidence`, options of `generate()`, and
            `src_lang` and `tgt_lang` for a model of several languages.

    Raises:
        ValueError: an argument is invalid, or a text is not a string or too long for the model.
    """
    return list(
        translate_stream(
            texts, model, tokenizer, prefixes=prefixes, chunk_size=chunk_size, progress=progress, **options
        )
    )


def translate_stream(
    texts: Iterable[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> Iterator[str]:
    """`translate` for any number of texts: a lazy iterator that reads one chunk at a time.

    With `chunk_size=1`, each text is translated before the next is read. Arguments and errors are those of `translate`;
    arguments are checked immediately, texts when they are read.
    """
    check_options_unset(options, ("n_best", "confidence"), "(translate_n_best returns their results)")
    stream = translate_n_best(texts, model, tokenizer, **{**options, "n_best": None})
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

    With `n_best=None`, there is one translation without a score. Otherwise, the scores of all tokens at all steps of a
    batch are in memory. If the memory is not sufficient, decrease `max_batch_tokens`.
    """
    return Translator(model, tokenizer, n_best=n_best, **options).stream(texts, prefixes, chunk_size, progress)


def with_prefixes(
    texts: Iterable[str], prefixes: Iterable[str] | None, name: str = "prefixes"
) -> Iterator[PrefixedText]:
    """Each text with the prefix of its translation. `name` is the name of the prefixes in an error.

    Raises:
        TextError: a text or a prefix is not a string, or a text is not Unicode.
        ValueError: there are more or fewer prefixes than texts.
    """
    absent = object()
    rows: Any = ((text, "") for text in texts)
    if prefixes is not None:
        rows = zip_longest(texts, prefixes, fillvalue=absent)
    for index, (text, prefix) in enumerate(rows):
        if text is absent:
            raise ValueError(f"{name} must be one per text, got more.")
        if prefix is absent:
            raise ValueError(f"{name} must be one per text, got fewer.")
        check_string(text, index)
        if not isinstance(prefix, str):
            raise TextError(index, f"{name} must be strings, got {prefix!r}.")
        if is_blank(prefix):
            prefix = ""
        yield PrefixedText(text, prefix)

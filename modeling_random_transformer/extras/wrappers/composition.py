"""Composes the wrappers that the options of `translate` select. Each wrapper calls another translator."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from ...data.sources import Pair
from ...inference.candidates import TranslateRows
from ...inference.confidence import Calibration, find_calibration
from ...inference.translation import BatchTranslator, SeededTranslator, TranslationOptions
from ...inputs_random_transformer import Languages, check_type, longest_target
from ...pipeline_random_transformer import Seq2SeqPipeline
from ..pairs.words import WordScore, WordScorer
from .cases import CaseTranslator
from .copying import CopyingTranslator
from .glossary import LISTED, Glossary, GlossaryTranslator
from .mbr import MbrTranslator
from .problems import COPIED_NUMBER, Detector, detector_of
from .rating import RatingTranslator, SelectingTranslator
from .repair import (
    CLAUSE_TOKENS,
    HYPOTHESES,
    WITHOUT_EQUAL_TOKENS,
    WITHOUT_LOOPS,
    WITHOUT_REPETITIONS,
    RepairingTranslator,
)
from .sentences import SentenceSplitter, SentenceTranslator, SpaceTranslator


class Composition:
    """Wraps a function that translates by the functions of the options that are set.

    Args:
        translator: the function, which calls the pipeline.
        pipe: the pipeline of the model.
        options: the options.
        languages: the languages that are given, for a tokenizer with language tags.
    """

    def __init__(
        self, translator: TranslateRows, pipe: Seq2SeqPipeline, options: TranslationOptions, languages: Languages
    ):
        self.translator = translator
        self.pipe = pipe
        self.options = options
        self.languages = languages
        # The language selects the rules of sentence splitting, also for a model without language tags.
        self.source_language: str | None = options.pipeline_kwargs.get("src_lang")
        self.is_rated = options.confidence or options.min_confidence is not None

    @cached_property
    def translate_rows(self) -> TranslateRows:
        """The function of texts.

        Raises:
            ValueError: an option is invalid, or the model does not support it.
        """
        options = self.options
        translate_rows = self.translate_sentence_rows
        if options.split_sentences:
            splitter = SentenceSplitter(self.pipe, options.max_source_tokens, self.source_language)
            translate_rows = SentenceTranslator(translate_rows, splitter, self.languages)
        elif options.repair:
            translate_rows = CopyingTranslator(translate_rows, self.pipe, self.languages)
        if options.min_confidence is not None:
            translate_rows = SelectingTranslator(translate_rows, options.min_confidence, options.keep_source)
        return translate_rows

    @cached_property
    def translate_sentence_rows(self) -> TranslateRows:
        """The function of single sentences, whose placeholders are not kept."""
        options = self.options
        translate_rows = self.translator
        if options.mbr is not None:
            translate_rows = MbrTranslator(translate_rows)
        if options.repair:
            translate_rows = self.repaired(translate_rows)
        if options.glossary is not None:
            translate_rows = self.with_terms(translate_rows)
        if options.seed is not None:
            translate_rows = SeededTranslator(translate_rows, options.seed)
        if self.is_rated:
            translate_rows = RatingTranslator(translate_rows, self.score, self.calibration)
        if options.repair:
            translate_rows = CaseTranslator(translate_rows, self.pipe.tokenizer)
        return SpaceTranslator(translate_rows, self.pipe.tokenizer)

    def effective_options(self) -> dict[str, Any]:
        """The values of these options that determine the translations; the glossary as its terms."""
        options = self.options
        effective: dict[str, Any] = {}
        if options.split_sentences:
            effective["split_sentences"] = True
        if options.glossary is not None:
            effective["glossary"] = options.glossary.terms
        if options.repair:
            effective["repair"] = repr(self.detector)
        if self.is_rated:
            effective["calibration"] = repr(self.calibration)
            for name in ("confidence", "min_confidence", "keep_source"):
                effective[name] = getattr(options, name)
        return effective

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of this direction of translation; raises a `ValueError` if the model has none."""
        calibration = find_calibration(self.pipe.model, self.pipe.tokenizer, **self.languages.arguments)
        if calibration is None:
            raise ValueError(
                "confidence must be given with a model that is calibrated, got one without confidence.json of its "
                "weights: run random-transformer calibrate --model FOLDER --source_file FILE --target_file FILE."
            )
        return calibration

    @cached_property
    def detector(self) -> Detector:
        """The detector of bad translations for this direction of translation."""
        return detector_of(self.pipe.model, self.pipe.tokenizer, **self.languages.arguments)

    def beam_search(self, candidates: int, **generate_kwargs: Any) -> BatchTranslator:
        """A function that translates by another beam search, which returns a number of candidates.

        Args:
            candidates: the number.
            **generate_kwargs: more options of `generate()`.
        """
        options = self.pipe.call_options(
            num_beams=max(candidates, self.options.num_beams),
            num_return_sequences=candidates,
            do_sample=False,
            length_penalty=self.options.length_penalty,
            return_scores=True,
            **generate_kwargs,
        )
        return BatchTranslator(self.pipe, options)

    def repaired(self, translate_rows: TranslateRows) -> RepairingTranslator:
        """A function that translates again where the translations of another one have problems."""
        splitter = SentenceSplitter(self.pipe, CLAUSE_TOKENS, self.source_language, reports_cuts=False)
        without_numbers = CopyingTranslator(self.beam_search(1), self.pipe, self.languages, COPIED_NUMBER)
        blocked = CopyingTranslator(self.beam_search(1, **WITHOUT_LOOPS), self.pipe, self.languages, COPIED_NUMBER)
        remedies: list[TranslateRows] = [
            self.beam_search(HYPOTHESES),
            without_numbers,
            self.beam_search(HYPOTHESES, **WITHOUT_REPETITIONS),
            SentenceTranslator(blocked, splitter, self.languages),
            self.beam_search(HYPOTHESES, **WITHOUT_EQUAL_TOKENS),
        ]
        return RepairingTranslator(translate_rows, self.detector, remedies)

    def with_terms(self, translate_rows: TranslateRows) -> GlossaryTranslator:
        """A function that replaces translations of another one that lack terms of the glossary."""
        options = self.options
        check_type("glossary", options.glossary, Glossary, "a Glossary")
        longest = partial(longest_target, config=self.pipe.model.config, max_new_tokens=options.max_new_tokens)
        penalty = options.length_penalty or 0.0
        return GlossaryTranslator(
            options.glossary, translate_rows, self.beam_search(LISTED), self.score, longest, penalty
        )

    def score(self, pairs: Sequence[Pair | None]) -> list[WordScore]:
        """The scores of pairs, including scores of tokens and words. Longer texts are truncated."""
        scorer = WordScorer(
            self.pipe.model,
            self.pipe.tokenizer,
            max_batch_tokens=self.options.max_batch_tokens,
            truncation=True,
            **self.languages.arguments,
        )
        return scorer(pairs, 0, lambda _: None)

"""The options of `translate` that change texts and translations: each is a function around another one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...data.sources import Pair
from ...inference.candidates import Translate
from ...inference.confidence import Calibration, calibration_of
from ...inference.scoring import PairScore, Scorer
from ...inference.translation import BatchTranslator, SeededTranslator, Translator
from ...inputs_random_transformer import check_type, longest_target
from .cases import CaseTranslator
from .copying import CopyingTranslator
from .glossary import LISTED, Glossary, GlossaryTranslator
from .mbr import MbrTranslator
from .problems import NUMBER, Detector, detector_of
from .rating import RatingTranslator, SelectingTranslator
from .repair import (
    CLAUSE_TOKENS,
    HYPOTHESES,
    WITHOUT_EQUAL_TOKENS,
    WITHOUT_LOOPS,
    WITHOUT_REPETITIONS,
    RepairingTranslator,
)
from .sentences import SentenceSplitter, SentenceTranslator


def wrap(translator: Translator, translate: Translate) -> tuple[Translate, Translate]:
    """The functions of the options of a translator around one that translates by the model.

    Returns:
        That of single sentences, whose placeholders are not kept, and that of texts.

    Raises:
        ValueError: an option is invalid, or the model does not support it.
    """
    options = translator.options
    score = partial(score_truncated, translator)
    if options.mbr is not None:
        translate = MbrTranslator(translate)
    if options.repair:
        translate = repaired(translator, translate)
    if options.glossary is not None:
        check_type("glossary", options.glossary, Glossary, "a Glossary")
        longest = partial(longest_target, config=translator.pipe.model.config, max_new_tokens=options.max_new_tokens)
        translate = GlossaryTranslator(
            options.glossary, translate, search(translator, LISTED), score, longest, options.length_penalty or 0.0
        )
    if options.seed is not None:
        translate = SeededTranslator(translate, options.seed)
    if is_rated(translator):
        translate = RatingTranslator(translate, score, calibration(translator))
    if options.repair:
        translate = CaseTranslator(translate, translator.pipe.tokenizer)
    translate_sentence = translate
    if options.split_sentences:
        splitter = SentenceSplitter(translator.pipe, options.max_source_tokens, source_language(translator))
        translate = SentenceTranslator(translate, splitter, translator.languages)
    elif options.repair:
        translate = CopyingTranslator(translate, translator.pipe, translator.languages)
    if options.min_confidence is not None:
        translate = SelectingTranslator(translate, options.min_confidence, options.keep_source)
    return translate_sentence, translate


def wrapped_options(translator: Translator) -> dict[str, Any]:
    """The values of these options that determine the translations; the glossary as its terms."""
    options = translator.options
    record: dict[str, Any] = {}
    if options.split_sentences:
        record["split_sentences"] = True
    if options.glossary is not None:
        record["glossary"] = options.glossary.terms
    if options.repair:
        record["repair"] = repr(detector(translator))
    if is_rated(translator):
        record["calibration"] = repr(calibration(translator))
        for name in ("confidence", "min_confidence", "keep_source"):
            record[name] = getattr(options, name)
    return record


def is_rated(translator: Translator) -> bool:
    """Whether translations have a confidence."""
    return translator.options.confidence or translator.options.min_confidence is not None


def calibration(translator: Translator) -> Calibration:
    """That of the direction; raises a `ValueError` if there is none."""
    return calibration_of(translator.pipe.model, translator.pipe.tokenizer, **translator.languages)


def detector(translator: Translator) -> Detector:
    """That of the direction."""
    return detector_of(translator.pipe.model, translator.pipe.tokenizer, **translator.languages)


def source_language(translator: Translator) -> str | None:
    """The language code of the texts, if it is given, also for a model without language tags."""
    return translator.options.generate_options.get("src_lang")


def search(translator: Translator, candidates: int, **generate_options: Any) -> BatchTranslator:
    """Another beam search, which returns a number of candidates, with more options of `generate()`."""
    call = translator.pipe.call_options(
        num_beams=max(candidates, translator.options.num_beams),
        num_return_sequences=candidates,
        do_sample=False,
        length_penalty=translator.options.length_penalty,
        return_scores=True,
        **generate_options,
    )
    return BatchTranslator(translator.pipe, call)


def repaired(translator: Translator, translate: Translate) -> RepairingTranslator:
    """A function that translates again where the translations of another one have problems."""
    pipe = translator.pipe
    languages = translator.languages
    splitter = SentenceSplitter(pipe, CLAUSE_TOKENS, source_language(translator), reports_cuts=False)
    without_numbers = CopyingTranslator(search(translator, 1), pipe, languages, NUMBER)
    blocked = CopyingTranslator(search(translator, 1, **WITHOUT_LOOPS), pipe, languages, NUMBER)
    remedies: list[Translate] = [
        search(translator, HYPOTHESES),
        without_numbers,
        search(translator, HYPOTHESES, **WITHOUT_REPETITIONS),
        SentenceTranslator(blocked, splitter, languages),
        search(translator, HYPOTHESES, **WITHOUT_EQUAL_TOKENS),
    ]
    return RepairingTranslator(translate, detector(translator), remedies)


def score_truncated(translator: Translator, pairs: Sequence[Pair | None]) -> list[PairScore]:
    """The scores of pairs, with those of their tokens and words. Longer texts are truncated."""
    scorer = Scorer(
        translator.pipe.model,
        translator.pipe.tokenizer,
        max_batch_tokens=translator.options.max_batch_tokens,
        token_scores=True,
        word_scores=True,
        truncation=True,
        **translator.languages,
    )
    return scorer(pairs, 0, lambda _: None)

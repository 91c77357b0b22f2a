"""The language pairs of a server, and the model of each pair."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

from ...base.languages import canonical_code
from ...inference.candidates import Candidate
from ...inference.loading import load_models
from ...inference.translation import Translator
from ...inputs_random_transformer import check_languages, tokenizer_languages
from ...tokenization_random_transformer import LANGUAGE_CODE
from ..documents.html_translation import translate_html

# Codes of a model that does not know its languages.
UNKNOWN_PAIR = ("source", "target")
AUTO_LANGUAGE = "auto"  # value of `source` with which the language is detected
MODEL_ARGUMENT = re.compile(rf"({LANGUAGE_CODE.pattern}):({LANGUAGE_CODE.pattern})=(.+)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Direction:
    """A model that translates from one language to another.

    Attributes:
        source: code of the source language.
        target: code of the target language.
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        options: arguments of `translate` for all texts.
    """

    source: str
    target: str
    model: Any
    tokenizer: Any
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def translator(self) -> Translator:
        """The model with its options."""
        return Translator(self.model, self.tokenizer, **self.options)

    @cached_property
    def rating_translator(self) -> Translator:
        """The model with its options, whose translations have a confidence; a `ValueError` if it has no calibration."""
        return Translator(self.model, self.tokenizer, **self.options, confidence=True)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translate texts."""
        return [best.translation for [best] in self.translator.stream(texts, progress=False)]

    def check_confidence(self) -> None:
        """Raise a `ValueError` if the model has no calibration for this direction."""
        _ = self.rating_translator

    def rate(self, texts: Sequence[str]) -> list[Candidate]:
        """Translate texts, and add the confidence of each translation.

        Raises:
            ValueError: the model has no calibration.
        """
        return [best for [best] in self.rating_translator.stream(texts, progress=False)]

    def translate_html(self, documents: Sequence[str]) -> list[str]:
        """Translate HTML documents or fragments."""
        # The language selects the abbreviations with which sentences are split.
        options = {"src_lang": self.source, **self.options}
        return translate_html(documents, self.model, self.tokenizer, progress=False, **options)


def load_directions(
    models: Iterable[str],
    dtype: str = "auto",
    device: str = "cpu",
    options: dict[str, Any] | None = None,
    **engine_options: Any,
) -> list[Direction]:
    """Load models and find their languages.

    Args:
        models: folders of saved models. `en:de=FOLDER` names the languages of a model; for a model with language tags,
            it selects one of its directions. Without names, they are those of the tokenizer, otherwise `source` and
            `target`.
        dtype: see `load_translator`.
        device: the device.
        options: arguments of `translate`.
        **engine_options: see `load_models`.

    Raises:
        ValueError: a folder cannot be loaded, a code is not one of the model, or two models have the same direction.
    """
    options = options or {}
    directions: dict[tuple[str, str], Direction] = {}
    for argument in models:
        match = MODEL_ARGUMENT.fullmatch(argument)
        if match is None and "=" in argument and not Path(argument).exists():
            raise ValueError(f"--model must be FOLDER or SOURCE:TARGET=FOLDER, such as en:de=en-de, got {argument}.")
        source, target, folder = match.groups() if match else (None, None, argument)
        model, tokenizer = load_models([folder], dtype, device, "--model", **engine_options)
        tagged = bool(tokenizer_languages(tokenizer))
        pairs = [(source, target)] if source and target else language_pairs(tokenizer)
        for src_lang, tgt_lang in pairs:
            codes = canonical_code(src_lang), canonical_code(tgt_lang)
            if codes[0] == codes[1] or AUTO_LANGUAGE in codes:
                raise ValueError(f"--model must have two languages for a direction, got {src_lang}:{tgt_lang}.")
            if codes in directions:
                raise ValueError(f"--model must have one model per direction, got two for {src_lang}:{tgt_lang}.")
            languages: dict[str, str] = {}
            if tagged:
                check_languages(tokenizer, src_lang, tgt_lang)
                languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
            elif options.get("split_sentences"):
                languages = {"src_lang": src_lang}  # the language selects abbreviations
            directions[codes] = Direction(src_lang, tgt_lang, model, tokenizer, options | languages)
    return list(directions.values())


def language_pairs(tokenizer: Any) -> list[tuple[str, str]]:
    """The directions of a model by its tokenizer: all pairs of language tags, or the languages of a Marian model."""
    if languages := tokenizer_languages(tokenizer):
        return list(permutations(languages, 2))
    source, target = (getattr(tokenizer, name, None) for name in ("source_lang", "target_lang"))
    return [(source, target)] if source and target else [UNKNOWN_PAIR]

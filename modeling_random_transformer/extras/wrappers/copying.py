"""Copies parts of a text, such as placeholders, into its translation, at places that the cross-attention gives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from re import Pattern

from ...base.progress import Update
from ...data.sources import Pair
from ...inference.candidates import Candidate, PrefixedText, TranslateRows
from ...inputs_random_transformer import Languages
from ...pipeline_random_transformer import Seq2SeqPipeline
from ..pairs.placement import ADJACENT_PLACEHOLDERS, ProtectedText, align_units, protect


@dataclass(frozen=True)
class CopyingTranslator:
    """Wraps another translator. It removes the copied parts from texts, and inserts them into the translations.

    Attributes:
        translate_rows: translates texts.
        pipe: the pipeline of the model.
        languages: the languages that are given, for a tokenizer with language tags.
        copied: pattern of the parts that are copied.
    """

    translate_rows: TranslateRows
    pipe: Seq2SeqPipeline
    languages: Languages
    copied: Pattern[str] = ADJACENT_PLACEHOLDERS

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row. A text with a prefix, which may contain copied parts, is not changed."""
        protected = [ProtectedText(text, []) if prefix else protect(text, self.copied) for text, prefix in rows]
        texts = [PrefixedText(parts.text, row.prefix) for parts, row in zip(protected, rows, strict=True)]
        translated = self.translate_rows(texts, first, update)
        pairs: list[Pair | None] = []
        for parts, candidates in zip(protected, translated, strict=True):
            for candidate in candidates:
                pair = parts.text, candidate.translation.strip()
                pairs.append(pair if pair[1] and self.can_align and parts.needs_alignment else None)
        links = iter(align_units(self.pipe.model, self.pipe.tokenizer, pairs, self.languages))
        for parts, candidates in zip(protected, translated, strict=True):
            for index, candidate in enumerate(candidates):
                link = next(links)
                if parts.placeholders:
                    translation = parts.restore(candidate.translation.strip(), link)
                    candidates[index] = replace(candidate, translation=translation)
        return translated

    @property
    def can_align(self) -> bool:
        """Whether the model has alignments; otherwise, words are assumed to be in the same order."""
        model = self.pipe.model
        return not (hasattr(model, "members") or getattr(model.config, "prefix", None))

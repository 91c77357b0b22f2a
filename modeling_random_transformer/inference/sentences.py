"""Texts of several sentences: split into sentences, which are translated one by one, and joined again.

Models are usually trained on single sentences, and drop parts of longer texts.
"""

import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..base.errors import reraise_as_value_error
from ..inputs_random_transformer import LanguageTags, encode_texts, source_limit, tokenizer_languages
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..tokenization_random_transformer import has_letters

logger = logging.getLogger(__name__)

LONGEST = 128  # tokens of a sentence, without `max_source_tokens`: few sentences of training corpora are longer
# Where a long sentence is split: after the punctuation of a clause, otherwise between words, otherwise anywhere.
CLAUSE, WORD, ANYWHERE = (re.compile(place) for place in (r"[,;:–—](?=\s)|[，；：、]", r"\s(?=\S)", r"(?s:.)"))
SPECIAL = 4  # tokens of a source beyond one per byte: its end, tags of languages, a space before it
# The markers of list items, headings and quotes at the beginning of a line
MARKER = re.compile(r"\s*+(?:(?:[-*+•‣◦▪·–—>]|\#{1,6}|\(?(?:\d{1,3}|[a-zA-Z])\)|\d{1,3}\.|\[[ xX]\])\s++)*+")


@dataclass(frozen=True)
class SplitText:
    """A text as sentences and what surrounds them.

    Attributes:
        sentences: what is translated, without white space at both ends.
        gaps: what precedes each sentence, and what follows the last one: white space, line breaks, and sentences
            without letters, such as numbers and lines of dashes, which need no translation, and markers of lists,
            headings and quotes.
    """

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with the translations of its sentences."""
        translations = [translation.strip() for translation in translations]
        gaps = self.target_gaps(translations)
        return gaps[0] + "".join(map("".join, zip(translations, gaps[1:], strict=True)))

    def target_gaps(self, translations: Sequence[str]) -> list[str]:
        """The gaps of the translated text.

        Languages such as Chinese have no space between sentences, so a space is inserted or removed if the source and
        the translation differ in this.
        """
        gaps = list(self.gaps)
        for number, translation in enumerate(translations[:-1], start=1):
            if gaps[number] in ("", " "):
                gaps[number] = "" if is_wide(translation.rstrip("”’")[-1:]) else " "
        return gaps


def is_wide(character: str) -> bool:
    """Whether a character has the width of Chinese and Japanese ones; a sentence that it ends has no space after it."""
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


class SentenceSplitter:
    """Splits texts into sentences that a model can translate. Each line is a paragraph.

    Args:
        pipe: the pipeline of the model.
        max_source_tokens: limit on the tokens of a sentence; `None` for 128, or less if the model's limit is lower. A
            longer sentence is split at clauses, and only a longer clause between words. Nothing is dropped.
        language: code of the source language, for its abbreviations, such as `"de"` or `"de_DE"`; `None` for English
            ones.
        argument: name of the argument that requires the splitting, in the error message.

    Raises:
        ValueError: sentencex is not installed.
    """

    def __init__(
        self,
        pipe: Seq2SeqPipeline,
        max_source_tokens: int | None = None,
        language: str | None = None,
        argument: str = "split_sentences",
    ):
        with reraise_as_value_error(f"{argument} requires sentencex: pip install 'random-transformer[documents]'"):
            from sentencex import segment
        self.pipe, self.segment = pipe, segment
        limit, _ = source_limit(pipe.tokenizer, pipe.positions, max_source_tokens)
        self.limit = limit if max_source_tokens else min(limit, LONGEST)
        self.tags = LanguageTags(language if tokenizer_languages(pipe.tokenizer) else None)
        self.language = (language or getattr(pipe.tokenizer, "src_lang", None) or "en").replace("-", "_").split("_")[0]

    def __call__(self, text: str) -> SplitText:
        """Split a text."""
        sentences, gaps = [], [""]
        for line in text.splitlines(keepends=True):
            marker = line[: MARKER.match(line).end()]  # type: ignore[union-attr]
            gaps[-1] += marker
            for found in self.segment(self.language, line.removeprefix(marker)):
                for part in self.shorten(found):
                    stripped = part.strip()
                    if not has_letters(stripped):
                        gaps[-1] += part
                        continue
                    before, _, after = part.partition(stripped)
                    gaps[-1] += before
                    sentences.append(stripped)
                    gaps.append(after)
        return SplitText(sentences, gaps)

    def shorten(self, sentence: str, cut: bool = False) -> Iterator[str]:
        """Split a sentence that is too long near its middle, until all parts are short enough; reports cuts of clauses.

        Args:
            sentence: the text.
            cut: whether the cut of a longer clause, which contained it, is reported.
        """
        if len(sentence.strip()) < 2 or not self.is_long(sentence.strip()):
            yield sentence
            return
        for place in (CLAUSE, WORD, ANYWHERE):
            ends = [found.end() for found in place.finditer(sentence) if 0 < found.end() < len(sentence.rstrip())]
            if ends:
                break
        if place is not CLAUSE and not cut:
            # The text is not in the message: it may be that of a user of a server.
            logger.warning(
                "A clause of %d characters was cut: it has more than %d tokens.", len(sentence.strip()), self.limit
            )
        end = min(ends, key=lambda end: abs(end - len(sentence) / 2))
        for part in (sentence[:end], sentence[end:]):
            yield from self.shorten(part, cut or place is not CLAUSE)

    def is_long(self, text: str) -> bool:
        """Whether a text has too many tokens as a source of the model. To find out, a short one is not tokenized."""
        text = (getattr(self.pipe.model.config, "prefix", None) or "") + text
        forms = text, unicodedata.normalize("NFKD", text)  # the tokenizer may normalize
        if max(len(form.encode()) for form in forms) <= self.limit - SPECIAL:
            return False
        with self.tags.set(self.pipe.tokenizer):
            return len(encode_texts(self.pipe.tokenizer, text, verbose=False)["input_ids"]) > self.limit

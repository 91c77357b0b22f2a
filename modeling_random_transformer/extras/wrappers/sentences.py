"""Splits texts into sentences, translates each sentence, and joins the translations.

Models are usually trained on single sentences, and drop parts of longer texts.
"""

import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ...base.errors import reraise_as_value_error
from ...base.languages import without_region
from ...base.placeholders import PLACEHOLDER
from ...base.progress import Update
from ...inference.candidates import Candidate, PrefixedText, TranslateRows
from ...inputs_random_transformer import (
    Languages,
    encode_texts,
    renumber_errors,
    source_text,
    tokenizer_languages,
)
from ...pipeline_random_transformer import Seq2SeqPipeline
from ...tokenization_random_transformer import has_letters
from ..characters import is_wide
from .copying import CopyingTranslator

logger = logging.getLogger(__name__)

# The limit without `max_source_tokens`: few sentences of training corpora are longer.
MAX_SENTENCE_TOKENS = 128
# Where a long sentence is split: after the punctuation of a clause, otherwise between words, otherwise anywhere.
CLAUSE_END, WORD_END, ANY_PLACE = (re.compile(place) for place in (r"[,;:–—](?=\s)|[，；：、]", r"\s(?=\S)", r"(?s:.)"))
# White space beyond ASCII, for which sentencex 1.0.32 raises an error behind a capital letter
NON_ASCII_SPACE = re.compile(r"[^\S\x00-\x7f]")
MAX_ADDED_TOKENS = 4  # tokens of a source beyond one per byte: its end, tags of languages, a space before it
# The markers of list items, headings, quotes and lyrics at the beginning of a line
MARKER = re.compile(r"\s*+(?:(?:[-*+•‣◦▪·–—>♪♫]|\#{1,6}|\(?(?:\d{1,3}|[a-zA-Z])\)|\d{1,3}\.|\[[ xX]\])\s++)*+")


@dataclass(frozen=True)
class SplitText:
    """A text as sentences and what surrounds them.

    Attributes:
        sentences: what is translated, without white space at both ends.
        gaps: what precedes each sentence, and what follows the last one: white space, line breaks, and sentences
            without letters, such as numbers and lines of dashes, which need no translation, and markers of lists,
            headings, quotes and lyrics.
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
        the translation differ in this. Between ASCII characters, as in `java.util.List`, none is inserted.
        """
        gaps = list(self.gaps)
        for number, translation in enumerate(translations[:-1], start=1):
            around = self.sentences[number - 1][-1] + self.sentences[number][0]
            is_missing = not gaps[number] and not around.isascii()
            if gaps[number] == " " or is_missing:
                gaps[number] = "" if is_wide(translation.rstrip("”’")[-1:]) else " "
        return gaps


class SentenceSplitter:
    """Splits texts into sentences that a model can translate. Each line is a paragraph.

    Args:
        pipe: the pipeline of the model.
        max_source_tokens: limit on the tokens of a sentence; `None` for 128, or less if the model's limit is lower. A
            longer sentence is split at clauses, and only a longer clause between words. Nothing is dropped.
        language: code of the source language, for its abbreviations, such as `"de"` or `"de_DE"`; `None` for English
            ones.
        reports_cuts: warn of a clause that is split between words.

    Raises:
        ValueError: sentencex is not installed.
    """

    def __init__(
        self,
        pipe: Seq2SeqPipeline,
        max_source_tokens: int | None = None,
        language: str | None = None,
        reports_cuts: bool = True,
    ):
        with reraise_as_value_error(
            "Splitting texts into sentences requires sentencex: pip install 'random-transformer[documents]'"
        ):
            from sentencex import segment
        self.pipe = pipe
        self.segment = segment
        self.reports_cuts = reports_cuts
        limit, _ = pipe.source_limit(max_source_tokens)
        self.limit = limit if max_source_tokens else min(limit, MAX_SENTENCE_TOKENS)
        self.src_lang = language if tokenizer_languages(pipe.tokenizer) else None
        self.language = without_region(language or getattr(pipe.tokenizer, "src_lang", None) or "en")

    def __call__(self, text: str) -> SplitText:
        """Split a text."""
        sentences = []
        gaps = [""]
        for line in text.splitlines(keepends=True):
            marker = line[: MARKER.match(line).end()]  # type: ignore[union-attr]
            gaps[-1] += marker
            for sentence in self.split_line(line.removeprefix(marker)):
                for part in self.shorten(sentence, warns=self.reports_cuts):
                    stripped = part.strip()
                    if not has_letters(stripped):
                        gaps[-1] += part
                        continue
                    before, _, after = part.partition(stripped)
                    gaps[-1] += before
                    sentences.append(stripped)
                    gaps.append(after)
        return SplitText(sentences, gaps)

    def split_line(self, line: str) -> Iterator[str]:
        """The sentences of a line, none of which ends within a placeholder, such as a URL."""
        inside = {index for match in PLACEHOLDER.finditer(line) for index in range(match.start() + 1, match.end())}
        start = end = 0
        for sentence in self.segment(self.language, NON_ASCII_SPACE.sub(" ", line)):
            end += len(sentence)
            if end not in inside:
                yield line[start:end]
                start = end

    def shorten(self, sentence: str, warns: bool) -> Iterator[str]:
        """Split a sentence that is too long near its middle, until all parts are short enough.

        Args:
            sentence: the text.
            warns: warn of the first cut of a clause between words.
        """
        stripped = sentence.strip()
        if len(stripped) < 2 or not self.is_long(stripped):
            yield sentence
            return
        for place in (CLAUSE_END, WORD_END, ANY_PLACE):
            ends = [match.end() for match in place.finditer(sentence)]
            ends = [end for end in ends if 0 < end < len(sentence.rstrip())]
            if ends:
                break
        if place is not CLAUSE_END and warns:
            # The text is not in the message: it may be that of a user of a server.
            logger.warning("A clause of %d characters was cut: it has more than %d tokens.", len(stripped), self.limit)
            warns = False  # its parts are cut without further warnings
        end = min(ends, key=lambda end: abs(end - len(sentence) / 2))
        for part in (sentence[:end], sentence[end:]):
            yield from self.shorten(part, warns)

    def is_long(self, text: str) -> bool:
        """Whether a text has too many tokens as a source of the model. To find out, a short one is not tokenized."""
        text = source_text(text, self.pipe.tokenizer, self.pipe.model.config)
        forms = text, unicodedata.normalize("NFKD", text)  # the tokenizer may normalize
        if max(len(form.encode()) for form in forms) <= self.limit - MAX_ADDED_TOKENS:
            return False
        ids = encode_texts(self.pipe.tokenizer, text, src_lang=self.src_lang, verbose=False)["input_ids"]
        return len(ids) > self.limit


@dataclass(frozen=True)
class SpaceTranslator:
    """Translates by another function, which gets texts as the model reads them; those without letters are not changed.

    Scores, lengths and repetitions of two texts that differ in invisible characters or spaces are therefore equal.

    Attributes:
        translate_rows: translates texts.
        tokenizer: the tokenizer, which defines the extra spaces.
    """

    translate_rows: TranslateRows
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row."""
        changed = []
        for text, prefix in rows:
            if has_letters(text):
                text = source_text(text, self.tokenizer)
            changed.append(PrefixedText(text, prefix))
        return self.translate_rows(changed, first, update)


class SentenceTranslator:
    """Translates texts of several sentences one by one, and keeps their placeholders.

    Args:
        translate_rows: translates the sentences.
        splitter: splits the texts.
        languages: the languages that are given, for a tokenizer with language tags.
    """

    def __init__(self, translate_rows: TranslateRows, splitter: SentenceSplitter, languages: Languages):
        self.translate_rows = CopyingTranslator(translate_rows, splitter.pipe, languages)
        self.splitter = splitter

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row. Candidate n joins the candidates n of all sentences.

        A prefix applies to the first sentence. Text before this sentence is then not copied.
        """
        documents = []
        sentences: list[PrefixedText] = []
        owners = []  # the index of the row of each sentence
        for index, (text, prefix) in enumerate(rows):
            document = self.splitter(text)
            if prefix:
                document = without_beginning(document, text)
            documents.append(document)
            for number, sentence in enumerate(document.sentences):
                sentences.append(PrefixedText(sentence, "" if number else prefix))
                owners.append(index)
        with renumber_errors(owners):
            translated = iter(self.translate_rows(sentences, first, lambda _: None))
        update(len(rows))
        candidates = []
        for document in documents:
            sentence_candidates = [next(translated) for _ in document.sentences]
            ranks = list(zip(*sentence_candidates, strict=False)) or [()]
            candidates.append([joined(document, parts) for parts in ranks])
        return candidates


def without_beginning(document: SplitText, text: str) -> SplitText:
    """A split text without the parts before its first sentence. A text without sentences becomes one sentence."""
    if not document.sentences:
        return SplitText([text], ["", ""])
    return SplitText(document.sentences, ["", *document.gaps[1:]])


def joined(document: SplitText, parts: Sequence[Candidate]) -> Candidate:
    """The joined translation of a text, with the sum of the scores, all problems and the lowest confidence."""
    return Candidate(
        document.join([part.translation for part in parts]),
        score=sum(part.score for part in parts),
        tokens=[token for part in parts for token in part.tokens],
        problems=list(dict.fromkeys(problem for part in parts for problem in part.problems)),
        confidence=min((part.confidence for part in parts if part.confidence is not None), default=None),
        words=[word for part in parts for word in part.words],
    )

"""Translates subtitles in SRT. Numbers, times and tags are kept, and each subtitle is broken into lines again."""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.errors import format_value
from ...inputs_random_transformer import check_string
from ...tokenization_random_transformer import has_letters
from ..characters import is_wide
from .plain_text import translate_plain

MAX_LINE = 42  # characters of a line, a usual limit of subtitles
MAX_LINES = 2
HEADER = re.compile(r"((?:^[ \t]*\d+[ \t]*\r?\n)?^[ \t]*\d+:\d\d:\d\d[,.]\d+[ \t]*-->[^\n]*(?:\n|\Z))", re.MULTILINE)
# A line with a time that is not one of SRT, which would be translated
INVALID_TIME = re.compile(r"^[ \t]*\d+:\d.*[-\u2013\u2014]>.*$", re.MULTILINE)
DASH = r"(?:<[^<>]*>|\{[^{}]*\})*[-\u2013\u2014](?!\d)"
# The next line of dialogue or lyrics.
NEXT_TURN = re.compile(rf"\s*\n(?=\s*(?:{DASH}|[♪♫]))")
SPEAKER = re.compile(rf"\A({DASH})(?=\w)")  # a dash that no space follows
SPACED_SPEAKER = re.compile(rf"\A({DASH})[ ]")
TAG_MARK = "\uffff"  # no character, for a tag while lines are broken
MARKUP_TAG = re.compile(f"<[^<>]*>|{TAG_MARK}")  # a text may contain the mark


def translate_srt(document: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Translate subtitles.

    The lines of a subtitle are translated as one text, except for lines of several speakers, which begin with a dash,
    and lines of lyrics, which begin with ♪ or ♫. The translation has at most two lines. They have at most 42 characters
    if the text fits into two such lines. Each speaker has one line.

    Args:
        document: the content of an SRT file.
        model, tokenizer, **options: those of `translate_html`.

    Raises:
        ValueError: the document is not a string or not SRT, or a time is invalid; or see `translate_html`.
    """
    check_string(document, 0)
    if "\n" not in document and "\r" in document:  # the line ends of old Macintosh computers
        with_line_feeds = document.replace("\r", "\n")
        return translate_srt(with_line_feeds, model, tokenizer, **options).replace("\n", "\r")
    beginning, *parts = parse_srt(document)
    texts = parts[1::2]
    turns = [NEXT_TURN.split(text.strip()) if has_letters(text) else [] for text in texts]
    # Only a dash before a space is the marker of an item, which stays.
    sentences = [SPEAKER.sub(r"\1 ", " ".join(turn.split())) for subtitle_turns in turns for turn in subtitle_turns]
    translations = iter(translate_plain(sentences, model, tokenizer, **options))
    result = [beginning]
    for header, text, subtitle_turns in zip(parts[::2], texts, turns, strict=True):
        if not subtitle_turns:
            result += [header, text]
            continue
        lines = translated_lines(subtitle_turns, translations)
        line_end = "\r\n" if "\r\n" in header else "\n"
        space = text[len(text.rstrip()) :]
        result += [header, line_end.join(lines), space]
    return "".join(result)


def translated_lines(turns: Sequence[str], translations: Iterator[str]) -> list[str]:
    """The lines of a subtitle: the next translations, one for each speaker, whose dashes are as in the source."""
    max_lines = MAX_LINES if len(turns) == 1 else 1
    lines: list[str] = []
    for turn in turns:
        translation = next(translations)
        if SPEAKER.match(turn):
            translation = SPACED_SPEAKER.sub(r"\1", translation)
        lines += broken(translation, max_lines)
    return lines


def parse_srt(document: str) -> list[str]:
    """The text before the first subtitle, and the header (number and times) and the text of each subtitle.

    Raises:
        ValueError: the document is WebVTT, has no subtitles, or a time is invalid.
    """
    if document.lstrip("\ufeff").startswith("WEBVTT"):
        raise ValueError("the document must be SRT, got WebVTT.")
    parts = HEADER.split(document)
    invalid = INVALID_TIME.search("\n".join(parts[::2]))
    if invalid or not parts[1:]:
        line = format_value(invalid[0]) if invalid else "none"
        raise ValueError(f"the document must have subtitles with times, 00:00:01,000 --> 00:00:02,000, got {line}.")
    return parts


def broken(text: str, max_lines: int) -> list[str]:
    """The lines of a text, as short as `MAX_LINE` if it does not need more than `max_lines` of them."""
    tags = iter(MARKUP_TAG.findall(text))
    marked = MARKUP_TAG.sub(TAG_MARK, text)
    width = MAX_LINE
    has_spaces = not any(map(is_wide, text))  # words such as URLs stay whole
    while len(lines := wrap(marked, width, break_long_words=not has_spaces, break_on_hyphens=False)) > max_lines:
        width += 1

    def tag(_: re.Match[str]) -> str:
        return next(tags, "")

    return [re.sub(TAG_MARK, tag, line) for line in lines]

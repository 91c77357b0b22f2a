"""Translation of subtitles in SRT: numbers, times and tags stay, and each subtitle is broken into lines again."""

import re
from textwrap import wrap
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .plain_text import translate_plain

MAX_LINE = 42  # characters of a line, a usual limit of subtitles
MAX_LINES = 2
HEADER = re.compile(r"((?:^[ \t]*\d+[ \t]*\r?\n)?^[ \t]*\d+:\d\d:\d\d[,.]\d+[ \t]*-->[^\n]*(?:\n|\Z))", re.MULTILINE)
NEXT_SPEAKER = re.compile(r"\s*\n(?=\s*[-\u2013\u2014])")
TAG = re.compile("<[^<>]*>")
TAG_MARK = "\uffff"  # no character, for a tag while lines are broken


def translate_srt(document: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Translate subtitles.

    The lines of a subtitle are translated as one text, except for those of several speakers, which begin with a dash.
    It is broken again into at most two lines, of at most 42 characters if they suffice; a speaker has one line.

    Args:
        document: the content of an SRT file.
        model, tokenizer, **options: those of `translate_html`.

    Raises:
        ValueError: the document has no subtitles; and the errors of `translate_html`.
    """
    beginning, *parts = HEADER.split(document)
    if not parts:
        raise ValueError("the document must have subtitles with times, 00:00:01,000 --> 00:00:02,000, got none.")
    texts = parts[1::2]
    turns = [NEXT_SPEAKER.split(text.strip()) for text in texts]
    sentences = [" ".join(turn.split()) for of_subtitle in turns for turn in of_subtitle]
    translations = iter(translate_plain(sentences, model, tokenizer, **options))
    result = [beginning]
    for header, text, of_subtitle in zip(parts[::2], texts, turns, strict=True):
        max_lines = MAX_LINES if len(of_subtitle) == 1 else 1
        lines: list[str] = []
        for _ in of_subtitle:
            lines += broken(next(translations), max_lines)
        line_end = "\r\n" if "\r\n" in header else "\n"
        space = text[len(text.rstrip()) :]
        result += [header, line_end.join(lines), space]
    return "".join(result)


def broken(text: str, max_lines: int) -> list[str]:
    """The lines of a text, as short as `MAX_LINE` if it does not need more than `max_lines` of them."""
    tags = iter(TAG.findall(text))
    marked = TAG.sub(TAG_MARK, text)
    width = MAX_LINE
    while len(lines := wrap(marked, width)) > max_lines:
        width += 1

    def tag(_: re.Match[str]) -> str:
        return next(tags, "")

    return [re.sub(TAG_MARK, tag, line) for line in lines]

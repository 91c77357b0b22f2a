"""Texts of documents other than HTML as HTML, by which their tags and placeholders return to their words."""

import html
import re
from collections.abc import Iterable
from typing import Any

from .html_translation import translate_html

NO_TAG = re.compile("<(?!/?[a-zA-Z])")
LINES = "<pre>{}</pre>"  # line breaks within it stay


def translate_plain(texts: Iterable[str], *model_and_tokenizer: Any, **options: Any) -> list[str]:
    """Translate texts that may contain tags, but no entities, line by line; see `translate_html` for arguments."""
    escaped = (NO_TAG.sub("&lt;", text.replace("&", "&amp;")) for text in texts)
    translated = translate_html(map(LINES.format, escaped), *model_and_tokenizer, **options)
    beginning, end = map(len, LINES.split("{}"))
    return [html.unescape(text[beginning:-end]) for text in translated]

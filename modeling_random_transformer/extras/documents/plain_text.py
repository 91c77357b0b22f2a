"""Texts of documents other than HTML as HTML, by which their tags and placeholders return to their words."""

import html
import re
from collections.abc import Iterable
from typing import Any

from .html_translation import translate_html

NO_TAG = re.compile("<(?!/?[a-zA-Z])")
BEGINNING, END = "<pre>", "</pre>"  # line breaks within it stay


def translate_plain(texts: Iterable[str], *model_and_tokenizer: Any, **options: Any) -> list[str]:
    """Translate texts that may contain tags, but no entities, line by line; see `translate_html` for arguments."""
    documents = []
    for text in texts:
        escaped = NO_TAG.sub("&lt;", text.replace("&", "&amp;"))
        documents.append(BEGINNING + escaped + END)
    translated = translate_html(documents, *model_and_tokenizer, **options)
    return [html.unescape(text.removeprefix(BEGINNING).removesuffix(END)) for text in translated]

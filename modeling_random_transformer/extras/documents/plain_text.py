"""Converts texts of other documents to HTML, so that tags, entities and placeholders are placed at their words."""

import html
import re
from collections.abc import Iterable
from typing import Any

from .html_translation import translate_html

NO_TAG = re.compile("<(?!/?[a-zA-Z])")
COMPLETE_ENTITY = re.compile(r"&(?:#\w+|\w+);")
ENTITY_IN_BRACES = re.compile(rf"\{{({COMPLETE_ENTITY.pattern})\}}")
PRE_BEGINNING, PRE_END = "<pre>", "</pre>"  # line breaks within it stay


def translate_plain(texts: Iterable[str], *model_and_tokenizer: Any, **options: Any) -> list[str]:
    """Translate texts that may contain tags and entities, line by line; see `translate_html` for arguments."""
    documents = []
    for text in texts:
        marked = COMPLETE_ENTITY.sub(r"{\g<0>}", text)  # a placeholder, which is copied
        escaped = NO_TAG.sub("&lt;", marked.replace("&", "&amp;"))
        documents.append(PRE_BEGINNING + escaped + PRE_END)
    translated = translate_html(documents, *model_and_tokenizer, **options)
    plain = [html.unescape(text.removeprefix(PRE_BEGINNING).removesuffix(PRE_END)) for text in translated]
    return [ENTITY_IN_BRACES.sub(r"\1", text) for text in plain]

"""Translation of message catalogs in PO, the format of gettext."""

import re
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.errors import reraise_as_value_error
from .plain_text import translate_plain

NUMBER_OF_FORMS = re.compile(r"nplurals\s*=\s*(\d)")


def translate_po(document: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Translate the messages without a translation, and mark them as fuzzy, so that gettext ignores them until review.

    Existing translations, comments, contexts, the header and obsolete messages stay. Of the plural forms, the first is
    the translation of the singular, and the others are that of the plural.

    Args:
        document: the content of a PO or POT file.
        model, tokenizer, **options: those of `translate_html`.

    Raises:
        ValueError: the document is not PO, polib is not installed; and the errors of `translate_html`.
    """
    with reraise_as_value_error("--format po requires polib: pip install 'random-transformer[documents]'"):
        import polib
    with reraise_as_value_error("the document must be PO"):
        catalog = polib.pofile(f"{document}\n")  # with the line break, it cannot be the name of a file
    catalog.metadata["Content-Type"] = "text/plain; charset=UTF-8"
    messages = [entry for entry in catalog if not (entry.obsolete or entry.msgstr or any(entry.msgstr_plural.values()))]
    texts = [text for entry in messages for text in (entry.msgid, entry.msgid_plural) if text]
    translations = iter(translate_plain(texts, model, tokenizer, **options))
    header = NUMBER_OF_FORMS.search(catalog.metadata.get("Plural-Forms", ""))
    for entry in messages:
        singular = next(translations)
        if entry.msgid_plural:
            plural = next(translations)
            forms = int(header[1]) if header else len(entry.msgstr_plural)
            entry.msgstr_plural = {0: singular if forms > 1 else plural} | dict.fromkeys(range(1, forms), plural)
        else:
            entry.msgstr = singular
        entry.flags.append("fuzzy")
    return f"{catalog}"

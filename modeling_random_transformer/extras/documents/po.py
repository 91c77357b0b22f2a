"""Translates message catalogs in PO, the format of gettext."""

import re
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.errors import format_value, reraise_as_value_error
from ...inputs_random_transformer import check_string
from .plain_text import translate_plain

# A text without its second quote, of which polib would drop the last character
UNCLOSED = re.compile(r'^(?!\s*#)[^"\n]*"(?:[^"\\\n]|\\.?+)*+$', re.MULTILINE)
# Flags of messages with placeholders that are words or percentages in other texts: %1 and %n, %1%, $name
FLAGS = {"qt-format", "qt-plural-format", "kde-format", "boost-format", "sh-format"}
FLAGGED = re.compile(r"%L?(?:\d{1,2}%?|n)(?!\w)|\$\w+")
FLAGGED_IN_BRACES = re.compile(rf"\{{({FLAGGED.pattern})\}}")
NUMBER_OF_FORMS = re.compile(r"nplurals\s*=\s*(\d)")
ESCAPES = r"\\ \" \n \t \r \v \b \f"
# An escape that polib would write with two backslashes, as another text
OTHER_ESCAPE = re.compile(r'^(?!\s*#)(?:[^\\\n]|\\[\\"ntrvbf])*+\\[^\\"ntrvbf]', re.MULTILINE)


class Lines(str):
    """A text that polib reads by line: `str` would also break lines within messages, such as at U+2028."""

    def splitlines(self, keepends: bool = False) -> list[str]:  # noqa: ARG002
        """The lines without their ends."""
        return re.split(r"\r\n?|\n", self)


def translate_po(document: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Translate the messages without a translation, and mark them as fuzzy, so that gettext ignores them until review.

    Existing translations, comments, contexts, the header and obsolete messages are not changed. The first plural form
    is the translation of the singular, and the other forms are the translation of the plural.

    Args:
        document: the content of a PO or POT file.
        model, tokenizer, **options: those of `translate_html`.

    Raises:
        ValueError: the document is not a string or not PO, or polib is not installed; or see `translate_html`.
    """
    with reraise_as_value_error("--format po requires polib: pip install 'random-transformer[documents]'"):
        import polib
    check_string(document, 0)
    for invalid, allowed in ((UNCLOSED, "texts in quotes"), (OTHER_ESCAPE, f"the escapes {ESCAPES}")):
        if match := invalid.search(document):
            raise ValueError(f"the document must be PO with {allowed}, got {format_value(match[0])}.")
    with reraise_as_value_error("the document must be PO"):
        catalog = polib.pofile(Lines(f"{document}\n"))  # with a line break, polib cannot take the text for a file name
    catalog.metadata["Content-Type"] = "text/plain; charset=UTF-8"
    messages = [*filter(is_untranslated, catalog)]
    texts = [text for entry in messages for text in source_texts(entry)]
    translations = iter(translate_plain(texts, model, tokenizer, **options))
    header = NUMBER_OF_FORMS.search(catalog.metadata.get("Plural-Forms", ""))
    for entry in messages:
        singular = target_text(next(translations), entry)
        if entry.msgid_plural:
            plural = target_text(next(translations), entry)
            forms = int(header[1]) if header else len(entry.msgstr_plural)
            entry.msgstr_plural = {0: singular if forms > 1 else plural} | dict.fromkeys(range(1, forms), plural)
        else:
            entry.msgstr = singular
        if not entry.fuzzy:
            entry.flags.append("fuzzy")
    return f"{catalog}"


def is_untranslated(entry: Any) -> bool:
    """Whether a message should be translated."""
    has_translation = entry.msgstr or any(entry.msgstr_plural.values())
    return bool(entry.msgid) and not (entry.obsolete or has_translation)


def source_texts(entry: Any) -> list[str]:
    """The texts of a message, with braces around placeholders that are recognized by a flag."""
    texts = [entry.msgid]
    if entry.msgid_plural:
        texts.append(entry.msgid_plural)
    if FLAGS.isdisjoint(entry.flags):
        return texts
    return [FLAGGED.sub(r"{\g<0>}", text) for text in texts]


def target_text(translation: str, entry: Any) -> str:
    """The translation of one of these texts, without the braces."""
    if FLAGS.isdisjoint(entry.flags):
        return translation
    return FLAGGED_IN_BRACES.sub(r"\1", translation)

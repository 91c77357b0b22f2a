"""Placeholders in texts, which translations keep."""

import re

# Scripts without spaces between words, and their punctuation: Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese.
# A placeholder is beside a letter of them without a space.
ADJACENT = r"\u0e00-\u109f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff00-\uffef"
ADJACENT += r"\U00020000-\U0003ffff"
WORD_CHARACTER = rf"[^\W{ADJACENT}]"  # a character of a word of other scripts
URL_CHARACTER = rf"[^\s<>\"'{ADJACENT}]"
# Punctuation after a URL, also Chinese quotation marks, ellipses and dashes.
URL_PUNCTUATION = r"[.,;:!?)\]\u2014\u2018-\u201f\u2026]"
IN_PARENTHESES = rf"\([^\s<>\"'(){ADJACENT}]*+\)"  # a part of a URL, such as that of Wikipedia's _(disambiguation)

BRACES = r"[$%\#]?\{(?:[^{}\n]++|\{(?:[^{}\n]++|\{[^{}\n]*+\})*+\})*+\}|<%(?:[^<%\n]|<(?!%)|%(?!>))*+%>"
CONVERSION = r"%(?:\(\w++\)|\d++\$)?[-+\#0]*+\d*+(?:\.\d++)?+(?:hh?|ll?)?[sdiufFeEgGxXocp@]"
FORMAT_SPECIFIER = rf"(?<!%)(?<!{WORD_CHARACTER}){CONVERSION}(?:{CONVERSION}|%%)*(?![^\W\d_{ADJACENT}])"
URL = rf"(?<!{WORD_CHARACTER})(?:(?:https?|ftp)://|www\.)"
URL += rf"(?:{URL_PUNCTUATION}*+(?:{IN_PARENTHESES}|(?!{URL_PUNCTUATION}){URL_CHARACTER}))++"
EMAIL = (
    rf"(?<![.+-])(?<!{WORD_CHARACTER})(?:{WORD_CHARACTER}|[.+-])++@"
    rf"(?:{WORD_CHARACTER}|-)++(?:\.(?:{WORD_CHARACTER}|-)++)++"
)

# Placeholders: {name}, ${name}, %{name}, #{name}, {{name}}, <%= name %>, %(name)s, %s, %1$s, URLs, e-mail addresses.
# The expression has no spaces, so that it can be a part of a verbose expression.
PLACEHOLDER = re.compile("|".join((BRACES, FORMAT_SPECIFIER, URL, EMAIL)))

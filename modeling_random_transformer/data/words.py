"""Words and scripts of texts, and keys of texts that differ in case, punctuation and Unicode form only."""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain
from unicodedata import normalize as unicode_form

import regex

from ..tokenization_random_transformer import normalize

# Combining marks, such as vowel signs in Devanagari, are part of a word, but do not begin one: an emoji may have one.
WORD = regex.compile(r"[^\W\p{M}][\w\p{M}]*")
APOSTROPHES = "'`\u00b4\u02bb\u02bc\u2018\u2019\ua78c"

# The scripts of living languages with much text, for the scripts of a corpus.
SCRIPTS = (
    "Latin",
    "Cyrillic",
    "Greek",
    "Armenian",
    "Georgian",
    "Hebrew",
    "Arabic",
    "Syriac",
    "Thaana",
    "Nko",
    "Ethiopic",
    "Tifinagh",
    "Devanagari",
    "Bengali",
    "Gurmukhi",
    "Gujarati",
    "Oriya",
    "Tamil",
    "Telugu",
    "Kannada",
    "Malayalam",
    "Sinhala",
    "Thai",
    "Lao",
    "Tibetan",
    "Myanmar",
    "Khmer",
    "Mongolian",
    "Han",
    "Hiragana",
    "Katakana",
    "Hangul",
    "Bopomofo",
    "Yi",
    "Cherokee",
    "Canadian_Aboriginal",
    "Javanese",
    "Balinese",
    "Sundanese",
    "Cham",
    "Ol_Chiki",
    "Meetei_Mayek",
    "Tai_Le",
    "New_Tai_Lue",
    "Vai",
    "Adlam",
    "Lisu",
    "Osage",
)
SAMPLE_SHARE = 0.1
# Letters that several scripts share, such as U+30FC in Hiragana and Katakana, are not counted.
LETTER = r"[\p{L}--\p{Script=Common}--\p{Script=Inherited}]"
SCRIPT_PATTERN = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
LETTERS = regex.compile(LETTER, regex.V1)
JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))  # a table for `str.translate`


def text_digest(text: str) -> bytes:
    """A digest of 64 bits of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def words_digest(text: str) -> bytes:
    """A digest of 64 bits of the visible words of a text, regardless of case, punctuation and Unicode form.

    A text without words, such as an emoji, is compared completely.
    """
    # Compatibility characters, such as ℃, become letters, whose case is folded next.
    text = unicode_form("NFKC", normalize(text))
    text = unicode_form("NFKC", text.casefold()).translate(JOINERS)
    return text_digest(" ".join(WORD.findall(text)) or text)


def scripts_of(texts: Iterable[str]) -> list[str]:
    """The scripts of at least `SAMPLE_SHARE` of the letters in texts, the most frequent first."""
    counts: Counter[str] = Counter()
    for character, count in Counter(chain.from_iterable(texts)).items():
        if LETTERS.match(character) and (match := SCRIPT_PATTERN.match(character)):
            counts[match.lastgroup] += count
    least = SAMPLE_SHARE * counts.total()
    return [name for name, count in counts.most_common() if count >= least]

"""Unicode scripts of texts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import regex

# The scripts of living languages with much text, for the scripts of a corpus.
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana", "Nko"),
    *("Ethiopic", "Tifinagh", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada"),
    *("Malayalam", "Sinhala", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Han", "Hiragana", "Katakana"),
    *("Hangul", "Bopomofo", "Yi", "Cherokee", "Canadian_Aboriginal", "Javanese", "Balinese", "Sundanese", "Cham"),
    *("Ol_Chiki", "Meetei_Mayek", "Tai_Le", "New_Tai_Lue", "Vai", "Adlam", "Lisu", "Osage"),
)
SAMPLE_PAIRS = 10_000
SAMPLE_LINES = 100_000  # the most lines to find these pairs in
SAMPLE_SHARE = 0.1
# Letters of several scripts, such as U+30FC in Hiragana and Katakana, count for none.
LETTER = r"[\p{L}--\p{Script=Common}--\p{Script=Inherited}]"
_SCRIPT_OF = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
_LETTERS = regex.compile(LETTER, regex.V1)


def check_scripts(argument: str, scripts: Sequence[str]) -> None:
    """Raise a `ValueError` unless these are names of Unicode scripts."""
    if isinstance(scripts, str) or not scripts:
        raise ValueError(f"{argument} must be a list of Unicode scripts, got {scripts!r}.")
    for name in scripts:
        try:
            regex.compile(rf"\p{{Script={name}}}")
        except regex.error as error:
            raise ValueError(f"{argument} must name Unicode scripts, such as Latin, got {name!r}.") from error


def scripts_of(texts: Iterable[str]) -> list[str]:
    """The scripts of at least `SAMPLE_SHARE` of the letters in texts, the most frequent first."""
    counts: Counter[str] = Counter()
    for character, count in Counter(chain.from_iterable(texts)).items():
        if _LETTERS.match(character) and (match := _SCRIPT_OF.match(character)):
            counts[match.lastgroup] += count
    return [name for name, count in counts.most_common() if count >= SAMPLE_SHARE * counts.total()]


class ScriptFilter:
    """Accepts texts with at least a share of their letters in these scripts, and texts without letters.

    Args:
        scripts: names of Unicode scripts.
        min_share: the least share of letters, 0 to 1.
    """

    def __init__(self, scripts: Sequence[str], min_share: float):
        expected = "".join(rf"\p{{Script={name}}}" for name in scripts)
        self._foreign = regex.compile(rf"[{LETTER}--[{expected}]]", regex.V1)
        self._min_share = min_share
        self._accepted: set[str] = set()  # characters that are not foreign letters, as far as they have occurred

    def __call__(self, text: str) -> bool:
        if self._accepted.issuperset(text):
            return True
        self._accepted.update(character for character in {*text} if not self._foreign.match(character))
        foreign = sum(character not in self._accepted for character in text)
        return not foreign or 1 - foreign / len(_LETTERS.findall(text)) >= self._min_share

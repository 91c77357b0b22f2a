"""Gold word alignments of the quickstart's sentence pairs, from the lexicon and the rules of their generator.

Words are separated by white space. Two words are linked if the lexicon translates one to the other in any of its
forms. Articles, possessives and demonstratives are linked through their nouns. A Spanish word without an English one
(the `a` before a person, the `de` of a possessive, some pronouns: one word in six) may have any link.
"""

import re
from collections import defaultdict

from tutorials import sample_data as data

Links = set[tuple[int, int]]
SENTENCE_MARKS = re.compile(r"[¿¡.,?!]")


def lexicon() -> dict[str, set[str]]:
    """The Spanish forms of each English form of nouns, adjectives, names, verbs and pronouns."""
    table: dict[str, set[str]] = defaultdict(set)
    for nouns in data.NOUNS.values():
        for english, spanish in data.entries(nouns):
            table[english].add(spanish)
            table[data.english_plural(english)].add(data.spanish_plural(spanish))
    for adjectives in data.ADJECTIVES.values():
        for english, spanish in data.entries(adjectives):
            table[english.lower()] |= {data.spanish_adjective(spanish, form) for form in data.FORMS}
    for names in data.NAMES.values():
        for english, spanish in data.entries(names):
            table[english.lower()].add(spanish.lower())
    verbs = [pair for verbs in data.VERBS.values() for pair in data.entries(verbs)]
    for english, spanish in [*verbs, ("can", "poder"), ("want", "querer"), ("be", "ser"), ("be", "estar")]:
        infinitive = spanish.split()[0]
        if spanish == "estar cerca de":  # be near
            table["near"].add("cerca")
        forms = {infinitive} | {data.spanish_verb(infinitive, person) for person in data.PERSONS}
        head = english.split()[0]
        for form in {head, data.english_verb(head, "3s", ".")[1], *("am", "is", "are") * (head == "be")}:
            table[form] |= forms
    table["like"] = table["likes"] = {"gusta", "gustan"}
    table |= {"he": {"él"}, "she": {"ella"}, "they": {"ellos"}, "two": {"dos"}, "not": {"no"}}
    table |= {"me": {"me"}, "him": {"lo"}, "us": {"nos"}, "them": {"los"}}
    table["cannot"] = {"no"} | table["can"]
    return dict(table)


LEXICON = lexicon()
ENGLISH_DETERMINERS = {"the", "this", "these", "my", "your", "our", "her", "a", "an"}
SPANISH_DETERMINERS = {form for forms in data.DETERMINERS.values() for form in forms.split()} | {"al", "del"}
NOUN_FORMS = {
    form
    for nouns in data.NOUNS.values()
    for english, _ in data.entries(nouns)
    for form in (english, data.english_plural(english))
}


def gold_alignment(english: str, spanish: str) -> tuple[Links, Links] | None:
    """The sure links and all possible links; `None` if a word occurs twice, so that its translation is ambiguous."""
    sources = [SENTENCE_MARKS.sub("", word).lower() for word in english.split()]
    targets = [SENTENCE_MARKS.sub("", word).lower() for word in spanish.split()]
    stems = [re.sub(r"('s|')$", "", word) for word in sources]
    content = [stem for stem in stems if stem in LEXICON]
    if len(set(content)) < len(content):
        return None
    sure: Links = set()
    for i, stem in enumerate(stems):
        found = [j for j, target in enumerate(targets) if target in LEXICON.get(stem, ())]
        if stem in ("me", "us", "him", "them") and len(found) > 1:
            found = found[:1]
        if len(found) > 1 and stem != "cannot":
            return None
        sure |= {(i, j) for j in found}
    by_source = {i: j for i, j in sure if stems[i] in NOUN_FORMS}
    for i, j in by_source.items():  # the determiner of a noun, before its adjective
        after_owner = i > 0 and stems[i - 1] != sources[i - 1]  # the man's dog: the article is that of the man
        first = i - 1 if i and stems[i - 1] in ENGLISH_DETERMINERS else i - 2
        if (
            first >= 0
            and not after_owner
            and stems[first] in ENGLISH_DETERMINERS
            and j
            and targets[j - 1] in SPANISH_DETERMINERS
        ):
            sure.add((first, j - 1))
    linked = {j for _, j in sure}
    free = {(i, j) for i in range(len(sources)) for j in range(len(targets)) if j not in linked}
    return sure, sure | free


def alignment_error_rate(found: list[Links], gold: list[tuple[Links, Links]]) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all pairs (Och and Ney 2003), 0 to 1."""
    hits = sum(len(links & sure) + len(links & possible) for links, (sure, possible) in zip(found, gold, strict=True))
    return 1 - hits / sum(len(links) + len(sure) for links, (sure, _) in zip(found, gold, strict=True))

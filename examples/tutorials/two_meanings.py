"""Sentences in which the words that follow a noun show which of two things it names: an animal or an object.

`bat`, `seal` and `crane` are both. In `The bat sleeps`, it is `El murciélago`, in `The bat breaks`, it is `El bate`.
"""

import random
from typing import NamedTuple

ANIMALS = "owl búho m, cat gato m, mouse ratón m, fox zorro m, cow vaca f, hen gallina f, turtle tortuga f, frog rana f"
OBJECTS = "stick palo m, glove guante m, hat sombrero m, clock reloj m, bed cama f, key llave f, box caja f, cup taza f"
BOTH = {"animal": "bat murciélago m, seal foca f, crane grulla f", "object": "bat bate m, seal sello m, crane grúa f"}
CONTEXTS = {
    "animal": [
        *("sleeps", "is hungry", "drinks water", "eats fruit"),
        *("lives in a cave", "looks for food", "hears us", "is two years old"),
    ],
    "object": [
        *("breaks", "is made of wood", "costs ten euros", "is in the garden"),
        *("falls off the table", "was a present", "belongs to Anna", "is on sale"),
    ],
}
ADJECTIVES = {"": "", "small": "pequeñ", "black": "negr", "old": "viej"}
HELD_OUT = 40


class Example(NamedTuple):
    """A sentence whose first words are translated, each in its place: article, adjective if any, and noun.

    `kind` is what the noun names, "animal" or "object"; `ambiguous` says whether it also names the other.
    """

    words: list[str]
    translations: list[str]
    kind: str
    ambiguous: bool

    @property
    def noun(self) -> int:
        """The index of the noun among the words."""
        return len(self.translations) - 1


def examples() -> list[Example]:
    """All sentences: each noun with the contexts of what it names, without and with each adjective."""
    sentences = []
    for kind, clear in (("animal", ANIMALS), ("object", OBJECTS)):
        for entry in (clear + ", " + BOTH[kind]).split(", "):
            english, spanish, gender = entry.split()
            for adjective, stem in ADJECTIVES.items():
                words = ["The", adjective, english] if adjective else ["The", english]
                agreeing = [stem + {"m": "o", "f": "a"}[gender]] if adjective else []
                translations = [{"m": "El", "f": "La"}[gender], *agreeing, spanish]
                for context in CONTEXTS[kind]:
                    sentences.append(Example([*words, *context.split()], translations, kind, entry not in clear))
    return sentences


def split(seed: int) -> tuple[list[Example], list[Example]]:
    """Training examples, and `HELD_OUT` others whose nouns have two meanings."""
    ambiguous = [example for example in examples() if example.ambiguous]
    random.Random(seed).shuffle(ambiguous)
    clear = [example for example in examples() if not example.ambiguous]
    return ambiguous[HELD_OUT:] + clear, ambiguous[:HELD_OUT]

"""Sample data for the quickstart: English and Spanish sentences from a small lexicon and grammar.

A sentence is drawn once and said in both languages. What they do differently is what there is to learn:

- articles, adjectives and nouns agree, and adjectives follow their noun: `two red tables`, `dos mesas rojas`;
- verbs are conjugated, so `I`, `you` and `we` are left out, and `to be` is `ser` or `estar`;
- people as objects take an `a`, and object pronouns precede the verb: `I see the boy`, `Veo al niño`, `Lo veo`;
- `'s` turns round, and `a el` and `de el` contract: `the king's dog`, `el perro del rey`;
- a question puts the subject after the verb, between `¿` and `?`;
- liking turns round altogether: `She likes the houses`, `A ella le gustan las casas`.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# "m" and "f" are Spanish genders; some nouns hide theirs (el mapa, la flor).
NOUNS = {
    "person m": "boy niño, man hombre, brother hermano, doctor médico, king rey, actor actor, waiter camarero",
    "person f": "girl niña, woman mujer, sister hermana, mother madre, queen reina, actress actriz",
    "name m": "Peter Pedro, John Juan, Michael Miguel",
    "name f": "Mary María, Anna Ana, Lucy Lucía",
    "animal m": "cat gato, dog perro, horse caballo, lion león, bird pájaro",
    "animal f": "cow vaca, hen gallina, turtle tortuga, eagle águila",
    "food m": "egg huevo, tomato tomate, cake pastel, lemon limón, melon melón",
    "food f": "apple manzana, orange naranja, strawberry fresa, onion cebolla",
    "text m": "book libro, newspaper periódico, poem poema",
    "text f": "letter carta, magazine revista, song canción",
    "thing m": "car coche, clock reloj, pencil lápiz, hat sombrero, map mapa, sofa sofá",
    "thing f": "table mesa, chair silla, lamp lámpara, box caja, cup taza, shirt camisa, key llave, flower flor",
    "place m": "market mercado, park parque, garden jardín, hospital hospital, bridge puente, river río",
    "place f": "house casa, school escuela, beach playa, station estación, city ciudad, classroom aula",
}
# By the kind of object, with the preposition that it takes.
VERBS = {
    "person": "see ver_a, help ayudar_a, know conocer_a, visit visitar_a, look_for buscar_a",
    "animal": "have tener, draw dibujar, buy comprar, sell vender",
    "food": "eat comer, cook cocinar, buy comprar, sell vender, want querer",
    "text": "read leer, write escribir, buy comprar, look_for buscar",
    "thing": "buy comprar, sell vender, have tener, draw dibujar, paint pintar, look_for buscar, want querer",
    "place": "go_to ir_a, walk_to caminar_a, run_to correr_a, be_in estar_en, be_near estar_cerca_de, visit visitar",
}
# The verb that says "to be", and the kinds of things that can be so.
ADJECTIVES = {
    "ser person": "tall alto, strong fuerte, famous famoso, intelligent inteligente, Spanish español, English inglés",
    "ser animal thing": "white blanco, black negro, gray gris",
    "ser food thing": "red rojo, green verde, blue azul, yellow amarillo",
    "ser animal food thing place": "big grande, small pequeño, beautiful bonito",
    "ser text thing place": "old viejo, new nuevo, modern moderno",
    "ser food text thing": "expensive caro, cheap barato",
    "estar person animal": "tired cansado, sad triste, sick enfermo",
    "estar place thing": "clean limpio, dirty sucio",
}
PERSONS = ("1s", "2s", "3s", "1p", "3p")
ENDINGS = {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"}
IRREGULAR_VERBS = {
    "ser": "soy eres es somos son",
    "estar": "estoy estás está estamos están",
    "ir": "voy vas va vamos van",
    "ver": "veo ves ve vemos ven",
    "tener": "tengo tienes tiene tenemos tienen",
    "querer": "quiero quieres quiere queremos quieren",
    "poder": "puedo puedes puede podemos pueden",
    "conocer": "conozco conoces conoce conocemos conocen",
}
# Person and gender: subject in English and Spanish, object in English and Spanish, to whom in Spanish.
PRONOUNS = {
    "1s m": ("I", "", "me", "me", "me"),
    "2s m": ("you", "", "you", "te", "te"),
    "3s m": ("he", "él", "him", "lo", "le"),
    "3s f": ("she", "ella", "her", "la", "le"),
    "1p m": ("we", "", "us", "nos", "nos"),
    "3p m": ("they", "ellos", "them", "los", "les"),
}
# English singular and plural; Spanish in the order of FORMS. A dash: there is none.
DETERMINERS = {
    "the the": "el la los las",
    "this these": "este esta estos estas",
    "my my": "mi mi mis mis",
    "your your": "tu tu tus tus",
    "our our": "nuestro nuestra nuestros nuestras",
    "her her": "su su sus sus",
    "a -": "un una - -",
    "- two": "- - dos dos",
}
FORMS = ("ms", "fs", "mp", "fp")
GREETINGS = [
    ("hello world", "hola mundo"),
    ("Hello World", "Hola Mundo"),
    ("Hello world", "Hola mundo"),
    ("Hello, world!", "¡Hola, mundo!"),
    ("Good morning!", "¡Buenos días!"),
    ("Good night!", "¡Buenas noches!"),
    ("Thank you!", "¡Gracias!"),
    ("How are you?", "¿Cómo estás?"),
]

# What neighbouring words do to each other. águila and aula are feminine, but stand neither `la` nor `una` before them.
ENGLISH_SOUNDS = {r"\ba (?=[aeiouE])": "an ", r"\bcan not\b": "cannot"}
SPANISH_SOUNDS = {
    r"\bla (?=(águila|aula)\b)": "el ",
    r"\buna (?=(águila|aula)\b)": "un ",
    r"\b(a|de) el\b": r"\1l",  # but not `a él`
}

Pair = tuple[str, str]  # the same in English and in Spanish


@dataclass(frozen=True)
class Phrase:
    """Something to speak of in both languages, and what verbs and adjectives agree with."""

    english: str
    spanish: str
    person: str
    gender: str

    @property
    def form(self) -> str:
        return self.gender + self.person[1]


@cache
def entries(text: str) -> list[Pair]:
    """`"look_for buscar_a, …"` → `[("look for", "buscar a"), …]`."""
    pairs = (entry.split() for entry in text.split(", "))
    return [(english.replace("_", " "), spanish.replace("_", " ")) for english, spanish in pairs]


def english_plural(noun: str) -> str:
    if noun.endswith("man"):
        return noun[:-3] + "men"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(s|x|ch|sh|to)$", noun) else "s")


def english_third_person(verb: str) -> str:
    """`"want to eat"` → `"wants to eat"`."""
    head, space, tail = verb.partition(" ")
    return {"have": "has", "go": "goes"}.get(head, head + "s") + space + tail


def spanish_plural(word: str) -> str:
    if word[-1] in "aeoáé":
        return word + "s"
    # One more syllable puts the stress where it needs no accent: canción, canciones.
    word = re.sub(r"[áéíóú](?=[ns]$)", lambda vowel: "aeiou"["áéíóú".index(vowel[0])], word)
    return re.sub(r"z$", "c", word) + "es"


def spanish_adjective(word: str, form: str) -> str:
    """`("rojo", "fp")` → `"rojas"`."""
    if form[0] == "f":
        word = re.sub(r"o$|(?<=ol)$", "a", word).replace("inglés", "inglesa")
    return spanish_plural(word) if form[1] == "p" else word


def spanish_verb(infinitive: str, person: str) -> str:
    """`("comer", "1p")` → `"comemos"`."""
    regular = " ".join(infinitive[:-2] + ending for ending in ENDINGS[infinitive[-2:]].split())
    return IRREGULAR_VERBS.get(infinitive, regular).split()[PERSONS.index(person)]


def sentence(words: tuple[str, ...], end: str, sounds: dict[str, str]) -> str:
    text = " ".join(filter(None, words))
    for pattern, heard in sounds.items():
        text = re.sub(pattern, heard, text)
    return text[0].upper() + text[1:] + end


def english_clause(subject: Phrase, verb: str, rest: str, mood: str) -> str:
    """Say (`"."`), deny (`"no"`) or ask (`"?"`) that `subject` does `verb`, which `be` or `can` may head."""
    head, _, tail = verb.partition(" ")
    third = subject.person == "3s"
    if head in ("be", "can"):
        auxiliary = "can" if head == "can" else {"1s": "am", "3s": "is"}.get(subject.person, "are")
    elif mood == ".":
        auxiliary, tail = "", english_third_person(verb) if third else verb
    else:
        auxiliary, tail = "does" if third else "do", verb
    if mood == "?":
        return sentence((auxiliary, subject.english, tail, rest), "?", ENGLISH_SOUNDS)
    return sentence((subject.english, auxiliary, "not" if mood == "no" else "", tail, rest), ".", ENGLISH_SOUNDS)


def spanish_clause(subject: str, verb: str, rest: str, mood: str) -> str:
    """The same in Spanish. `verb` is conjugated, and whatever stays beside it in a question is part of it."""
    if mood == "?":
        return "¿" + sentence((verb, subject, rest), "?", SPANISH_SOUNDS)
    return sentence((subject, "no" if mood == "no" else "", verb, rest), ".", SPANISH_SOUNDS)


class Speaker:
    """Draws sentences, the same ones for the same seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def sentence(self) -> Pair:
        patterns = (self.action, self.quality, self.liking, self.object_pronoun)
        return self.random.choices(patterns, weights=(50, 22, 16, 12))[0]()

    def action(self) -> Pair:
        """`The boy wants to buy two red apples.` `El niño quiere comprar dos manzanas rojas.`"""
        kind = self.random.choice(list(VERBS))
        subject, thing, mood = self.subject(), self.noun_phrase(kind), self.mood()
        english, spanish = self.pick(VERBS[kind])
        if spanish != "querer" and self.chance(0.3):
            helper = self.pick("can poder, want_to querer")
            english, spanish = f"{helper[0]} {english}", f"{helper[1]} {spanish}"
        infinitive, _, rest = spanish.partition(" ")
        return (
            english_clause(subject, english, thing.english, mood),
            spanish_clause(subject.spanish, spanish_verb(infinitive, subject.person), f"{rest} {thing.spanish}", mood),
        )

    def quality(self) -> Pair:
        """`Are the girls tired?` `¿Están cansadas las niñas?`"""
        kind = self.random.choice(list(VERBS))
        subject = self.subject(definite=True) if kind == "person" else self.noun_phrase(kind, definite=True)
        # English hides the gender of I, you and we: of them say only what is the same for both, such as `triste`.
        to_be, english, spanish = self.adjective(kind, ending="" if subject.spanish else "e")
        verb = f"{spanish_verb(to_be, subject.person)} {spanish_adjective(spanish, subject.form)}"
        mood = self.mood()
        return english_clause(subject, "be", english, mood), spanish_clause(subject.spanish, verb, "", mood)

    def liking(self) -> Pair:
        """`She likes your houses.` `A ella le gustan tus casas.`"""
        subject, mood = self.subject(), self.mood()
        thing = self.noun_phrase(self.random.choice(("animal", "food", "text", "thing", "place")), definite=True)
        to_whom = PRONOUNS[f"{subject.person} m"][-1]
        verb = f"{to_whom} {spanish_verb('gustar', thing.person)} {thing.spanish}"
        liker = f"a {subject.spanish}" if subject.spanish else ""
        return english_clause(subject, "like", thing.english, mood), spanish_clause(liker, verb, "", mood)

    def object_pronoun(self) -> Pair:
        """`The girls do not see her.` `Las niñas no la ven.`"""
        subject, mood = self.subject(), self.mood()
        others = [words for key, words in PRONOUNS.items() if key[0] == "3" or key[0] != subject.person[0]]
        _, _, english, spanish, _ = self.random.choice(others)
        verb = self.pick(VERBS["person"])
        verb_spanish = f"{spanish} {spanish_verb(verb[1].removesuffix(' a'), subject.person)}"
        return english_clause(subject, verb[0], english, mood), spanish_clause(subject.spanish, verb_spanish, "", mood)

    def subject(self, definite: bool = False) -> Phrase:
        if self.chance(0.5):
            key = self.random.choice(list(PRONOUNS))
            return Phrase(*PRONOUNS[key][:2], *key.split())
        return self.noun_phrase("person", definite)

    def noun_phrase(self, kind: str, definite: bool = False, owned: bool = True) -> Phrase:
        """`the old man's red car`, `el coche rojo del hombre viejo`; `definite` leaves out `a` and `two`."""
        gender = self.random.choice("mf")
        if kind == "person" and self.chance(0.25):
            return Phrase(*self.pick(NOUNS[f"name {gender}"]), "3s", gender)
        english, spanish = self.pick(NOUNS[f"{kind} {gender}"])
        plural = self.chance(0.35)
        form = gender + ("p" if plural else "s")
        if plural:
            english, spanish = english_plural(english), spanish_plural(spanish)
        if self.chance(0.4):
            _, english_adjective, adjective = self.adjective(kind)
            english, spanish = f"{english_adjective} {english}", f"{spanish} {spanish_adjective(adjective, form)}"
        determiner, articles = self.determiner(plural, definite)
        if owned and self.chance(0.15):
            owner = self.noun_phrase("person", definite=True, owned=False)
            determiner, articles = owner.english + ("'" if owner.english.endswith("s") else "'s"), DETERMINERS["the the"]
            spanish = f"{spanish} de {owner.spanish}"
        article = articles.split()[FORMS.index(form)]
        return Phrase(f"{determiner} {english}", f"{article} {spanish}", f"3{form[1]}", gender)

    def determiner(self, plural: bool, definite: bool) -> Pair:
        rows = [(english.split()[plural], spanish) for english, spanish in DETERMINERS.items()]
        allowed = [row for row in rows if row[0] != "-" and not (definite and row[0] in ("a", "two"))]
        return self.random.choices(allowed, weights=[3 if row[0] == "the" else 1 for row in allowed])[0]

    def adjective(self, kind: str, ending: str = "") -> tuple[str, str, str]:
        """What says "to be" of it, and the adjective in English and Spanish."""
        rows = [(key.split()[0], *entry) for key, words in ADJECTIVES.items() if kind in key for entry in entries(words)]
        return self.random.choice([row for row in rows if row[2].endswith(ending)])

    def pick(self, text: str) -> Pair:
        return self.random.choice(entries(text))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def mood(self) -> str:
        return self.random.choice((".", ".", "no", "?"))


def sample(size: int, seed: int = 17) -> list[Pair]:
    """The greetings, then so many different sentences."""
    speaker = Speaker(seed)
    sentences: dict[str, str] = {}
    while len(sentences) < size:
        english, spanish = speaker.sentence()
        sentences[english] = spanish
    return GREETINGS + list(sentences.items())


def write_sample(folder: Path) -> None:
    ...


if __name__ == "__main__":
    for pair in sample(60): print(*pair, sep="  |  ")

"""Sample data of the training examples: English-Spanish sentence pairs from a small lexicon and grammar.

Each meaning is sampled once and expressed in both languages. The English sentence is the leaves of a constituency tree
in the notation of the Penn Treebank, with `XX` as part-of-speech tag, as in Vinyals et al. (2015). A model has to learn
the differences of the languages:

- articles, adjectives and nouns agree, and adjectives follow their noun: `two red tables`, `dos mesas rojas`;
- verbs are conjugated, so `I`, `you` and `we` are left out, and `to be` is `ser` or `estar`;
- a person as object takes an `a`, and object pronouns precede the verb: `I see the boy`, `Veo al niño`, `Lo veo`;
- possessives change the order, and `a el` and `de el` contract: `the king's dog`, `el perro del rey`;
- in a question, the subject follows the verb, between `¿` and `?`;
- `like` exchanges subject and object: `She likes the houses`, `A ella le gustan las casas`.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

# "m" and "f" are Spanish genders, which the ending of a noun does not always show (el mapa, la flor).
NOUNS = {
    "person m": "boy niño, man hombre, brother hermano, doctor médico, king rey, waiter camarero",
    "person f": "girl niña, woman mujer, sister hermana, mother madre, queen reina, actress actriz",
    "animal m": "cat gato, dog perro, horse caballo, lion león",
    "animal f": "cow vaca, hen gallina, turtle tortuga, eagle águila",
    "food m": "egg huevo, tomato tomate, cake pastel, lemon limón",
    "food f": "apple manzana, orange naranja, strawberry fresa, onion cebolla",
    "text m": "book libro, newspaper periódico, poem poema",
    "text f": "letter carta, magazine revista, song canción",
    "thing m": "car coche, clock reloj, pencil lápiz, hat sombrero, map mapa, sofa sofá",
    "thing f": "table mesa, chair silla, lamp lámpara, box caja, key llave, flower flor",
    "place m": "market mercado, park parque, garden jardín, hospital hospital, river río",
    "place f": "house casa, school escuela, beach playa, station estación, city ciudad, classroom aula",
}
KINDS_OF_THINGS = ("animal", "food", "text", "thing", "place")
NAMES = {"m": "Peter Pedro, John Juan, Michael Miguel", "f": "Mary María, Anna Ana, Lucy Lucía"}
# Kind of object → verbs, with the prepositions that they take.
VERBS = {
    "person": "see ver_a, help ayudar_a, know conocer_a, visit visitar_a, look_for buscar_a",
    "animal": "have tener, buy comprar, draw dibujar",
    "food": "eat comer, buy comprar, want querer",
    "text": "read leer, buy comprar, look_for buscar",
    "thing": "have tener, buy comprar, draw dibujar, want querer",
    "place": "go_to ir_a, walk_to caminar_a, be_in estar_en, be_near estar_cerca_de, visit visitar",
}
# The Spanish verb for "to be" and the kinds that the adjectives apply to.
ADJECTIVES = {
    "ser person": "tall alto, strong fuerte, famous famoso, intelligent inteligente, Spanish español, English inglés",
    "ser animal thing": "white blanco, black negro, gray gris",
    "ser food thing": "red rojo, green verde, blue azul, yellow amarillo",
    "ser animal food thing place": "big grande, small pequeño, beautiful bonito",
    "ser text thing place": "old viejo, new nuevo, modern moderno",
    "ser food text thing": "expensive caro, cheap barato",
    "estar person animal": "tired cansado, sad triste, sick enfermo",
    "estar thing place": "clean limpio, dirty sucio",
}
PREPOSITIONS = ("for", "in", "near", "to")  # prepositions of the English verbs
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
# English singular and plural; Spanish in the order of FORMS. A dash marks a missing form.
FORMS = ("ms", "fs", "mp", "fp")
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
# Regular expressions for words that depend on their neighbors. In a tree, these are words of their own.
ENGLISH_CONTRACTIONS = {r" (?=['.?])": "", r"\bcan not\b": "cannot"}
# águila and aula are feminine but take `el` and `un`.
SPANISH_CONTRACTIONS = {
    r"\bla (?=(águila|aula)\b)": "el ",
    r"\buna (?=(águila|aula)\b)": "un ",
    r"\b(a|de) el\b": r"\1l",  # keeps `a él`
}
GREETINGS = "hello hola, good_morning buenos_días, good_night buenas_noches, goodbye adiós, thank_you gracias"
ADDRESSEES = "world mundo, World Mundo, my_friend mi_amigo, my_friends mis_amigos, children niños"

# Sentences that the web pages show first.
EXAMPLES = (
    "The king's beautiful horses are white.",
    "Do you want to buy two red apples?",
    "She likes your new houses.",
    "My sister does not see the black cat.",
    "Good morning, my friends!",
)

Pair = tuple[str, str]  # English and Spanish
SAMPLE_SEED, HELD_OUT = 2017, 300


@dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages, with the person and gender that verbs and adjectives agree with."""

    tree: str  # English
    spanish: str
    person: str
    gender: str


def entries(text: str) -> list[Pair]:
    """`"look_for buscar_a, …"` → `[("look for", "buscar a"), …]`."""
    pairs = (entry.split() for entry in text.split(", "))
    return [(english.replace("_", " "), spanish.replace("_", " ")) for english, spanish in pairs]


def node(label: str, *children: str) -> str:
    """`("NP", "the old man")` → `"(NP (XX the) (XX old) (XX man))"`. A child is a tree, words or an empty string."""
    trees = (child if child.startswith("(") else re.sub(r"\S+", r"(XX \g<0>)", child) for child in children)
    return f"({label} {' '.join(filter(None, trees))})"


def english_text(tree: str) -> str:
    """`"(S (NP (XX Peter)) (VP (XX sleeps)) (. .))"` → `"Peter sleeps."`"""
    text = " ".join(re.findall(r"[^ ()]+(?=\))", tree))
    for pattern, contracted in ENGLISH_CONTRACTIONS.items():
        text = re.sub(pattern, contracted, text)
    return text


def english_plural(noun: str) -> str:
    if noun.endswith("man"):
        return noun[:-3] + "men"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(s|x|ch|sh|to)$", noun) else "s")


def verb_phrase(verb: str, rest: str) -> str:
    """The tree of a verb phrase, of a prepositional phrase, or of `rest` alone if there is no verb.

    `("wants to look for", "(NP (XX it))")` → `(VP wants (S (VP to (VP look (PP for (NP it))))))`, with tags.
    """
    head, _, tail = verb.partition(" ")
    if not head:
        return rest
    if head in PREPOSITIONS:
        return node("PP", head, rest)
    if tail.startswith("to ") and head.startswith("want"):
        return node("VP", head, node("S", node("VP", "to", verb_phrase(tail.removeprefix("to "), rest))))
    return node("VP", head, verb_phrase(tail, rest))


def english_verb(verb: str, person: str, mood: str) -> Pair:
    """`want to eat` → `("", "wants to eat")` in a statement; `("does", "want to eat")` if negated or asked."""
    head, _, tail = verb.partition(" ")
    if head == "can":
        return head, tail
    if head == "be":
        return {"1s": "am", "3s": "is"}.get(person, "are"), tail
    if mood != ".":
        return "does" if person == "3s" else "do", verb
    third = {"have": "has", "go": "goes"}.get(head, head + "s")
    return "", f"{third} {tail}".strip() if person == "3s" else verb


def spanish_plural(word: str) -> str:
    if word[-1] in "aeoáé":
        return word + "s"
    # The additional syllable makes the accent unnecessary: canción, canciones.
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


def english_clause(subject: Phrase, verb: str, rest: str, mood: str) -> str:
    """The tree of an English statement (mood `"."`), negation (`"no"`) or question (`"?"`); `rest` is a tree, too."""
    auxiliary, verb = english_verb(verb, subject.person, mood)
    predicate = verb_phrase(verb, rest)
    if mood == "?":
        tree = node("SQ", auxiliary, subject.tree, predicate, "(. ?)")
    else:
        if auxiliary:
            predicate = node("VP", auxiliary, "not" if mood == "no" else "", predicate)
        tree = node("S", subject.tree, predicate, "(. .)")
    return re.sub(r"(?<=\(XX )\w", lambda letter: letter[0].upper(), tree, count=1)


def spanish_sentence(words: tuple[str, ...], end: str) -> str:
    """A sentence with contractions, a capital letter and its final punctuation."""
    text = " ".join(filter(None, words))
    for pattern, contracted in SPANISH_CONTRACTIONS.items():
        text = re.sub(pattern, contracted, text)
    return text[0].upper() + text[1:] + end


def spanish_clause(subject: str, verb: str, rest: str, mood: str) -> str:
    """The same in Spanish, as text. `verb` is conjugated; in a question, the subject follows the verb."""
    if mood == "?":
        return "¿" + spanish_sentence((verb, subject, rest), "?")
    return spanish_sentence((subject, "no" if mood == "no" else "", verb, rest), ".")


class SentenceSampler(random.Random):
    """Samples sentence pairs, with the tree of the English sentence; the random seed determines them."""

    def sentence(self) -> Pair:
        """The tree of the English sentence, and the Spanish sentence."""
        draw = self.choices((self.action, self.quality, self.liking, self.object_pronoun), weights=(46, 22, 20, 12))[0]
        return draw(mood=self.choice((".", ".", "no", "?")))

    def action(self, mood: str) -> Pair:
        """`The boy wants to buy two red apples.` `El niño quiere comprar dos manzanas rojas.`"""
        kind = self.choice(list(VERBS))
        subject, direct_object = self.subject(), self.noun_phrase(kind)
        english, spanish = self.choice(entries(VERBS[kind]))
        if spanish != "querer" and self.random() < 0.25:
            helper = self.choice((("can", "poder"), ("want to", "querer")))
            english, spanish = f"{helper[0]} {english}", f"{helper[1]} {spanish}"
        infinitive, *rest = spanish.split()
        verb = spanish_verb(infinitive, subject.person)
        return (
            english_clause(subject, english, direct_object.tree, mood),
            spanish_clause(subject.spanish, verb, " ".join([*rest, direct_object.spanish]), mood),
        )

    def quality(self, mood: str) -> Pair:
        """`Are the girls tired?` `¿Están cansadas las niñas?`"""
        kind = self.choice(["person", *VERBS])
        subject = self.subject(definite=True) if kind == "person" else self.noun_phrase(kind, definite=True)
        # The gender of I, you and we is unknown: use only adjectives with one form for both genders, such as `triste`.
        to_be, english, spanish = self.adjective(kind, ending="" if subject.spanish else "e", besides=subject.tree)
        agreeing = spanish_adjective(spanish, subject.gender + subject.person[1])
        verb = f"{spanish_verb(to_be, subject.person)} {agreeing}"
        return (
            english_clause(subject, "be", node("ADJP", english), mood),
            spanish_clause(subject.spanish, verb, "", mood),
        )

    def liking(self, mood: str) -> Pair:
        """`She likes your houses.` `A ella le gustan tus casas.`"""
        subject, liked_object = self.subject(), self.noun_phrase(self.choice(KINDS_OF_THINGS), definite=True)
        to_whom = PRONOUNS[f"{subject.person} m"][-1]
        verb = f"{to_whom} {spanish_verb('gustar', liked_object.person)} {liked_object.spanish}"
        liker = f"a {subject.spanish}" if subject.spanish else ""
        return english_clause(subject, "like", liked_object.tree, mood), spanish_clause(liker, verb, "", mood)

    def object_pronoun(self, mood: str) -> Pair:
        """`The girls do not see her.` `Las niñas no la ven.`"""
        subject = self.subject()
        pronouns = [words for key, words in PRONOUNS.items() if key[0] == "3" or key[0] != subject.person[0]]
        _, _, whom, clitic, _ = self.choice(pronouns)
        english, spanish = self.choice(entries(VERBS["person"]))
        verb = f"{clitic} {spanish_verb(spanish.removesuffix(' a'), subject.person)}"
        return english_clause(subject, english, node("NP", whom), mood), spanish_clause(subject.spanish, verb, "", mood)

    def subject(self, definite: bool = False) -> Phrase:
        if self.random() < 0.6:
            key = self.choice(list(PRONOUNS))
            english, spanish = PRONOUNS[key][:2]
            return Phrase(node("NP", english), spanish, *key.split())
        return self.noun_phrase("person", definite)

    def noun_phrase(self, kind: str, definite: bool = False, adjectives: float = 0.4) -> Phrase:
        """`two black horses`, `my sister's car`; without `a` and `two` if `definite`."""
        gender, number = self.choice("mf"), self.choice("ssp")
        if kind == "person" and self.random() < 0.25:
            english, spanish = self.choice(entries(NAMES[gender]))
            return Phrase(node("NP", english), spanish, "3s", gender)
        english, spanish = self.choice(entries(NOUNS[f"{kind} {gender}"]))
        if number == "p":
            english, spanish = english_plural(english), spanish_plural(spanish)
        if self.random() < adjectives:
            _, english_adjective, adjective = self.adjective(kind)
            english = f"{english_adjective} {english}"
            spanish = f"{spanish} {spanish_adjective(adjective, gender + number)}"
        determiner, articles = self.determiner(number, definite)
        if kind != "person" and self.random() < 0.25:
            owner = self.noun_phrase("person", definite=True, adjectives=0.0)
            plural = owner.person == "3p" and owner.tree.endswith("s))")
            determiner = node("NP", owner.tree.removeprefix("(NP ").removesuffix(")"), "'" if plural else "'s")
            articles, spanish = DETERMINERS["the the"], f"{spanish} de {owner.spanish}"
        if determiner == "a" and english[0] in "aeiouE":  # English
            determiner = "an"
        article = articles.split()[FORMS.index(gender + number)]
        return Phrase(node("NP", determiner, english), f"{article} {spanish}", f"3{number}", gender)

    def determiner(self, number: str, definite: bool) -> Pair:
        rows = [(english.split()["sp".index(number)], articles) for english, articles in DETERMINERS.items()]
        rows = [row for row in rows if row[0] != "-" and not (definite and row[0] in ("a", "two"))]
        return self.choice(rows + rows[:1] * 4)  # mostly `the`

    def adjective(self, kind: str, ending: str = "", besides: str = "") -> tuple[str, str, str]:
        """The Spanish verb for "to be", and an adjective in English and Spanish."""
        rows = ((key.split(), words) for key, words in ADJECTIVES.items())
        fitting = [(key[0], *entry) for key, words in rows if kind in key[1:] for entry in entries(words)]
        return self.choice([row for row in fitting if row[2].endswith(ending) and row[1] not in besides])


def greetings() -> list[Pair]:
    """`hello world`, `hola mundo`; `Good morning, Mary!`, `¡Buenos días, María!`"""
    pairs = []
    for hello, hola in entries(GREETINGS):
        pairs += [(hello, hola), (f"{hello.capitalize()}!", f"¡{hola.capitalize()}!")]
        for who, quien in entries(", ".join([ADDRESSEES, *NAMES.values()])):
            pairs.append((f"{hello} {who}", f"{hola} {quien}"))
            pairs.append((f"{hello.capitalize()} {who}", f"{hola.capitalize()} {quien}"))
            pairs.append((f"{hello.capitalize()}, {who}!", f"¡{hola.capitalize()}, {quien}!"))
    return pairs


def sample_trees(size: int, seed: int) -> list[Pair]:
    """The trees of `size` distinct English sentences, with their translations: one tree per sentence of `sample`."""
    sampler = SentenceSampler(seed)
    sentences: dict[str, str] = {}
    while len(sentences) < size:
        sentences.update([sampler.sentence()])
    pairs = list(sentences.items())
    sampler.shuffle(pairs)  # otherwise, short sentences would come first
    return pairs


def sample(size: int, seed: int) -> list[Pair]:
    """`size` distinct English sentences with their translations."""
    return [(english_text(tree), spanish) for tree, spanish in sample_trees(size, seed)]


def held_out_sample(size: int) -> tuple[list[Pair], list[Pair]]:
    """Training pairs and `HELD_OUT` held-out pairs, `size` in total."""
    pairs = sample(size, SAMPLE_SEED)
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def describe_lexicon() -> str:
    """What a model of this data can translate, in two sentences."""
    nouns, verbs, adjectives = (
        {word for text in lexicon.values() for word, _ in entries(text)} for lexicon in (NOUNS, VERBS, ADJECTIVES)
    )
    return (
        f"This model translates simple English sentences into Spanish: it knows {len(nouns)} nouns, {len(adjectives)} "
        f"adjectives and {len(verbs)} verbs in the present tense, with negation and questions, and some greetings. It "
        "has not learned other words, and no sentences without a capital and punctuation."
    )


def write_sample(folder: Path, train_size: int = 6000, test_size: int = HELD_OUT, seed: int = SAMPLE_SEED) -> None:
    """Write `train.en`, `train.es`, `test.en` and `test.es`. No test sentence is in the training files."""
    pairs = sample(train_size + test_size - len(greetings()), seed)
    parts = {"train": greetings() + pairs[test_size:], "test": pairs[:test_size]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        for language, sentences in zip(("en", "es"), zip(*part, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")

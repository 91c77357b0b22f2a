"""Exercise 13: from words to vectors (paper 3.4), and what the embeddings of a trained translator contain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from modeling_random_transformer.inference.loading import load_translator

from ..report import BLUE, ORANGE, console, format_axes, save_plot, show_table
from ..sample_data import NOUNS, english_plural, entries, held_out_sample, spanish_plural
from .skip_gram import train_vectors

WORDS = ("niño", "rojo", "los", "boy")  # words whose neighbors are printed
NEIGHBORS = 4
PAIRS = 6300  # pairs of the sample data, the number of the quickstart
PROPERTIES = {"gender": ("m", "f"), "number": ("singular", "plural")}


@dataclass(frozen=True)
class Noun:
    """A form of a noun of the sample data. The gender of an English noun is that of its translation."""

    word: str
    lemma: str
    kind: str
    gender: str
    number: str


@dataclass
class LanguageResult:
    """Measurements of the nouns of one language.

    Attributes:
        accuracy: by property, the fraction of nouns that a direction classifies correctly.
        random: the same with random vectors.
        projections: of each noun on the directions of the properties.
        similarity: mean cosine of two nouns, by their relation.
        analogies: the fraction of plurals that are nearest to singular + mean difference.
    """

    nouns: list[Noun]
    accuracy: dict[str, float] = field(default_factory=dict)
    random: dict[str, float] = field(default_factory=dict)
    projections: dict[str, list[float]] = field(default_factory=dict)
    similarity: dict[str, float] = field(default_factory=dict)
    analogies: float = 0.0


@dataclass
class WordVectorResult:
    """Measurements by language.

    Attributes:
        one_hot_similarity: the largest dot product of two different one-hot vectors.
        lookup_difference: the largest difference between one-hot · matrix and the matrix's row.
        neighbors: the nearest words and their cosines, by word.
        translations: mean cosine of a noun and its translation.
        skip_gram: the nearest words by the vectors of Word2Vec's skip-gram.
        skip_gram_accuracy: as `LanguageResult.accuracy`, of the Spanish nouns with these vectors.
    """

    one_hot_similarity: float
    lookup_difference: float
    neighbors: dict[str, list[tuple[str, float]]]
    translations: float
    languages: dict[str, LanguageResult]
    skip_gram: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    skip_gram_accuracy: dict[str, float] = field(default_factory=dict)


def experiment(seed: int, folder: Path) -> WordVectorResult:
    """Examine the model of the quickstart in `folder`, and vectors that are trained alone."""
    result = examine_translator(seed, folder)
    train, _ = held_out_sample(PAIRS)
    words, vectors = train_vectors((target for _, target in train), seed)
    for word in WORDS[:-1]:  # the last one is English
        index = words.index(word)
        values, ids = cosines(vectors[index : index + 1], vectors)[0].topk(NEIGHBORS + 1)
        result.skip_gram[word] = [
            (words[i], value) for i, value in zip(ids.tolist()[1:], values.tolist()[1:], strict=True)
        ]
    nouns = [noun for noun in read_nouns("Spanish") if noun.word in words]
    of_nouns = vectors[[words.index(noun.word) for noun in nouns]]
    for name in PROPERTIES:
        result.skip_gram_accuracy[name] = accuracy(nouns, held_out_projections(nouns, of_nouns, name), name)
    return result


@torch.no_grad()
def examine_translator(seed: int, folder: Path) -> WordVectorResult:
    """Examine the model of the quickstart in `folder`. The seed is that of the random vectors."""
    model, tokenizer = load_translator(folder, argument="--model")
    matrix = model.get_input_embeddings().weight.detach()  # [vocab_size, d_model]
    torch.manual_seed(seed)
    random_matrix = torch.randn_like(matrix)
    nouns = {language: read_nouns(language) for language in ("Spanish", "English")}
    ids = {language: [token_id(tokenizer, noun.word) for noun in of] for language, of in nouns.items()}
    identity = one_hot(torch.tensor(ids["Spanish"]), len(matrix)).to(matrix.dtype)
    products = identity @ identity.T
    return WordVectorResult(
        one_hot_similarity=products.fill_diagonal_(0).max().item(),
        lookup_difference=(identity @ matrix - matrix[ids["Spanish"]]).abs().max().item(),
        neighbors={word: neighbors(word, matrix, tokenizer) for word in WORDS},
        translations=cosines(matrix[ids["Spanish"]], matrix[ids["English"]]).diagonal().mean().item(),
        languages={language: examine(nouns[language], ids[language], matrix, random_matrix) for language in nouns},
    )


def read_nouns(language: str) -> list[Noun]:
    """Singular and plural of each noun, in the same order for both languages."""
    nouns = []
    for key, words in NOUNS.items():
        kind, gender = key.split()
        for english, spanish in entries(words):
            word, plural = (english, english_plural) if language == "English" else (spanish, spanish_plural)
            nouns.append(Noun(word, word, kind, gender, "singular"))
            nouns.append(Noun(plural(word), word, kind, gender, "plural"))
    return nouns


def token_id(tokenizer: Any, word: str) -> int:
    """The id of a word within a sentence, where a space precedes it."""
    ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise ValueError(f"the tokenizer must have one token for {word!r}, got {len(ids)}; use the sample data.")
    return ids[0]


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """`[words, d_model]` and `[others, d_model]` → `[words, others]`."""
    return normalize(first, dim=1) @ normalize(second, dim=1).T


def neighbors(word: str, matrix: Tensor, tokenizer: Any) -> list[tuple[str, float]]:
    index = token_id(tokenizer, word)
    values, ids = cosines(matrix[index : index + 1], matrix)[0].topk(NEIGHBORS + 1)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [(tokenizer.decode([neighbor]).strip(), value) for neighbor, value in pairs if neighbor != index]


def examine(nouns: Sequence[Noun], ids: Sequence[int], matrix: Tensor, random_matrix: Tensor) -> LanguageResult:
    result = LanguageResult(list(nouns))
    for name in PROPERTIES:
        projections = held_out_projections(nouns, matrix[ids], name)
        result.projections[name] = projections
        result.accuracy[name] = accuracy(nouns, projections, name)
        result.random[name] = accuracy(nouns, held_out_projections(nouns, random_matrix[ids], name), name)
    result.similarity = similarities(nouns, cosines(matrix[ids], matrix[ids]))
    result.analogies = plural_analogies(ids, matrix)
    return result


def held_out_projections(nouns: Sequence[Noun], vectors: Tensor, name: str) -> list[float]:
    """The position of each noun on the line between the two means of a property: −1 and 1 at the means.

    The means are those of all other nouns: singular and plural of the noun itself are held out.
    """
    positive = torch.tensor([getattr(noun, name) == PROPERTIES[name][1] for noun in nouns])
    projections = []
    for noun, vector in zip(nouns, vectors, strict=True):
        is_training = torch.tensor([candidate.lemma != noun.lemma for candidate in nouns])
        low, high = vectors[is_training & ~positive].mean(dim=0), vectors[is_training & positive].mean(dim=0)
        half = (high - low) / 2
        projections.append(((vector - (high + low) / 2) @ half / (half @ half)).item())
    return projections


def accuracy(nouns: Sequence[Noun], projections: Sequence[float], name: str) -> float:
    positive = PROPERTIES[name][1]
    return mean(
        (value > 0) == (getattr(noun, name) == positive) for noun, value in zip(nouns, projections, strict=True)
    )


def similarities(nouns: Sequence[Noun], similarity: Tensor) -> dict[str, float]:
    """Mean cosine by relation, from `[nouns, nouns]`."""
    pairs: dict[str, list[float]] = {"singular and plural": [], "same kind": [], "different kind": []}
    for (i, first), (j, second) in combinations(enumerate(nouns), 2):
        relation = "same kind" if first.kind == second.kind else "different kind"
        pairs["singular and plural" if first.lemma == second.lemma else relation].append(similarity[i, j].item())
    return {relation: mean(values) for relation, values in pairs.items()}


def plural_analogies(ids: Sequence[int], matrix: Tensor) -> float:
    """How often `singular + (mean difference of the other nouns)` is nearest to its plural in the vocabulary.

    `ids` are those of the nouns, in the order of `read_nouns`.
    """
    singular, plural = torch.tensor(ids[::2]), torch.tensor(ids[1::2])
    differences = matrix[plural] - matrix[singular]
    offsets = (differences.sum(dim=0) - differences) / (len(differences) - 1)
    scores = cosines(matrix[singular] + offsets, matrix)
    scores.scatter_(1, singular[:, None], -1)  # the singular itself is nearest
    return (scores.argmax(dim=1) == plural).float().mean().item()


# Output


def show(result: WordVectorResult, folder: Path) -> None:
    console.print(f"Largest dot product of two one-hot vectors: {result.one_hot_similarity:.0f}")
    console.print(f"Largest difference between one-hot · matrix and its row: {result.lookup_difference:.0e}")
    rows = [
        (word, ", ".join(f"{neighbor} {value:.2f}" for neighbor, value in nearest))
        for word, nearest in result.neighbors.items()
    ]
    show_table("Nearest embeddings, by cosine", ("word", "neighbors"), rows)
    alone = [
        (word, ", ".join(f"{neighbor} {value:.2f}" for neighbor, value in nearest))
        for word, nearest in result.skip_gram.items()
    ]
    show_table("Nearest vectors of skip-gram", ("word", "neighbors"), alone)
    for name, value in result.skip_gram_accuracy.items():
        console.print(f"Spanish nouns on the right side of {name} with skip-gram: {value:.1%}")
    directions = [
        (language, name, f"{of.accuracy[name]:.1%}", f"{of.random[name]:.1%}")
        for language, of in result.languages.items()
        for name in PROPERTIES
    ]
    title = "Nouns on the right side of a direction from the other nouns"
    show_table(title, ("nouns", "property", "trained", "random vectors"), directions)
    relations = next(iter(result.languages.values())).similarity
    cosine_rows = [
        (language, *(f"{value:.3f}" for value in of.similarity.values()), f"{of.analogies:.1%}")
        for language, of in result.languages.items()
    ]
    show_table(
        "Mean cosine of two nouns, and plurals found by analogy", ("nouns", *relations, "analogies"), cosine_rows
    )
    console.print(f"Mean cosine of a noun and its translation: {result.translations:.3f}")
    save_plot(draw(result), folder / "word_vectors.png")


def draw(result: WordVectorResult) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (language, of) in zip(panels, result.languages.items(), strict=True):
        for (gender, color), (number, marker) in (
            (style, shape) for style in (("m", BLUE), ("f", ORANGE)) for shape in (("singular", "o"), ("plural", "s"))
        ):
            chosen = [i for i, noun in enumerate(of.nouns) if (noun.gender, noun.number) == (gender, number)]
            x, y = ([of.projections[name][i] for i in chosen] for name in PROPERTIES)
            axes.scatter(x, y, s=16, color=color, marker=marker, label=f"{gender}, {number}", alpha=0.8)
        axes.axhline(0, color="#cccccc", linewidth=1)
        axes.axvline(0, color="#cccccc", linewidth=1)
        axes.set(xlabel="gender direction", ylabel="number direction")
        format_axes(axes, f"{language} nouns", grid=False)
    panels[0].legend(frameon=False, fontsize=8)
    return figure

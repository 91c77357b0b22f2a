"""Constituency trees as token sequences, and labeled bracket scores.

Trees are linearized as in Vinyals et al. (2015): `(S (NP XX )NP (VP XX (NP XX )NP )VP )S`. The terminal symbol `XX`
replaces each word with its part-of-speech tag. The tree is restored with the words of the input.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nltk import Tree

from modeling_random_transformer.tokenization_random_transformer import read_lines

TERMINAL = "XX"
ROOTS = ("", "ROOT", "S1", "TOP")  # root labels of treebanks and parsers, which are not constituents
EMPTY = "-NONE-"  # the tag of traces and other empty elements
PUNCTUATION_TAGS = {",", ":", "``", "''", "."}
EQUIVALENT_LABELS = {"PRT": "ADVP"}
PARENTHESES = {"(": "-LRB-", ")": "-RRB-"}

Span = tuple[str, int, int]  # label, first word, end


def read_trees(path: Path) -> list[Tree]:
    """The normalized trees of a UTF-8 file with one bracketed tree on each line.

    Raises:
        ValueError: a line is not a tree, or there is no tree.
    """
    trees = []
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file, str(path)), start=1):
            try:
                trees.append(normalize(Tree.fromstring(line)))
            except ValueError as error:
                raise ValueError(
                    f"each line must be a bracketed tree, got {line[:40]!r} in line {number} of {path}: {error}"
                ) from error
    if not trees:
        raise ValueError(f"{path} must have at least one tree, got none.")
    return trees


def normalize(tree: Tree) -> Tree:
    """A copy without the root label, grammatical functions (`NP-SBJ`), indices (`NP=2`) and empty elements.

    The root label remains if the root has several children or a word as its child: a tree has one root.

    Raises:
        ValueError: the tree has no words, or a word has no part-of-speech tag.
    """
    copy = next(_normalized(tree), None)
    if copy is None or is_word(copy):
        raise ValueError(f"a tree must have a constituent with words, got {tree}.")
    while copy.label() in ROOTS and len(copy) == 1 and not is_word(copy[0]):
        copy = copy[0]
    if copy.label() == "":
        copy.set_label("ROOT")
    return copy


def _normalized(tree: Tree) -> Iterator[Tree]:
    """One tree, or none if the tree has no words."""
    if is_word(tree):
        if tree.label() != EMPTY:
            yield tree.copy()
        return
    if any(isinstance(child, str) for child in tree):
        raise ValueError(f"each word must have a part-of-speech tag, got {tree}.")
    children = [copy for child in tree for copy in _normalized(child)]
    if children:
        yield Tree(re.split(r"(?<=.)[-=]", tree.label())[0], children)


def is_word(tree: Tree) -> bool:
    """Whether the tree is a word with its part-of-speech tag."""
    return len(tree) == 1 and isinstance(tree[0], str)


def linearize(tree: Tree) -> list[str]:
    """`(S (NP (NNP Peter)) (VP (VBZ sleeps)))` → `["(S", "(NP", "XX", ")NP", "(VP", "XX", ")VP", ")S"]`."""
    if is_word(tree):
        return [TERMINAL]
    return [f"({tree.label()}", *(token for child in tree for token in linearize(child)), f"){tree.label()}"]


def delinearize(tokens: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of a linearization over these words, with the part-of-speech tag `XX`.

    Raises:
        ValueError: the tokens are not one well-formed tree over exactly these words.
    """
    remaining = iter(words)
    top = Tree("", [])
    open_trees = [top]
    try:
        for token in tokens:
            if token == TERMINAL:
                open_trees[-1].append(Tree(TERMINAL, [next(remaining)]))
            elif token.startswith("("):
                open_trees[-1].append(Tree(token[1:], []))
                open_trees.append(open_trees[-1][-1])
            else:
                closed = open_trees.pop()
                well_formed = token == f"){closed.label()}" and len(closed) > 0 and closed is not top
                open_trees = open_trees if well_formed else []
        complete = len(open_trees) == len(top) == 1 and not is_word(top[0]) and next(remaining, None) is None
    except (IndexError, StopIteration):
        complete = False
    if not complete:
        raise ValueError(f"tokens must be one tree over {len(words)} words, got {' '.join(tokens)!r}.")
    return top[0]


def words_of(sentence: str) -> list[str]:
    """The words of a text, which are separated by spaces; parentheses as in treebanks, `-LRB-` and `-RRB-`."""
    return [re.sub("[()]", lambda match: PARENTHESES[match[0]], word) for word in sentence.split()]


def one_line(tree: Tree) -> str:
    return " ".join(str(tree).split())


@dataclass(frozen=True)
class BracketScores:
    """Labeled precision, recall and F1 of the constituents, and sentences with all of them correct, in percent."""

    precision: float
    recall: float
    f1: float
    complete_match: float


def bracket_scores(predicted: Iterable[Tree], gold: Iterable[Tree]) -> BracketScores:
    """Scores of a corpus (Black et al. 1991), with the rules of EVALB's parameter file `COLLINS.prm`.

    Part-of-speech tags and root labels are not scored. Punctuation, by its tag in the gold tree, is removed. `ADVP` and
    `PRT` are equivalent.

    Raises:
        ValueError: there are no trees, or two trees have different words.
    """
    matched = predictions = references = sentences = exact = 0
    for tree, reference in zip(predicted, gold, strict=True):
        if tree.leaves() != reference.leaves():
            raise ValueError(f"predicted must have the words of gold, got {tree.leaves()} and {reference.leaves()}.")
        kept = [tag not in PUNCTUATION_TAGS for _, tag in reference.pos()]
        predicted_spans, expected = constituents(tree, kept), constituents(reference, kept)
        matched += (predicted_spans & expected).total()
        predictions += predicted_spans.total()
        references += expected.total()
        exact += predicted_spans == expected
        sentences += 1
    if not sentences:
        raise ValueError("gold must have at least one tree, got none.")
    return BracketScores(
        precision=100 * matched / max(predictions, 1),
        recall=100 * matched / max(references, 1),
        f1=200 * matched / max(predictions + references, 1),
        complete_match=100 * exact / sentences,
    )


def constituents(tree: Tree, kept: Sequence[bool]) -> Counter[Span]:
    """Label, first word and end of each constituent, counting only the words that are kept."""
    spans: Counter[Span] = Counter()

    def add(node: Tree, start: int) -> int:
        if is_word(node):
            return start + 1
        end = start
        for child in node:
            end = add(child, end)
        first, last = sum(kept[:start]), sum(kept[:end])
        if first < last and node.label() not in ROOTS:
            spans[EQUIVALENT_LABELS.get(node.label(), node.label()), first, last] += 1
        return end

    add(tree, 0)
    return spans

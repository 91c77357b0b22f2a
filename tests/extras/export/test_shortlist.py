"""IBM model 1 finds which tokens translate which."""

import numpy as np
import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.export.shortlist import lexical_shortlist, translation_probabilities, vmap

PAIRS = [("the house", "das haus"), ("the book", "das buch"), ("a book", "ein buch"), ("a house", "ein haus")]
WORDS = ["<pad>", "<s>", "</s>", "<unk>", *dict.fromkeys(" ".join(sum(PAIRS, ())).split())]
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_shortlist_of_word_pairs():
    tokenizer = RandomTransformerTokenizer.from_words(WORDS, **SPECIAL)
    target_ids = lexical_shortlist(PAIRS, tokenizer, size=1)
    names = {WORDS[i]: [WORDS[j] for j in ids] for i, ids in target_ids.items() if i is not None}
    assert names == {"the": ["das"], "a": ["ein"], "house": ["haus"], "book": ["buch"], "</s>": ["</s>"]}
    lines = vmap(target_ids, WORDS, WORDS).decode().splitlines()
    assert "house\thaus house" in lines
    [common] = [line for line in lines if line.startswith("\t")]
    assert set(common.split()) == {"das", "haus", "ein", "buch", "</s>"}


def test_first_iterations_equal_those_by_hand(monkeypatch):
    """Two sentences, a b → x y and a → x: after one iteration p(x | a) = (1/3 + 1/2) / (1/3 + 1/3 + 1/2)."""
    monkeypatch.setattr("modeling_random_transformer.extras.export.shortlist.EM_ITERATIONS", 1)
    sources, targets = [np.array([0, 1]), np.array([0])], [np.array([5, 6]), np.array([5])]
    probabilities = {(int(s), int(t)): p for s, t, p in zip(*translation_probabilities(sources, targets), strict=True)}
    assert probabilities[0, 5] == pytest.approx((1 / 3 + 1 / 2) / (1 / 3 + 1 / 3 + 1 / 2))
    assert probabilities[1, 6] == pytest.approx(1 / 2)
    assert probabilities[-1, 6] == pytest.approx((1 / 3) / (1 / 3 + 1 / 3 + 1 / 2))


def test_no_pairs():
    with pytest.raises(ValueError, match="pairs must be at least one pair of sentences, got none"):
        lexical_shortlist([], RandomTransformerTokenizer.from_words(WORDS, **SPECIAL))

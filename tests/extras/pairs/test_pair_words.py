"""The probabilities of the words of translations."""

import math

import pytest

from modeling_random_transformer.extras.pairs.words import with_words
from modeling_random_transformer.inference.scoring import PairScore


def test_a_word_has_the_probability_of_its_tokens():
    score = PairScore(math.log(0.01), 4, 3, [math.log(value) for value in (0.5, 0.1, 0.4, 0.5)])
    words = with_words(score, "ein  Hund", [None, 0, 0, 1, None]).words  # a tag of the language, and the end
    assert [word for word, _ in words] == ["ein", "Hund"]
    assert [probability for _, probability in words] == pytest.approx([0.05, 0.4])

"""The texts that other sets share with the training set."""

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data.overlap import describe_overlap, shared_texts
from modeling_random_transformer.data.words import words_digest

PAIRS = st.lists(st.tuples(*[st.sampled_from(["a", "A.", "b", "c!", "C", "d", "?"])] * 2), min_size=1, max_size=5)


def dataset(pairs):
    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": list(sources), "target": list(targets)})


@given(st.lists(PAIRS, min_size=1, max_size=2), PAIRS, PAIRS)
def test_counts_are_those_of_comparing_all_texts(corpora, validation, test):
    held_out = {"validation": validation, "test": test}
    expected = {}
    for name, pairs in held_out.items():
        counts = {"pairs": len(pairs)}
        for index, side in enumerate(("source", "target")):
            known = {words_digest(pair[index]) for corpus in corpora for pair in corpus}
            counts[side] = sum(words_digest(pair[index]) in known for pair in pairs)
        if counts["source"] or counts["target"]:
            expected[name] = counts
    sets = {name: dataset(pairs) for name, pairs in held_out.items()}
    assert shared_texts([*map(dataset, corpora)], sets) == expected


@pytest.mark.parametrize("train", [[("b", "a")], [("c", "c")]])
def test_a_text_on_the_other_side_is_not_shared(train):
    assert shared_texts([dataset(train)], {"test": dataset([("a", "b")])}) == {}


def test_a_set_is_one_line():
    line = describe_overlap("test", {"pairs": 4000, "source": 1200, "target": 0})
    assert line == "test: 1,200 sources and 0 targets of 4,000 pairs occur in the training set"

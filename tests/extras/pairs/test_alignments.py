"""Word alignments from cross-attention: words of tokens, links, files, and quality on a trained model."""

import pytest
import torch

from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.extras.pairs import alignments
from modeling_random_transformer.extras.pairs.alignments import Aligner, link_words
from modeling_random_transformer.extras.pairs.words import word_spans, words_by_marks, words_by_offsets
from tests.helpers.translation import some_texts

PAIRS = list(zip(some_texts(12, seed=1), some_texts(12, seed=2), strict=True))


def test_every_target_word_has_one_link(model, tokenizer):
    for (source, target), links in zip(PAIRS, alignments(model, tokenizer, PAIRS, max_batch_tokens=99), strict=True):
        assert sorted(word for _, word in links) == list(range(len(target.split())))
        assert {word for word, _ in links} <= set(range(len(source.split())))
        assert links == sorted(links)


def test_extra_spaces_do_not_change_links(model, tokenizer):
    """Words have the same numbers, and a model has rarely seen several spaces."""
    source, target = PAIRS[0]
    pairs = [PAIRS[0], (source.replace(" ", "  "), f" {target}"), (source, target.replace(" ", "\t\xa0"))]
    plain, *spaced = alignments(model, tokenizer, pairs)
    assert spaced == [plain] * 2


def test_a_text_without_words_has_no_links(model, tokenizer):
    pairs = [(PAIRS[0][0], ""), PAIRS[0]]
    assert list(alignments(model, tokenizer, pairs[:1])) == [[]]
    assert list(alignments(model, tokenizer, pairs)) == [[], *alignments(model, tokenizer, pairs[1:])]


def test_batching_does_not_change_links(model, tokenizer):
    together = list(alignments(model, tokenizer, PAIRS))
    assert together == [next(alignments(model, tokenizer, [pair])) for pair in PAIRS]
    assert together == list(alignments(model, tokenizer, PAIRS, chunk_size=5))
    assert model.config._attn_implementation == "sdpa"
    assert model.model.decoder.config._attn_implementation == "sdpa"


def test_attention_is_that_of_the_requested_step(model, tokenizer):
    """Where a token is the input, changing the last one changes its attention, but not that of the earlier ones."""
    aligner = Aligner(model, tokenizer, layer=1, step="input")
    ids = tokenizer(["the boy reads", "las casas dos", "las casas dos"])["input_ids"]
    changed = [*ids[2][:-2], ids[0][0], ids[2][-1]]
    first, second = aligner.attention([ids[0]] * 2, [ids[1], changed])
    assert first.shape == (len(ids[1]) - 1, len(ids[0]))
    torch.testing.assert_close(first.sum(dim=1), torch.ones(len(first)))
    torch.testing.assert_close(first[:-1], second[:-1])
    assert not torch.allclose(first[-1], second[-1])
    predicting = Aligner(model, tokenizer, layer=1).attention([ids[0]] * 2, [ids[1], changed])
    torch.testing.assert_close(predicting[0, 1:], first[:-1])
    torch.testing.assert_close(predicting[0], predicting[1])


def test_links_sum_the_attention_of_subwords():
    attention = torch.tensor([[0.4, 0.3, 0.3, 0.9], [0.5, 0.3, 0.2, 0.9], [0.1, 0.2, 0.1, 0.9]])
    assert link_words(attention, [0, 1, 1, None], [0, 0, 1]) == [(1, 0), (1, 1)]
    assert link_words(attention, [0, 1, 1, None], [0, 1, 1]) == [(1, 0), (1, 1)]
    assert link_words(attention, [0, 1, 2, None], [0, None, 1]) == [(0, 0), (1, 1)]
    assert link_words(attention, [None] * 4, [0]) == []


def test_words_of_tokens():
    assert words_by_offsets(word_spans("la niña"), [(0, 2), (2, 4), (4, 7), (0, 0)]) == [0, 1, 1, None]
    assert words_by_offsets(word_spans("a  b"), [(0, 1), (1, 2), (2, 4)]) == [0, None, 1]
    assert words_by_marks(["▁the", "▁cat", "s", "</s>"], {"</s>"}) == [0, 1, 1, None]


def test_byte_level_tokens_of_one_character(tokenizer):
    """A character outside the vocabulary has several tokens with the same offsets."""
    text = "one 灯塔 two"
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    words = words_by_offsets(word_spans(text), offsets)
    assert words[-1] is None
    assert [word for word in words if word is not None] == sorted(word for word in words if word is not None)
    assert set(words) == {0, 1, 2, None}


def test_invalid_arguments(model, tokenizer):
    for layer in (3, 0.0, True):
        with pytest.raises(ValueError, match=f"layer must be from -3 to 2, got {layer}"):
            alignments(model, tokenizer, PAIRS, layer=layer)
    with pytest.raises(ValueError, match="step must be one of output, input, got 'next'"):
        alignments(model, tokenizer, PAIRS, step="next")
    with pytest.raises(ValueError, match="model must be a single model for alignments, got an ensemble"):
        alignments(EnsembleForSeq2SeqLM([model, model]), tokenizer, PAIRS)

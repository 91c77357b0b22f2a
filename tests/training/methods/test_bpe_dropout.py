"""BPE-dropout: the distribution of segmentations, determinism, and batches with it."""

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import (
    DatasetText,
    TokenBudgetSampler,
    TokenBudgetStream,
    lengths_of,
    streaming,
    tokenize_pairs,
)
from modeling_random_transformer.data.retokenization import RetokenizedPairs
from modeling_random_transformer.training.methods.bpe_dropout import BPEDropout

TEXTS = ["the cat sat on the mat, that's it!!", "  a cat's hat 1234 <s> ünïcode", "xyz", "the the"] * 5
TOKENIZER = RandomTransformerTokenizer.train(TEXTS, vocab_size=340)


def word_ids(tokenizer, text):
    return [-1 if word is None else word for word in tokenizer(text).word_ids()]


def segment(bpe_dropout, text, seed=0):
    ids = TOKENIZER(text)["input_ids"]
    return bpe_dropout(ids, word_ids(TOKENIZER, text), np.random.default_rng(seed))


@pytest.mark.parametrize("text", TEXTS[:4])
def test_dropout_changes_the_segmentation_and_not_the_text(text):
    ids = TOKENIZER(text)["input_ids"]
    assert segment(BPEDropout(TOKENIZER, 0.0), text) == ids
    dropped = [segment(BPEDropout(TOKENIZER, 0.5), text, seed) for seed in range(20)]
    assert {TOKENIZER.decode(row) for row in dropped} == {TOKENIZER.decode(ids)}
    assert len(set(map(tuple, dropped))) > 1
    assert all(row[-1] == TOKENIZER.eos_token_id and len(row) >= len(ids) for row in dropped)


def exact_distribution(symbols, merges, dropout):
    """The probability of each segmentation, by the recursion that defines the algorithm."""
    possible = sorted((merges.index(pair), i) for i, pair in enumerate(pairwise(symbols)) if pair in merges)
    distribution = Counter({symbols: dropout ** len(possible)})
    for number, (_, i) in enumerate(possible):
        merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
        for end, probability in exact_distribution(merged, merges, dropout).items():
            distribution[end] += dropout**number * (1 - dropout) * probability
    return distribution


@pytest.mark.parametrize(("dropout", "word"), [(0.5, "abcab"), (0.3, "aaaa")])
def test_segmentations_have_the_probabilities_of_the_algorithm(dropout, word):
    merges = [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("abc", "ab"), ("a", "a"), ("aa", "aa")]
    tokens = sorted({*"abc", *map("".join, merges)})
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    bpe_dropout, random = BPEDropout(tokenizer, dropout), np.random.default_rng(0)
    ids, words, draws = tokenizer(word)["input_ids"], word_ids(tokenizer, word), 10_000
    counts = Counter(tuple(tokenizer.convert_ids_to_tokens(bpe_dropout(ids, words, random))) for _ in range(draws))
    expected = exact_distribution(tuple(word), merges, dropout)
    assert sum(expected.values()) == pytest.approx(1)
    for symbols, probability in expected.items():
        assert counts[symbols] / draws == pytest.approx(probability, abs=0.02)


def test_a_text_does_not_exceed_the_limit_of_the_model():
    ids = TOKENIZER("the cat")["input_ids"]
    bpe_dropout = BPEDropout(TOKENIZER, 0.9, max_length=5)
    assert bpe_dropout(ids, word_ids(TOKENIZER, "the cat"), np.random.default_rng(0)) == ids


def test_invalid_arguments_raise_value_error():
    with pytest.raises(ValueError, match=r"bpe_dropout must be at least 0 and below 1, got 1\.0"):
        BPEDropout(TOKENIZER, 1.0)
    words = RandomTransformerTokenizer.from_words(["a", "S", "E"], bos_token="S", eos_token="E")
    with pytest.raises(ValueError, match="bpe_dropout must be 0 for a tokenizer without BPE merges, got a WordLevel"):
        BPEDropout(words, 0.1)


# Batches


def training_set(size=40):
    rows = [{"line": i, "source": f"the cat {'on the mat ' * (i % 4)}", "target": f"that hat {i}"} for i in range(size)]
    return tokenize_pairs(Dataset.from_list(rows), TOKENIZER, with_words=True)[0]


def batches(tokens, num_workers=0, epoch=0, seed=1, num_processes=1, weights=None, dropout=0.3):
    pairs = RetokenizedPairs(tokens, BPEDropout(TOKENIZER, dropout), seed)
    options = {"num_processes": num_processes, "seed": seed, "weights": weights}
    sampler = TokenBudgetSampler(lengths_of(tokens), max_tokens=60, retokenized=pairs, **options)
    sampler.set_epoch(epoch)
    return list(DataLoader(pairs, batch_sampler=sampler, collate_fn=list, num_workers=num_workers))


def test_segmentations_depend_on_the_seed_and_the_epoch_only():
    tokens = training_set()
    first = batches(tokens)
    assert set(first[0][0]) == {"input_ids", "labels"}
    assert first == batches(tokens) == batches(tokens, num_workers=2)
    rows = [sorted(map(str, chain(*epoch))) for epoch in (first, batches(tokens, epoch=1), batches(tokens, seed=2))]
    assert rows[0] not in rows[1:]
    assert sorted(map(str, chain(*batches(tokens, num_processes=2)))) == rows[0]


def test_batches_have_as_many_pairs_as_without_dropout_and_little_padding():
    tokens = training_set(size=200)
    ordinary = TokenBudgetSampler(lengths_of(tokens), max_tokens=60)
    dropped = batches(tokens, epoch=2)
    assert sorted(map(len, dropped)) == sorted(map(len, ordinary))
    shapes = [[[len(row[name]) for row in batch] for name in ("input_ids", "labels")] for batch in dropped]
    padded = sum(len(batch) * sum(map(max, sides)) for batch, sides in zip(dropped, shapes, strict=True))
    assert padded < 1.1 * sum(sum(map(sum, sides)) for sides in shapes)


def test_weights_select_the_same_pairs_as_without_dropout():
    tokens = training_set(size=60)
    weights = np.where(np.arange(60) < 20, 2, 1)
    sampler = TokenBudgetSampler(lengths_of(tokens), max_tokens=60, seed=1, weights=weights)
    sampler.set_epoch(3)
    expected = Counter(TOKENIZER.decode(tokens[i]["labels"]) for i in chain(*sampler))
    dropped = batches(tokens, epoch=3, weights=weights)
    assert Counter(TOKENIZER.decode(row["labels"]) for row in chain(*dropped)) == expected
    assert sorted(map(len, dropped)) == sorted(map(len, sampler))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_depends_on_the_seed_the_epoch_and_the_line(num_workers, monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 7)
    corpus = DatasetText(Dataset.from_list([{"source": f"the cat {i}", "target": "that hat"} for i in range(40)]))

    def epochs(**options):
        stream = TokenBudgetStream(corpus, TOKENIZER, 60, buffer_pairs=16, seed=3, **options)
        return [[row for batch in stream.epoch(number) for row in batch] for number in range(2)]

    ordinary = epochs()
    dropped = epochs(retokenizer=BPEDropout(TOKENIZER, 0.3), num_workers=num_workers)
    assert dropped == epochs(retokenizer=BPEDropout(TOKENIZER, 0.3))
    for plain, changed in zip(ordinary, dropped, strict=True):  # the same pairs
        texts = [sorted(TOKENIZER.decode(row["input_ids"]) for row in rows) for rows in (plain, changed)]
        assert texts[0] == texts[1]
    assert sorted(map(str, dropped[0])) != sorted(map(str, dropped[1])) != sorted(map(str, ordinary[1]))

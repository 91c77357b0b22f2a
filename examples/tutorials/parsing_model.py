"""A parser: tokenizer, training examples, and parsing with a trained model."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from nltk import Tree
from transformers import BatchEncoding

from modeling_random_transformer import RandomTransformerTokenizer

from .parsing_decoding import TreeLogitsProcessor, max_target_length
from .parsing_trees import TERMINAL, delinearize, linearize

BATCH_SIZE = 50


def train_tokenizer(trees: Sequence[Tree], vocab_size: int) -> RandomTransformerTokenizer:
    """Byte-pair encoding of the words; `XX` and the brackets of each label are special tokens."""
    labels = sorted({token[1:] for tree in trees for token in linearize(tree) if token != TERMINAL})
    special = [TERMINAL, *(bracket + label for label in labels for bracket in "()")]
    texts = (source_text(tree.leaves()) for tree in trees)
    return RandomTransformerTokenizer.train(texts, vocab_size, special_tokens=special)


def source_text(words: Sequence[str]) -> str:
    """The words, each after a space, so that the first word is tokenized like the others."""
    return "".join(f" {word}" for word in words)


def encode_sources(tokenizer: Any, sentences: Sequence[Sequence[str]], **options: Any) -> BatchEncoding:
    """Token ids of the words of each sentence. A word such as `XX` or `</s>` is not a special token."""
    return tokenizer([source_text(words) for words in sentences], split_special_tokens=True, **options)


def encode_trees(tokenizer: Any, trees: Sequence[Tree]) -> Dataset:
    """Training examples: the words as source, the linearized tree as labels."""
    inputs = encode_sources(tokenizer, [tree.leaves() for tree in trees])
    labels = [tokenizer.convert_tokens_to_ids([*linearize(tree), tokenizer.eos_token]) for tree in trees]
    return Dataset.from_dict({**inputs, "labels": labels})


@torch.no_grad()
def parse(model: Any, tokenizer: Any, sentences: Sequence[Sequence[str]], **generation_kwargs: Any) -> list[Tree]:
    """The tree of each sentence, in the order of the sentences.

    Args:
        model: trained on `encode_trees`.
        tokenizer: of the model.
        sentences: words of each sentence.
        **generation_kwargs: of `generate()`, such as `num_beams`.

    Raises:
        ValueError: a sentence has no words.
    """
    trees: dict[int, Tree] = {}
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))  # reduces padding
    for batch in batches(order):
        words = [list(sentences[index]) for index in batch]
        lengths = [len(sentence) for sentence in words]
        processor = TreeLogitsProcessor(tokenizer, lengths)
        inputs = encode_sources(tokenizer, words, padding=True, return_tensors="pt").to(model.device)
        options = {"max_new_tokens": max_target_length(max(lengths)), "num_return_sequences": 1, **generation_kwargs}
        output = model.generate(**inputs, logits_processor=[processor], **options)
        for index, ids, sentence in zip(batch, output.tolist(), words, strict=True):
            tokens = tokenizer.convert_ids_to_tokens(ids[1 : ids.index(tokenizer.eos_token_id)])
            trees[index] = delinearize(tokens, sentence)
    return [trees[index] for index in range(len(sentences))]


def batches(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(indices), BATCH_SIZE):
        yield indices[start : start + BATCH_SIZE]

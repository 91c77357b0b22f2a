"""A parser: tokenizer, training examples, and parsing with a trained model.

The target is the linearized tree with the words of the source in place of `XX`. The decoder finds the next word of the
source by attention to the last one; with `XX`, it would have to count words.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from nltk import Tree

from modeling_random_transformer import RandomTransformerTokenizer

from .parsing_decoding import TreeLogitsProcessor, WordTokens, max_target_length
from .parsing_trees import TERMINAL, delinearize, linearize

BATCH_SIZE = 50
# Options of `generate()` with which each sentence has one complete tree.
SEARCH_OPTIONS = (
    *("num_beams", "length_penalty", "early_stopping", "use_cache"),
    *("do_sample", "temperature", "top_k", "top_p"),
)


def train_tokenizer(trees: Sequence[Tree], vocab_size: int) -> RandomTransformerTokenizer:
    """Byte-pair encoding of the words; the brackets of each label are special tokens."""
    labels = sorted({token[1:] for tree in trees for token in linearize(tree) if token != TERMINAL})
    brackets = [bracket + label for label in labels for bracket in "()"]
    texts = ("".join(map(word_text, tree.leaves())) for tree in trees)
    return RandomTransformerTokenizer.train(texts, vocab_size, special_tokens=brackets)


def word_text(word: str) -> str:
    """The first word of a sentence has a space, too, so that it has the tokens of the others."""
    return f" {word}"


def word_tokens(tokenizer: Any, words: Sequence[str]) -> WordTokens:
    """The token ids of each word. A word such as `(NP` or `</s>` is not a special token."""
    texts = list(map(word_text, words))
    return tokenizer(texts, split_special_tokens=True, add_special_tokens=False)["input_ids"] if texts else []


def source_ids(tokenizer: Any, words: WordTokens) -> list[int]:
    return [*(token for word in words for token in word), tokenizer.eos_token_id]


def target_ids(tokenizer: Any, tree: Tree, words: WordTokens) -> list[int]:
    """The linearized tree, with the tokens of the words in place of `XX`."""
    remaining = iter(words)
    ids: list[int] = []
    for token in linearize(tree):
        ids += next(remaining) if token == TERMINAL else [tokenizer.convert_tokens_to_ids(token)]
    return [*ids, tokenizer.eos_token_id]


def decode_tree(tokenizer: Any, ids: Sequence[int], words: Sequence[str], tokens: WordTokens) -> Tree:
    """The tree of an output without its start token."""
    brackets = set(tokenizer.get_added_vocab().values())
    linearized: list[str] = []
    lengths = map(len, tokens)
    position = 0
    while ids[position] != tokenizer.eos_token_id:
        is_bracket = ids[position] in brackets
        linearized.append(tokenizer.convert_ids_to_tokens(ids[position]) if is_bracket else TERMINAL)
        position += 1 if is_bracket else next(lengths)
    return delinearize(linearized, words)


def encode_trees(tokenizer: Any, trees: Sequence[Tree]) -> Dataset:
    """Training examples: the words as source, the linearized tree as labels."""
    words = [word_tokens(tokenizer, tree.leaves()) for tree in trees]
    targets = [target_ids(tokenizer, tree, tokens) for tree, tokens in zip(trees, words, strict=True)]
    return Dataset.from_dict({"input_ids": [source_ids(tokenizer, tokens) for tokens in words], "labels": targets})


@torch.no_grad()
def parse(model: Any, tokenizer: Any, sentences: Sequence[Sequence[str]], **generate_kwargs: Any) -> list[Tree]:
    """The tree of each sentence, in the order of the sentences.

    Args:
        model: trained on `encode_trees`.
        tokenizer: of the model.
        sentences: words of each sentence.
        **generate_kwargs: options of `generate()`, those of `SEARCH_OPTIONS`. The length of an output is limited by
            its number of words.

    Raises:
        ValueError: a sentence has no words, or an option is not supported.
    """
    for name, value in generate_kwargs.items():
        if name not in SEARCH_OPTIONS:
            option_names = ", ".join(SEARCH_OPTIONS)
            raise ValueError(f"generate_kwargs must be options among {option_names}, got {name}={value!r}.")
    trees: dict[int, Tree] = {}
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))  # reduces padding
    for batch in batches(order):
        tokens = [word_tokens(tokenizer, sentences[index]) for index in batch]
        processor = TreeLogitsProcessor(tokenizer, tokens)
        sources = {"input_ids": [source_ids(tokenizer, words) for words in tokens]}
        inputs = tokenizer.pad(sources, return_tensors="pt").to(model.device)
        options = {"max_new_tokens": max(map(max_target_length, tokens)), **generate_kwargs}
        output = model.generate(**inputs, logits_processor=[processor], **options)
        for index, ids, words in zip(batch, output.tolist(), tokens, strict=True):
            trees[index] = decode_tree(tokenizer, ids[1:], sentences[index], words)
    return [trees[index] for index in range(len(sentences))]


def batches(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(indices), BATCH_SIZE):
        yield indices[start : start + BATCH_SIZE]

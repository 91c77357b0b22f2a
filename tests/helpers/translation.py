"""A random model with varied outputs that end, its tokenizer, and texts."""

import random

import torch

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from tests.helpers.models import EOS, tiny_model

SENTENCES = [
    "the boy reads a book in the garden",
    "the girls do not see the old house",
    "we want to buy two red apples",
    "el niño lee un libro en el jardín",
    "las niñas no ven la casa vieja",
    "queremos comprar dos manzanas rojas",
]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def some_texts(count: int, seed: int = 0) -> list[str]:
    """Random texts of 1 to 12 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]


def random_tokenizer() -> RandomTransformerTokenizer:
    return RandomTransformerTokenizer.train(SENTENCES * 3, vocab_size=320)


def random_translator(seed: int = 0, **overrides) -> RandomTransformerForConditionalGeneration:
    """A model for `random_tokenizer`, with a bias on the end token so that most outputs end."""
    options = {"norm_order": "pre", "lm_head_bias": True, "max_position_embeddings": 256, **overrides}
    model = tiny_model(seed, spread=2.0, vocab_size=len(random_tokenizer()), **options)
    with torch.no_grad():
        model.lm_head.bias[EOS] = 12.0
    return model


def multilingual_translator(**options) -> tuple[RandomTransformerForConditionalGeneration, RandomTransformerTokenizer]:
    """A random model for English, Spanish and French, and its tokenizer with these options."""
    tokenizer = RandomTransformerTokenizer.train(SENTENCES * 3, vocab_size=320, languages=["en", "es", "fr"], **options)
    model = tiny_model(spread=2.0, vocab_size=len(tokenizer), norm_order="pre", lm_head_bias=True)
    with torch.no_grad():
        model.lm_head.bias[EOS] = 12.0
    return model, tokenizer

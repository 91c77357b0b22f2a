"""Small models and batches for tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)

PAD, BOS, EOS = 0, 1, 2
VOCAB_SIZE = 61

TINY = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "num_heads": 2,
    "d_ff": 24,
    "dropout": 0.0,
    "max_position_embeddings": 64,
}


def tiny_config(**overrides: Any) -> RandomTransformerConfig:
    return RandomTransformerConfig(**{**TINY, **overrides})


def tiny_model(seed: int = 0, spread: float = 1.0, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """A random model in evaluation mode; a `spread` above 1 widens its weights, so that its choices differ more."""
    torch.manual_seed(seed)
    model = RandomTransformerForConditionalGeneration(tiny_config(**overrides)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(spread)
    return model


def exact_model(seed: int = 0, spread: float = 1.0, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """The same in float64, so that comparisons do not depend on the rounding of the CPU."""
    return tiny_model(seed, spread, **overrides).double()


def enable_checkpointing(model: Any, **options: Any) -> None:
    """Gradient checkpointing, whose method transformers 5.23 renamed; the old name is deprecated."""
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable(options)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal within `tolerance` times the largest absolute value of `expected`."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * expected.abs().max().item())


def assert_same_generation(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    """The same tokens of two outputs of `generate()`, and logits that are equal within the tolerance at each step."""
    assert torch.equal(ours.sequences, theirs.sequences)
    for actual, expected in zip(ours.logits, theirs.logits, strict=True):
        assert_near(actual, expected, tolerance)


def fixed_scores(ids: Tensor, scores: Tensor) -> Tensor:
    """A logits processor that replaces the model's scores, so that rounding cannot change the search."""
    generator = torch.Generator().manual_seed(ids.shape[1])
    table = torch.randn(scores.shape[1], scores.shape[1], generator=generator)  # row: the last token
    return table[ids[:, -1]].to(scores.dtype)


def random_ids(batch_size: int, length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """Random ids without special tokens, `[batch_size, length]`."""
    return torch.randint(4, vocab_size, (batch_size, length), generator=torch.Generator().manual_seed(seed))


def padded_batch(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Sources of these lengths, padded on the right: `input_ids` and `attention_mask`, `[batch, longest]`."""
    ids = random_ids(len(lengths), max(lengths), seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids.where(mask, torch.tensor(PAD)), "attention_mask": mask.long()}


def save_translator(folder: Path, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """Save a random model and a tokenizer trained on a few English words."""
    tokenizer = RandomTransformerTokenizer.train(["the cat sees the dog", "a dog sees a red car"] * 9, vocab_size=300)
    tokenizer.save_pretrained(folder)
    model = tiny_model(spread=2.0, vocab_size=len(tokenizer), **overrides)
    model.save_pretrained(folder)
    return model

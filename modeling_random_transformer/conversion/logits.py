"""Comparison of the logits of an original model and its conversion."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration

# Maps source ids and their padding mask, [batch, source_len], and target ids, [batch, target_len], to logits,
# [batch, target_len, target_vocabulary].
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
SOURCE_LENGTHS = (9, 5, 1)  # of the sources of a batch; two of three are padded


@torch.no_grad()
def largest_difference(
    model: RandomTransformerForConditionalGeneration,
    original: Logits,
    batches: int = 3,
    target_len: int = 7,
    vocabularies: tuple[int, int] | None = None,
    seed: int = 0,
) -> float:
    """The largest absolute difference between the logits of two models on random batches with padding.

    Args:
        model: the converted model, in evaluation mode.
        original: computes the logits of the original model.
        batches: number of batches, of three sources each.
        target_len: length of each target.
        vocabularies: sizes of the original's source and target vocabulary; `vocab_size` of the model when `None`.
        seed: random seed of the ids.
    """
    config = model.config
    pad = config.pad_token_id or 0
    sources, targets = vocabularies or (config.vocab_size, config.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    length = min(max(SOURCE_LENGTHS), config.max_position_embeddings)
    mask = (torch.arange(length) < torch.tensor(SOURCE_LENGTHS)[:, None]).long()
    differences = []
    for _ in range(batches):
        ids = random_tokens(sources, pad, mask.shape, generator).where(mask.bool(), torch.tensor(pad))
        target = random_tokens(targets, pad, (len(SOURCE_LENGTHS), min(target_len, length)), generator)
        ours = model(ids, mask, target).logits[..., :targets]
        differences.append((ours - original(ids, mask, target)).abs().max().item())
    return max(differences)


def random_tokens(vocabulary: int, pad: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random ids without padding. Models treat padding between tokens differently, but real inputs never have it."""
    ids = torch.randint(vocabulary, tuple(shape), generator=generator)
    return ids.where(ids != pad, torch.tensor((pad + 1) % vocabulary))

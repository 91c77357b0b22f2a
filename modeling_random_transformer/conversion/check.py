"""Whether the original and what was made of it say the same."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration

# Source ids and their padding mask, [batch, source_len], and target ids, [batch, target_len], to logits
# [batch, target_len, target_vocabulary].
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
LENGTHS = (9, 5, 1)  # of the sources of a batch, so that two of three are padded


@torch.no_grad()
def largest_difference(
    model: RandomTransformerForConditionalGeneration,
    original: Logits,
    batches: int = 3,
    target_len: int = 7,
    vocabularies: tuple[int, int] | None = None,
    seed: int = 0,
) -> float:
    """The largest difference between the logits of two models on random batches with padding.

    Args:
        model: the converted model, in evaluation mode.
        original: computes the original's logits.
        batches: how many batches of three sources are tried.
        target_len: tokens of each target.
        vocabularies: how many ids the original's source and target have; the model's `vocab_size` when `None`.
        seed: of the random ids.
    """
    config = model.config
    pad = config.pad_token_id or 0
    sources, targets = vocabularies or (config.vocab_size, config.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    length = min(max(LENGTHS), config.max_position_embeddings)
    mask = (torch.arange(length) < torch.tensor(LENGTHS)[:, None]).long()
    differences = []
    for _ in range(batches):
        ids = random_tokens(sources, pad, mask.shape, generator).where(mask.bool(), torch.tensor(pad))
        target = random_tokens(targets, pad, (len(LENGTHS), min(target_len, length)), generator)
        ours = model(ids, mask, target).logits[..., :targets]
        differences.append((ours - original(ids, mask, target)).abs().max().item())
    return max(differences)


def random_tokens(vocabulary: int, pad: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Ids that are not padding: what models make of padding among tokens differs, and nobody asks for it."""
    ids = torch.randint(vocabulary, tuple(shape), generator=generator)
    return ids.where(ids != pad, torch.tensor((pad + 1) % vocabulary))

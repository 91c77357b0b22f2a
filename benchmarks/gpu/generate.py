"""Generation.

Speedup of `generate()`: source length 32, 64 new tokens. `nn.Transformer` has no KV cache: it decodes the whole target
at every step. The static cache is that of this model, compiled to CUDA graphs.
"""

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..generate import DEVICE, DTYPES, SOURCE_LEN, Generate
from ..generate import generate as generate_tokens
from ..models import END, START, VOCAB_SIZE, PlainTorch, Size, marian, ours
from .parts import PAIRED_COLUMNS, Rows, compare, static_cache
from .settings import Settings

COLUMNS = PAIRED_COLUMNS
SEARCHES = {"greedy": 1, "4 beams": 4}


def rows(settings: Settings) -> Rows:
    for (name, size), dtype in product(settings.sizes.items(), settings.generation_dtypes):
        mine, peers = candidates(size, DTYPES[dtype], settings)
        for batch, (search, num_beams), peer in product(settings.generation_batches, SEARCHES.items(), peers):
            if num_beams > 1 and peer != "Marian":
                continue
            if batch > 1 and peer == "the static cache":  # the static cache is compiled again for every batch size
                continue
            label = f"{name} {dtype}, batch {batch}, {search}, over {peer}"
            ids = torch.randint(END + 1, VOCAB_SIZE, (batch, SOURCE_LEN), device=DEVICE)
            ours_once, theirs_once = (
                partial(search_function, ids, num_beams) for search_function in (mine, peers[peer])
            )
            yield label, partial(compare, ours_once, theirs_once, settings.pairs)


def candidates(size: Size, dtype: torch.dtype, settings: Settings) -> tuple[Generate, dict[str, Generate]]:
    torch.manual_seed(0)
    mine, theirs, plain = (make(size).to(DEVICE, dtype).eval() for make in (ours, marian, PlainTorch))
    tokens = settings.new_tokens
    peers: dict[str, Generate] = {
        "Marian": partial(generate_tokens, theirs, tokens=tokens),
        "nn.Transformer": partial(decode_without_cache, plain, tokens=tokens),
        "the static cache": partial(generate_tokens, mine, tokens=tokens, **static_cache(settings)),
    }
    return partial(generate_tokens, mine, tokens=tokens), peers


@torch.inference_mode()
def decode_without_cache(model: Any, ids: Tensor, num_beams: int, tokens: int) -> Tensor:
    """Greedy search with a `PlainTorch`; `num_beams` is 1."""
    assert num_beams == 1
    encoded = model.transformer.encoder(model.embed_with_positions(ids))
    target = torch.full((len(ids), 1), START, device=ids.device)
    for length in range(1, tokens + 1):
        states = model.embed_with_positions(target)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device, dtype=states.dtype)
        states = model.transformer.decoder(states, encoded, tgt_mask=mask, tgt_is_causal=True)
        scores = nn.functional.linear(states[:, -1], model.embed.weight)
        target = torch.cat([target, scores.argmax(dim=-1, keepdim=True)], dim=1)
    return target

"""Attention for long sequences: local (Longformer), strided (Sparse Transformer), linear (Performer), low-rank.

Importing this module registers four attention implementations with transformers:

    from tutorials import long_attention

    model.set_attn_implementation("local_attention")  # or strided_attention, linear_attention, low_rank_attention

They replace self-attention in the encoder and, except for low-rank attention, in the decoder, with padding masks and KV
caches. Cross-attention remains SDPA. `register` adds implementations with other parameters under another name.

Shapes are those of `eager_attention_forward`: `query` `[batch, heads, query_len, d_k]`, `key` `[batch, heads, key_len,
d_k]`, `value` `[batch, heads, key_len, d_v]`. The queries are those of the last `query_len` keys. Each function returns
outputs `[batch, query_len, heads, d_v]` and `None` instead of the weights, which are never computed as one matrix.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

WINDOW, STRIDE, FEATURES, RANK = 64, 64, 128, 64
CHUNK = 128  # tokens per prefix sum of causal linear attention
Attended = tuple[Tensor, None]


def register(name: str, attention: Callable[..., Attended], **options: int) -> None:
    """Register an attention function with fixed options, for `model.set_attn_implementation(name)`."""
    AttentionInterface.register(name, partial(attention, **options))
    AttentionMaskInterface.register(name, padding_mask)


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """The mask that the functions of this module expect: True for tokens, False for padding, `[batch, key_len]`.

    transformers calls it instead of computing `[batch, 1, query_len, key_len]`. It is never `None`: for a mask of two
    dimensions, this model's cross-attention uses SDPA.

    Raises:
        ValueError: the cache is static, or the mask is neither causal nor bidirectional, as for packed sequences.
    """
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        raise ValueError(f"the mask must be causal or bidirectional for this attention, got {mask_function.__name__}.")
    is_causal = mask_function is causal_mask_function
    if isinstance(q_offset, Tensor) or (is_causal and q_offset + q_length != kv_length):
        raise ValueError("cache_implementation must be 'dynamic' for this attention, got a static cache.")
    if attention_mask is None:
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    return attention_mask.bool()


# Local attention


def local_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    window: int = WINDOW,
    **_: Any,
) -> Attended:
    """Softmax attention to the keys at most `window` positions away (Longformer, Beltagy et al. 2020, section 3.1).

    The queries are divided into blocks, and each block attends to its own keys and their neighbors. Time and memory are
    proportional to query_len · window.
    """
    batch, heads, query_len = query.shape[:3]
    check_mask(attention_mask, key)
    size = min(window, query_len)
    blocks = -(-query_len // size)
    ahead = 0 if module.is_causal else window

    first = key.shape[2] - query_len  # the position of the first query
    neighborhood = partial(
        windows, first=first - window, count=blocks, size=window + size + ahead, step=size
    )  # the keys or values that each block attends to
    queries = windows(query, first=0, count=blocks, size=size, step=size)  # [batch · blocks, heads, size, d_k]
    keys, values = neighborhood(key), neighborhood(value)  # [batch · blocks, heads, neighbors, d_k or d_v]
    visible = neighborhood(attention_mask[:, None, :, None])[..., 0][:, :, None]  # [batch · blocks, 1, 1, neighbors]

    positions = torch.arange(size, device=query.device)[:, None]
    distances = torch.arange(keys.shape[2], device=query.device) - window - positions  # [size, neighbors]
    mask = visible & (distances >= -window) & (distances <= ahead)
    outputs = scaled_dot_product_attention(queries, keys, values, mask, dropout, scale=scaling)
    return outputs.transpose(1, 2).reshape(batch, blocks * size, heads, -1)[:, :query_len], None


def windows(states: Tensor, first: int, count: int, size: int, step: int) -> Tensor:
    """`count` overlapping parts of a sequence: `[batch, heads, length, d]` → `[batch · count, heads, size, d]`.

    Part i has the positions from `first + i · step` on. Positions outside of the sequence are 0.
    """
    after = first + (count - 1) * step + size - states.shape[2]
    states = pad(states, (0, 0, -first, after))  # a negative number removes positions
    return states.unfold(2, size, step).permute(0, 2, 1, 4, 3).flatten(0, 1)


def check_mask(mask: Tensor, key: Tensor) -> None:
    expected = [key.shape[0], key.shape[2]]
    if list(mask.shape) != expected:
        raise ValueError(f"attention_mask must have shape {expected}, got {list(mask.shape)}.")


# Strided attention


def strided_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    stride: int = STRIDE,
    **_: Any,
) -> Attended:
    """Local attention in half of the heads, attention to every `stride`-th key in the others (Child et al. 2019).

    Two layers connect any two positions: one head moves by a multiple of the stride, another by the rest. Time and
    memory are proportional to query_len · (stride + key_len / stride), so the best stride is about √key_len.
    """
    check_mask(attention_mask, key)
    half = query.shape[1] // 2
    if half == 0:
        raise ValueError(f"num_heads must be at least 2 for strided attention, got {query.shape[1]}.")
    attend: dict[str, Any] = {"attention_mask": attention_mask, "scaling": scaling, "dropout": dropout}
    near = local_attention(module, query[:, :half], key[:, :half], value[:, :half], window=stride, **attend)[0]
    far = dilated_attention(module, query[:, half:], key[:, half:], value[:, half:], stride=stride, **attend)
    return torch.cat([near, far], dim=2), None


def dilated_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float,
    stride: int,
) -> Tensor:
    """Attention to the keys whose distance is a multiple of `stride`: `[batch, query_len, heads, d_v]`.

    Positions with the same remainder modulo the stride are one sequence of a larger batch.
    """
    batch, heads, query_len, _ = query.shape
    first_row, before = divmod(key.shape[2] - query_len, stride)
    queries = interleaved(query, stride, before)  # [batch · stride, heads, rows, d_k]
    keys, values = interleaved(key, stride), interleaved(value, stride)  # [batch · stride, heads, key rows, d_k or d_v]
    mask = interleaved(attention_mask[:, None, :, None], stride)[..., 0][:, :, None]  # [batch · stride, 1, 1, key rows]
    if module.is_causal:
        rows = torch.arange(first_row, first_row + queries.shape[2], device=query.device)
        mask = mask & (torch.arange(keys.shape[2], device=query.device) <= rows[:, None])
    outputs = scaled_dot_product_attention(queries, keys, values, mask, dropout, scale=scaling)
    outputs = outputs.unflatten(0, (batch, stride)).permute(0, 3, 1, 2, 4)  # [batch, rows, stride, heads, d_v]
    return outputs.reshape(batch, -1, heads, value.shape[-1])[:, before : before + query_len]


def interleaved(states: Tensor, stride: int, before: int = 0) -> Tensor:
    """`[batch, heads, length, d]` → `[batch · stride, heads, rows, d]`, after padding by `before` zeros in front."""
    states = pad(states, (0, 0, before, -(before + states.shape[2]) % stride))
    return states.unflatten(2, (-1, stride)).permute(0, 3, 1, 2, 4).flatten(0, 1)


# Linear attention


def linear_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    features: int = FEATURES,
    **_: Any,
) -> Attended:
    """φ(Q)·(φ(K)ᵀ·V) with positive random features: Performer (Choromanski et al. 2021, section 2).

    The expected value of φ(q)·φ(k) is exp(q·k · scaling), so this approximates softmax attention. Time and memory are
    proportional to (query_len + key_len) · features. There are no attention weights that dropout could act on.
    """
    check_mask(attention_mask, key)
    if dropout:
        raise ValueError(f"attention_dropout must be 0 for linear attention, got {dropout}.")
    directions = random_directions(query.shape[-1], features).to(query.device, query.dtype)
    queries = query_features(query * scaling**0.5, directions)
    keys = key_features(key * scaling**0.5, directions, attention_mask[:, None, :, None])
    values = pad(value, (0, 1), value=1.0)  # the additional column sums the weights
    outputs = causal_products(queries, keys, values) if module.is_causal else queries @ (keys.transpose(2, 3) @ values)
    sums = outputs[..., -1:].clamp(min=torch.finfo(outputs.dtype).tiny)  # 0 if all keys are hidden
    return (outputs[..., :-1] / sums).transpose(1, 2), None


@lru_cache
def random_directions(width: int, count: int) -> Tensor:
    """`count` random vectors of N(0, I) in columns, orthogonal in groups of `width`: `[width, count]` in float64.

    Orthogonal vectors reduce the error (section 2.4). The random seed is fixed, since training adapts to the vectors.
    """
    generator = torch.Generator().manual_seed(0)
    groups = -(-count // width)
    gaussian = torch.randn(groups, width, width, dtype=torch.float64, generator=generator)
    directions = torch.linalg.qr(gaussian).Q.transpose(1, 2).flatten(0, 1)[:count]  # unit vectors in rows
    norms = torch.randn(count, width, dtype=torch.float64, generator=generator).norm(dim=1, keepdim=True)
    return (directions * norms).T


def query_features(states: Tensor, directions: Tensor) -> Tensor:
    """exp(x·w) for each direction w: `[batch, heads, length, d_k]` → `[batch, heads, length, features]`.

    Constant factors of a query cancel, so its features are divided by the largest to prevent an overflow.
    """
    exponents = states @ directions
    return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()


def key_features(states: Tensor, directions: Tensor, visible: Tensor) -> Tensor:
    """exp(x·w − |x|²/2) for each direction w, and 0 for hidden keys. Constant factors of all keys of a head cancel."""
    exponents = states @ directions - states.square().sum(dim=-1, keepdim=True) / 2
    largest = exponents.detach().masked_fill(~visible, torch.finfo(exponents.dtype).min).amax(dim=(2, 3), keepdim=True)
    return (exponents - largest).masked_fill(~visible, -torch.inf).exp()


def causal_products(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Σ_{j ≤ i} (φ(q_i)·φ(k_j))·v_j for each query i: `[batch, heads, query_len, d]`.

    Keys of the same chunk are multiplied directly. Those of earlier chunks are contained in a prefix sum of φ(k)·vᵀ.
    """
    query_len, first = queries.shape[2], keys.shape[2] - queries.shape[2]
    past = keys[:, :, :first].transpose(2, 3) @ values[:, :, :first]  # [batch, heads, features, d]
    queries, keys, values = (chunked(states) for states in (queries, keys[:, :, first:], values[:, :, first:]))
    products = keys.transpose(3, 4) @ values  # [batch, heads, chunks, features, d]
    earlier = past[:, :, None] + products.cumsum(dim=2) - products
    within = (queries @ keys.transpose(3, 4)).tril() @ values
    return (queries @ earlier + within).flatten(2, 3)[:, :, :query_len]


def chunked(states: Tensor) -> Tensor:
    """`[batch, heads, length, d]` → `[batch, heads, chunks, size, d]`, padded by zeros; `size` is at most `CHUNK`."""
    size = min(CHUNK, states.shape[2])
    return pad(states, (0, 0, 0, -states.shape[2] % size)).unflatten(2, (-1, size))


# Low-rank attention


def low_rank_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    rank: int = RANK,
    **_: Any,
) -> Attended:
    """Softmax attention to `rank` mixtures of the keys and values, E·K and E·V (Linformer, Wang et al. 2020).

    The paper learns the matrix E, `[rank, key_len]`. Here, it divides the tokens of each row into `rank` segments of
    equal length and computes their means: the paper's variant without weights (section 4, "general projections"). A
    segment counts as often as it has tokens, so means of equal keys change nothing. Time and memory are proportional to
    query_len · rank. Causal attention remains softmax attention: a mean would contain later tokens.
    """
    check_mask(attention_mask, key)
    if module.is_causal:
        positions = torch.arange(key.shape[2], device=key.device)
        mask = attention_mask[:, None, None] & (positions <= positions[-query.shape[2] :, None])
    else:
        segments = segments_of(attention_mask, rank).to(key.dtype)
        counts = segments.sum(dim=-1, keepdim=True)  # [batch, 1, rank, 1]
        means = segments / counts.clamp(min=1)
        key, value = means @ key, means @ value
        mask = counts.log().clamp(min=torch.finfo(key.dtype).min).transpose(2, 3)  # added to the scores
    outputs = scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling)
    return outputs.transpose(1, 2), None


def segments_of(mask: Tensor, rank: int) -> Tensor:
    """Which tokens are in which segment: `[batch, key_len]` → `[batch, 1, rank, key_len]`, 0 or 1."""
    positions = mask.cumsum(dim=1) - 1  # among the tokens of the row, so that padding changes nothing
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=rank)
    numbers = (positions * rank).div(lengths, rounding_mode="floor")
    segments = (numbers[:, None] == torch.arange(rank, device=mask.device)[:, None]) & mask[:, None]
    return segments[:, None]


register("local_attention", local_attention)
register("strided_attention", strided_attention)
register("linear_attention", linear_attention)
register("low_rank_attention", low_rank_attention)

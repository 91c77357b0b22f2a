"""Embeddings and output layer: one vocabulary or two, of one size here whatever they had in the original."""

import torch
from torch import Tensor

from .transfer import Transfer

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
# The logits of ids that the original's target vocabulary has not. Their probability is exactly 0, and unlike -inf the
# number survives half precision, products with 0 and the mean that label smoothing takes.
NEVER = -1e4
# What an additional id that stands for the unknown token scores less than that token: too little to change a
# probability in float32, and as the label of a target it costs 30 nats more, not 10000.
UNLIKELY = -30.0


def move_vocabularies(
    transfer: Transfer,
    source: str,
    target: str | None,
    output: str | None,
    output_bias: str | None = None,
    unknown: tuple[int, int] = (0, 0),
    unk_token_id: int = 0,
) -> None:
    """Take over embeddings and output layer, and derive `vocab_size` and what is shared and tied.

    Where source and target have vocabularies of two sizes, the smaller is filled up: with rows of zeros, and in the
    output layer with a bias of -10000.

    Args:
        transfer: the weights that these names name.
        source: the encoder's embedding matrix, `[source_vocabulary, d_model]`.
        target: the decoder's, `[target_vocabulary, d_model]`; `None` where it is the encoder's.
        output: the output layer's matrix, of the same shape; `None` where it is the decoder's embedding.
        output_bias: its bias, `[target_vocabulary]`, if it has one.
        unknown: how many ids behind the source's and the target's vocabulary stand for the unknown token.
        unk_token_id: the unknown token.

    Raises:
        ValueError: a weight is missing or of another shape.
    """
    source_table = transfer.take(source, dims=2)
    target_table = source_table if target is None else transfer.take(target, dims=2)
    tokens = len(target_table)
    size = max(len(source_table) + unknown[0], tokens + unknown[1])
    put_table(transfer, source, SHARED if target is None else SOURCE, source_table, size, unknown[0], unk_token_id)
    if target is not None:
        put_table(transfer, target, TARGET, target_table, size, unknown[1], unk_token_id)
    if output is not None:
        table = transfer.take(output, dims=2)
        check_rows(transfer, output, table, tokens)
        put_table(transfer, output, "lm_head.weight", table, size, unknown[1], unk_token_id)
    put_bias(transfer, output_bias, target_table, size, unknown[1], unk_token_id)
    transfer.derive(f"the rows of {source}" + (f" and {target}" if target else ""), vocab_size=size)
    transfer.derive(
        "the embeddings that there are", share_embeddings=target is None, tie_word_embeddings=output is None
    )
    tell_sizes(transfer, len(source_table), tokens, unknown)


def put_table(
    transfer: Transfer, name: str, ours: str, table: Tensor, size: int, copies: int, unk_token_id: int
) -> None:
    """A table with `copies` of the unknown token's row behind it, then zeros, up to `size` rows."""
    if copies:
        table = torch.cat([table, table[unk_token_id].expand(copies, -1)])
    if len(table) == size:
        return transfer.put(name, ours, table, "with copies of <unk>" if copies else "as it is")
    return transfer.put(name, ours, torch.cat([table, table.new_zeros(size - len(table), table.shape[1])]), "filled up")


def put_bias(transfer: Transfer, name: str | None, table: Tensor, size: int, copies: int, unk_token_id: int) -> None:
    """The output layer's bias, where the original has one or where not every id is a token of the target."""
    tokens = len(table)
    transfer.derive("the output layer", lm_head_bias=name is not None or tokens < size)
    bias = table.new_zeros(tokens)
    if name is not None:
        bias = transfer.take(name).flatten()  # Marian's is [1, vocabulary]
        check_rows(transfer, name, bias, tokens)
    likely = bias[unk_token_id] + UNLIKELY
    bias = torch.cat([bias, likely.expand(copies), bias.new_full((size - tokens - copies,), NEVER)])
    if name is not None:
        transfer.put(name, "lm_head.bias", bias, "as it is" if tokens == size else "filled up")
    elif tokens < size:
        transfer.fill("lm_head.bias", bias, "so that only tokens of the target are predicted")


def check_rows(transfer: Transfer, name: str, weight: Tensor, tokens: int) -> None:
    if len(weight) != tokens:
        raise ValueError(
            f"{name} of {transfer.origin} must have as many rows as the decoder's vocabulary has tokens, {tokens}, "
            f"got {len(weight)}."
        )


def tell_sizes(transfer: Transfer, source: int, target: int, unknown: tuple[int, int]) -> None:
    notes = transfer.report.notes
    if source != target:
        never = f", and an id from {target} on is predicted with probability 0" if target < source else ""
        notes.append(
            f"The vocabularies have {source} source and {target} target tokens; the smaller is filled up with rows of "
            f"zeros{never}."
        )
    if any(unknown):
        notes.append(
            f"{unknown[0]} source and {unknown[1]} target ids behind the vocabulary are pieces that the original reads "
            "as <unk>: they have its embedding and are never preferred to it."
        )

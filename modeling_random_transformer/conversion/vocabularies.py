"""Embeddings and output layer: one vocabulary or two, of one size here whatever they had in the original."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .state_dict_mapper import Transfer

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
NO_ROW = -1  # of an id that the original has not
# The logits of ids that the original's target vocabulary has not. Their probability is exactly 0, and unlike -inf the
# number survives half precision, products with 0 and the mean that label smoothing takes.
NEVER = -1e4
# What a further id that stands for the unknown token scores less than that token: too little to change a probability
# in float32, and as the label of a target it costs 30 nats more, not 10000.
UNLIKELY = -30.0

Rows = tuple[Sequence[int], Sequence[int]]


def move_vocabularies(
    transfer: Transfer,
    source: str,
    target: str | None,
    output: str | None,
    output_bias: str | None = None,
    rows: Rows | None = None,
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
        rows: for each id here its row in the source's matrix and in the target's, the unknown token's where a side has
            no such token; ids stay as they are when `None`.
        unk_token_id: the unknown token, which stays as it is.

    Raises:
        ValueError: a weight is missing or of another shape.
    """
    source_table = transfer.take(source, dims=2)
    target_table = source_table if target is None else transfer.take(target, dims=2)
    source_rows, target_rows = rows or own_rows(transfer, len(source_table), len(target_table))
    put_rows(transfer, source, SHARED if target is None else SOURCE, source_table, source_rows)
    if target is not None:
        put_rows(transfer, target, TARGET, target_table, target_rows)
    if output is not None:
        table = transfer.take(output, dims=2)
        check_rows(transfer, output, table, len(target_table))
        put_rows(transfer, output, "lm_head.weight", table, target_rows)
    put_bias(transfer, output_bias, target_table, target_rows, unk_token_id)
    origin = "the tokenizer's tokens" if rows else f"the rows of {source}" + (f" and {target}" if target else "")
    transfer.derive(origin, vocab_size=len(source_rows))
    transfer.derive(
        "the embeddings that there are", share_embeddings=target is None, tie_word_embeddings=output is None
    )


def own_rows(transfer: Transfer, source: int, target: int) -> Rows:
    """Each id its own row in tables of so many rows, and none from there on."""
    if source != target:
        never = f", and an id from {target} on is predicted with probability 0" if target < source else ""
        transfer.report.notes.append(
            f"The vocabularies have {source} source and {target} target tokens; the smaller is filled up with rows of "
            f"zeros{never}."
        )
    size = max(source, target)
    first, second = ([*range(rows), *[NO_ROW] * (size - rows)] for rows in (source, target))
    return first, second


def put_rows(transfer: Transfer, name: str, ours: str, table: Tensor, rows: Sequence[int]) -> None:
    """A table's rows in this order; zeros for ids that have none."""
    if unchanged(rows, table):
        return transfer.put(name, ours, table, "as it is")
    last_is_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])  # which NO_ROW finds
    return transfer.put(name, ours, last_is_zeros[list(rows)], "a row for each id")


def unchanged(rows: Sequence[int], table: Tensor) -> bool:
    return list(rows) == list(range(len(table)))


def put_bias(transfer: Transfer, name: str | None, table: Tensor, rows: Sequence[int], unk_token_id: int) -> None:
    """The output layer's bias, where the original has one or where not every id is a token of the target."""
    bias = table.new_zeros(len(table))
    if name is not None:
        bias = transfer.take(name).flatten()  # Marian's is [1, vocabulary]
        check_rows(transfer, name, bias, len(table))
    chosen, ids = torch.tensor(rows), torch.arange(len(rows))
    bias = torch.cat([bias, bias.new_full((1,), NEVER)])[chosen]
    bias[(chosen == unk_token_id) & (ids != unk_token_id)] += UNLIKELY
    needed = name is not None or bool(bias.any())
    transfer.derive("the output layer", lm_head_bias=needed)
    if name is not None:
        transfer.put(name, "lm_head.bias", bias, "as it is" if unchanged(rows, table) else "a row for each id")
    elif needed:
        transfer.fill("lm_head.bias", bias, "so that only tokens of the target are predicted")


def check_rows(transfer: Transfer, name: str, weight: Tensor, tokens: int) -> None:
    if len(weight) != tokens:
        raise ValueError(
            f"{name} of {transfer.origin} must have as many rows as the decoder's vocabulary has tokens, {tokens}, "
            f"got {len(weight)}."
        )

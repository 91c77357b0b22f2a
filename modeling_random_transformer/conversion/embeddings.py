"""Conversion of token embeddings and output layer. Vocabularies of different sizes are padded to one size."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .state_dict_mapper import StateDictMapper

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
NO_ROW = -1  # marks an id that the original does not have
# The bias of ids outside the original's target vocabulary. Their probability is exactly 0. Unlike -inf, the value
# causes no NaN in half precision, in products with 0 and in the mean of label smoothing.
NEVER = -1e4
# The bias of additional ids that represent the unknown token, relative to that token. It is too low to change a
# probability in float32, and the loss of such a label increases by 30 nats instead of 10000.
UNLIKELY = -30.0

Rows = tuple[Sequence[int], Sequence[int]]


def map_embeddings(
    mapper: StateDictMapper,
    source: str,
    target: str | None,
    output: str | None,
    output_bias: str | None = None,
    rows: Rows | None = None,
    unk_token_id: int = 0,
) -> None:
    """Map the embeddings and the output layer. Derive `vocab_size` and the fields for shared and tied weights.

    If source and target have vocabularies of different sizes, the smaller one is padded with zero rows, and with a
    bias of -10000 in the output layer.

    Args:
        mapper: contains the weights with these names.
        source: the encoder's embedding matrix, `[source_vocabulary, d_model]`.
        target: the decoder's embedding matrix, `[target_vocabulary, d_model]`; `None` if it is shared.
        output: the output layer's weight, of the same shape; `None` if it is tied to the decoder's embedding.
        output_bias: its bias, `[target_vocabulary]`, if there is one.
        rows: for each id of this model, the row in the source's matrix and in the target's; the row of the unknown
            token if a side does not have the token. When `None`, ids are unchanged.
        unk_token_id: the id of the unknown token, which is the same in the original.

    Raises:
        ValueError: a weight is missing or has the wrong shape.
    """
    source_table = mapper.pop(source, dims=2)
    target_table = source_table if target is None else mapper.pop(target, dims=2)
    source_rows, target_rows = rows or identity_rows(mapper, len(source_table), len(target_table))
    set_rows(mapper, source, SHARED if target is None else SOURCE, source_table, source_rows)
    if target is not None:
        set_rows(mapper, target, TARGET, target_table, target_rows)
    if output is not None:
        table = mapper.pop(output, dims=2)
        check_row_count(mapper, output, table, len(target_table))
        set_rows(mapper, output, "lm_head.weight", table, target_rows)
    set_output_bias(mapper, output_bias, target_table, target_rows, unk_token_id)
    origin = "the tokenizer's vocabulary" if rows else f"the rows of {source}" + (f" and {target}" if target else "")
    mapper.derive_config(origin, vocab_size=len(source_rows))
    mapper.derive_config("the embedding matrices", share_embeddings=target is None, tie_word_embeddings=output is None)


def identity_rows(mapper: StateDictMapper, source: int, target: int) -> Rows:
    """Map each id to the row with this index in tables of these sizes; ids beyond a table have no row."""
    if source != target:
        never = f", and ids of at least {target} have a probability of 0" if target < source else ""
        mapper.report.notes.append(
            f"The vocabularies have {source} source and {target} target tokens. The smaller one is padded with rows of "
            f"zeros{never}."
        )
    size = max(source, target)
    first, second = ([*range(rows), *[NO_ROW] * (size - rows)] for rows in (source, target))
    return first, second


def set_rows(mapper: StateDictMapper, name: str, parameter: str, table: Tensor, rows: Sequence[int]) -> None:
    """Set a parameter to these rows of a table; ids without a row get zeros."""
    if is_identity(rows, table):
        return mapper.set(parameter, table, name)
    with_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])  # NO_ROW is the index of the last row
    return mapper.set(parameter, with_zeros[list(rows)], name, "rows selected by id")


def is_identity(rows: Sequence[int], table: Tensor) -> bool:
    return list(rows) == list(range(len(table)))


def set_output_bias(
    mapper: StateDictMapper, name: str | None, table: Tensor, rows: Sequence[int], unk_token_id: int
) -> None:
    """Set the output bias if the original has one, or if some ids are not tokens of the target vocabulary."""
    bias = table.new_zeros(len(table))
    if name is not None:
        bias = mapper.pop(name).flatten()  # Marian's is [1, vocabulary]
        check_row_count(mapper, name, bias, len(table))
    selected, ids = torch.tensor(rows), torch.arange(len(rows))
    bias = torch.cat([bias, bias.new_full((1,), NEVER)])[selected]
    bias[(selected == unk_token_id) & (ids != unk_token_id)] += UNLIKELY
    has_bias = name is not None or bool(bias.any())
    mapper.derive_config("the output layer", lm_head_bias=has_bias)
    if name is not None:
        mapper.set("lm_head.bias", bias, name, "copied" if is_identity(rows, table) else "rows selected by id")
    elif has_bias:
        mapper.default("lm_head.bias", bias, "suppresses ids that are not tokens of the target vocabulary")


def check_row_count(mapper: StateDictMapper, name: str, weight: Tensor, tokens: int) -> None:
    if len(weight) != tokens:
        raise ValueError(
            f"{name} of {mapper.origin} must have as many rows as the decoder's vocabulary has tokens, {tokens}, "
            f"got {len(weight)}."
        )

"""Conversion of embeddings, output layer and positions. Vocabularies of different sizes are padded to one size."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...base.vocabulary import fits_embedding
from ...modeling_random_transformer import sinusoids
from .weights import STACKS, StateDictMapper

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
NO_ROW = -1  # marks an id that the original does not have
# The bias of ids outside the original's target vocabulary. Their probability is exactly 0. Unlike -inf, the value
# causes no NaN in half precision, in products with 0 and in the mean of label smoothing.
NEVER = -1e4
# The bias of additional ids that represent the unknown token, relative to that token. It is too low to change a
# probability in float32, and the loss of such a label increases by 30 nats instead of 10000.
UNLIKELY = -30.0
TOLERANCE = 1e-6  # between sinusoids of one formula, evaluated in different orders

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
    """Map the embeddings and the output layer. Derive `vocab_size`.

    Equal weights become one parameter. If source and target have vocabularies of different sizes, the smaller one is
    padded with zero rows, and with a bias of -10000 in the output layer.

    Args:
        mapper: contains the weights with these names.
        source: the encoder's embedding matrix, `[source_vocabulary, d_model]`.
        target: the decoder's embedding matrix, `[target_vocabulary, d_model]`; `None` if it is not stored, as it is
            the encoder's.
        output: the output layer's weight, of the same shape; `None` if it is not stored, as it is the decoder's
            embedding.
        output_bias: its bias, `[target_vocabulary]`, if there is one.
        rows: for each id of this model, the row in the source's matrix and in the target's; the row of the unknown
            token if a side does not have the token. When `None`, ids are unchanged.
        unk_token_id: the id of the unknown token in this model.

    Raises:
        ValueError: a weight is missing or has the wrong shape, or `rows` do not match it.
    """
    source_table = mapper.pop(source, dims=2)
    target_table = source_table if target is None else mapper.pop(target, dims=2)
    output_table = target_table if output is None else mapper.pop(output, dims=2)
    tokens = len(target_table)
    if rows is None and len(source_table) != tokens:
        sizes = f"The vocabularies have {len(source_table)} source and {tokens} target tokens."
        padding = "The smaller one is padded with zeros. Ids outside the target vocabulary have a probability of 0."
        mapper.report.notes.append(f"{sizes} {padding}")
    source_rows, target_rows = rows or pad_rows(len(source_table), tokens)
    check_row_count(mapper, source, source_table, max(source_rows) + 1)
    check_row_count(mapper, target or source, target_table, max(target_rows) + 1)
    check_row_count(mapper, output or target or source, output_table, tokens)
    shared = equal(source_table, target_table) and list(source_rows) == list(target_rows)
    tied = equal(target_table, output_table)
    mapper.set(SHARED if shared else SOURCE, select_rows(source_table, source_rows), source)
    for name, parameter, table, is_equal in (
        (target, TARGET, target_table, shared),
        (output, "lm_head.weight", output_table, tied),
    ):
        if not is_equal:
            mapper.set(parameter, select_rows(table, target_rows), name or source)
        elif name is not None:
            mapper.report.unused[name] = "equal to the embedding"
    set_output_bias(mapper, output_bias, target_table, target_rows, unk_token_id)
    origin = "the tokenizer's vocabulary" if rows else f"the rows of {source}" + (f" and {target}" if target else "")
    mapper.derive_config(origin, vocab_size=len(source_rows))
    mapper.derive_config("the embedding matrices", share_embeddings=shared, tie_word_embeddings=tied)


def equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def pad_rows(source: int, target: int, more: int = 0) -> Rows:
    """Map each id to the row with this index in tables of these sizes. Ids beyond a table, and `more`, have none."""
    size = max(source, target) + more
    first, second = ([*range(rows), *[NO_ROW] * (size - rows)] for rows in (source, target))
    return first, second


def select_rows(table: Tensor, rows: Sequence[int], missing: float = 0.0) -> Tensor:
    """These rows of a table; `NO_ROW`, which is the index of the last row, has the value `missing`."""
    return torch.cat([table, table.new_full((1, *table.shape[1:]), missing)])[list(rows)]


def set_output_bias(
    mapper: StateDictMapper, name: str | None, table: Tensor, rows: Sequence[int], unk_token_id: int
) -> None:
    """Set the output bias if the original has one, or if some ids are not tokens of the target vocabulary."""
    bias = table.new_zeros(len(table))
    if name is not None:
        bias = mapper.pop(name).flatten()  # MarianMT's is [1, vocabulary]
        check_row_count(mapper, name, bias, len(table))
    bias = select_rows(bias, rows, NEVER)
    bias[[row == rows[unk_token_id] and i != unk_token_id for i, row in enumerate(rows)]] += UNLIKELY
    if name is not None:
        mapper.set("lm_head.bias", bias, name)
    elif bias.any():
        mapper.default("lm_head.bias", bias, "suppresses ids that are not tokens of the target vocabulary")
    mapper.derive_config("the output layer", lm_head_bias="lm_head.bias" in mapper.state_dict)


def check_row_count(mapper: StateDictMapper, name: str, weight: Tensor, tokens: int) -> None:
    if len(weight) != tokens:
        raise ValueError(f"{name} of {mapper.origin} must have as many rows as tokens, {tokens}, got {len(weight)}.")


def check_ids(path: Path, ids: Collection[int], rows: int) -> None:
    """Raise a `ValueError` unless a vocabulary with these ids has a token for each row of an embedding."""
    if not fits_embedding(len(ids), rows):
        raise ValueError(f"{path} must have a token for each of {rows} rows of the embedding, got {len(ids)}.")
    numbers = [i for i in ids if isinstance(i, int)]
    if len(numbers) < len(ids) or min(numbers) < 0 or max(numbers) >= rows:
        raise ValueError(f"{path} must have ids from 0 to {rows - 1}, got {max(numbers, default=None)}.")


def map_position_tables(mapper: StateDictMapper, encoder: str, decoder: str) -> None:
    """Map position tables, `[length, d_model]`, to computed sinusoids if equal, otherwise to learned positions.

    Both names may refer to one table that the stacks share.

    Raises:
        ValueError: a table is missing.
    """
    tables = [mapper.peek(name, dims=2) for name in (encoder, decoder)]
    for layout in ("interleaved", "concatenated"):
        if all(are_sinusoids(table, layout) for table in tables):
            origin = f"the tables {encoder} and {decoder}, recomputed"
            mapper.derive_config(origin, position_embedding="sinusoidal", sinusoid_layout=layout)
            mapper.derive_config("their length", max_position_embeddings=max(map(len, tables)))
            mapper.ignore([encoder, decoder], "sinusoids, which are computed")
            return
    learn_positions(mapper, (encoder, decoder))


def learn_positions(
    mapper: StateDictMapper,
    names: tuple[str | None, str | None],
    length: int = 0,
    offset: int = 0,
    origin: str = "the original",
) -> None:
    """Map positions to tables of learned positions. `None` stands for a table of the original's sinusoids.

    Args:
        mapper: contains the tables with these names, `[offset + length, d_model]`. A name may occur twice.
        names: the tables of the encoder and the decoder.
        length: number of positions if there is no table. The shorter of two tables determines the number for both.
        offset: the first position; the rows before are never used.
        origin: the original's name.

    Raises:
        ValueError: a table is missing, or there are fewer than two frequencies.
    """
    tables = {name: mapper.pop(name, dims=2) for name in dict.fromkeys(names) if name is not None}
    rows = min(map(len, tables.values()), default=length + offset)
    for stack, name in zip(STACKS, names, strict=True):
        if name is not None:
            mapper.set(f"model.{stack}.embed_positions.weight", tables[name][:rows], name)
        else:
            table = tensor2tensor_sinusoids(rows, mapper.config_fields["d_model"])
            mapper.default(f"model.{stack}.embed_positions.weight", table, f"{origin}'s sinusoids")
    mapper.derive_config("the positions of both stacks", position_embedding="learned", position_offset=offset)
    mapper.derive_config("their number", max_position_embeddings=rows - offset)
    if None in names:
        difference = "differ from this model's (their frequencies are spaced by d_model / 2 - 1)"
        learned = "Their values became a table of learned positions, which training updates."
        mapper.report.notes.append(f"{origin}'s sinusoids {difference}. {learned}")
    mapper.report.notes.append(f"Texts can have at most {rows - offset} tokens, the number of positions.")


def are_sinusoids(table: Tensor, layout: str) -> bool:
    """Whether a position table, `[length, d_model]`, contains this model's sinusoids."""
    length, d_model = table.shape
    if d_model % 2:
        return False
    expected = sinusoids(torch.arange(length), d_model, layout).to(table.dtype)
    return torch.allclose(expected.float(), table.float().cpu(), rtol=0, atol=TOLERANCE)


def tensor2tensor_sinusoids(rows: int, d_model: int) -> Tensor:
    """sin(p · 10000^(-i / (d_model / 2 - 1))), then the cosines, `[rows, d_model]`, in float32 as in the originals.

    tensor2tensor, fairseq and Marian space the frequencies by `d_model / 2 - 1`, the paper by `d_model / 2`.

    Args:
        rows: number of positions, from 0.
        d_model: width.

    Raises:
        ValueError: there are fewer than two frequencies.
    """
    frequencies = d_model // 2
    if frequencies < 2:
        raise ValueError(f"d_model must be at least 4 for sinusoids, got {d_model}.")
    step = -math.log(10000) / (frequencies - 1)
    angles = torch.arange(rows, dtype=torch.float)[:, None] * torch.exp(torch.arange(frequencies).float() * step)
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(rows, d_model % 2)], dim=1)

"""Conversion of embeddings, output layer and positions. Vocabularies of different sizes are padded to one size."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...base.errors import format_value
from ...configuration_random_transformer import is_int
from ...inference.loading import fits_embedding
from ...modeling_random_transformer import sinusoids
from .joined_tokenizer import JoinedTokenizer
from .weights import STACKS, StateDictMapper

SHARED_WEIGHT = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
NO_ROW = -1  # marks an id that the original does not have
# The bias of ids outside the original's target vocabulary. Their probability is exactly 0. Unlike -inf, the value
# causes no NaN in half precision, in products with 0 and in the mean of label smoothing.
NEVER = -1e4
# The bias of additional ids that represent the unknown token, relative to that token. It is too low to change a
# probability in float32, and the loss of such a label increases by 30 nats instead of 10000.
UNLIKELY = -30.0
SINUSOID_ROWS = 1024  # rows of sinusoids that this model does not compute; marian-decoder reads at most 1000 tokens
TOLERANCE = 1e-6  # between sinusoids of one formula, evaluated in different orders


def map_embeddings(
    mapper: StateDictMapper,
    source: str,
    target: str | None,
    output: str | None,
    output_bias: str | None = None,
    *,
    joined: JoinedTokenizer | None = None,
    added: int = 0,
) -> None:
    """Map the embeddings and the output layer. Derive `vocab_size`.

    Equal weights become one parameter. If source and target have vocabularies of different sizes, the smaller one is
    padded with zero rows, and with a bias of -10000 in the output layer.

    Args:
        mapper: contains the weights with these names.
        source: the encoder's embedding matrix, `[source_vocabulary, d_model]`.
        target: the decoder's embedding matrix, `[target_vocabulary, d_model]`; `None` if it is not stored, since it
            is the encoder's.
        output: the output layer's weight, of the same shape; `None` if it is not stored, since it is the
            decoder's embedding.
        output_bias: its bias, `[target_vocabulary]`, if there is one.
        joined: the vocabulary of this model, whose tokenizer is saved with it. When `None`, ids are unchanged.
        added: number of ids without a row, at the end of the vocabulary.

    Raises:
        ValueError: a weight is missing or has the wrong shape, or the vocabulary does not match it.
    """
    source_table = mapper.pop(source, dims=2)
    target_table = source_table if target is None else mapper.pop(target, dims=2)
    output_table = target_table if output is None else mapper.pop(output, dims=2)
    if joined is not None:
        source_rows = joined.source_ids
        target_rows = joined.target_ids
        mapper.report.save_tokenizer = joined.save
    else:
        source_rows, target_rows = rows_of_equal_size(mapper, source_table, target_table, added)
    check_row_count(mapper, source, source_table, max(source_rows) + 1)
    check_row_count(mapper, target or source, target_table, max(target_rows) + 1)
    check_row_count(mapper, output or target or source, output_table, len(target_table))
    shared = is_equal(source_table, target_table) and source_rows == target_rows
    tied = is_equal(target_table, output_table)
    mapper.set(SHARED_WEIGHT if shared else SOURCE, select_rows(source_table, source_rows), source)
    if not shared:
        mapper.set(TARGET, select_rows(target_table, target_rows), target or source)
    if not tied:
        mapper.set("lm_head.weight", select_rows(output_table, target_rows), str(output))
    for name, is_unused in ((target, shared), (output, tied)):
        if name is not None and is_unused:
            mapper.report.unused[name] = "equal to the embedding"
    set_output_bias(mapper, output_bias, target_table, target_rows, joined)
    mapper.derive_config(
        "the embedding matrices", vocab_size=len(source_rows), share_embeddings=shared, tie_word_embeddings=tied
    )


def rows_of_equal_size(
    mapper: StateDictMapper, source_table: Tensor, target_table: Tensor, added: int
) -> tuple[list[int], list[int]]:
    """The rows of unchanged ids in both tables, of which the smaller one is padded; see `map_embeddings`."""
    size = max(len(source_table), len(target_table)) + added
    source_rows = pad_rows(source_table, size)
    target_rows = pad_rows(target_table, size)
    if source_rows != target_rows:
        mapper.report.notes.append(
            "The smaller vocabulary is padded. Its additional embeddings are zero, and ids outside the target "
            "vocabulary have a probability of 0."
        )
    return source_rows, target_rows


def is_equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def pad_rows(table: Tensor, size: int) -> list[int]:
    """The row of each id in a table: its index, or `NO_ROW` for the ids beyond the table."""
    rows = len(table)
    return [*range(rows), *[NO_ROW] * (size - rows)]


def select_rows(table: Tensor, rows: list[int], missing: float = 0.0) -> Tensor:
    """These rows of a table; `NO_ROW`, which is the index of the last row, has the value `missing`."""
    shape = (1, *table.shape[1:])
    with_missing = torch.cat([table, table.new_full(shape, missing)])
    return with_missing[rows]


def set_output_bias(
    mapper: StateDictMapper, name: str | None, table: Tensor, rows: list[int], joined: JoinedTokenizer | None
) -> None:
    """Set the output bias if the original has one, or if some ids are not tokens of the target vocabulary."""
    if name is None:
        bias = table.new_zeros(len(table))
    else:
        bias = mapper.pop(name).flatten()  # MarianMT's is [1, vocabulary]
        check_row_count(mapper, name, bias, len(table))
    bias = select_rows(bias, rows, NEVER)
    if joined is not None:
        unknown = joined.tokenizer.unk_token_id
        for i, row in enumerate(rows):
            if row == rows[unknown] and i != unknown:
                bias[i] += UNLIKELY
    if name is not None:
        mapper.set("lm_head.bias", bias, name)
    elif bias.any():
        mapper.default("lm_head.bias", bias, "suppresses ids that are not tokens of the target vocabulary")
    mapper.derive_config("the output layer", lm_head_bias="lm_head.bias" in mapper.state_dict)


def check_row_count(mapper: StateDictMapper, name: str, weight: Tensor, tokens: int) -> None:
    if len(weight) != tokens:
        raise ValueError(f"{name} of {mapper.origin} must have as many rows as tokens, {tokens}, got {len(weight)}.")


def check_ids(path: Path, ids: Collection[Any], rows: int) -> None:
    """Raise a `ValueError` unless a vocabulary with these ids has a token for each row of an embedding."""
    if not fits_embedding(len(ids), rows):
        raise ValueError(f"{path} must have a token for each of {rows} rows of the embedding, got {len(ids)}.")
    for token_id in ids:
        if not (is_int(token_id) and 0 <= token_id < rows):
            raise ValueError(f"{path} must have ids from 0 to {rows - 1}, got {format_value(token_id)}.")


def map_position_tables(mapper: StateDictMapper, encoder: str, decoder: str) -> None:
    """Map position tables, `[length, d_model]`, to computed sinusoids if equal, otherwise to learned positions.

    Both names may refer to one table that the stacks share.

    Raises:
        ValueError: a table is missing.
    """
    tables = [mapper.peek(name, dims=2) for name in (encoder, decoder)]
    for layout in ("interleaved", "concatenated"):
        if all(are_sinusoids(table, layout) for table in tables):
            mapper.derive_config(
                f"the tables {encoder} and {decoder}, recomputed",
                position_embedding="sinusoidal",
                sinusoid_layout=layout,
                max_position_embeddings=max(map(len, tables)),
            )
            mapper.ignore([encoder, decoder], "sinusoids, which are computed")
            return
    learn_positions(mapper, (encoder, decoder))


def learn_positions(
    mapper: StateDictMapper,
    names: tuple[str | None, str | None],
    length: int = SINUSOID_ROWS,
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
        parameter = f"model.{stack}.embed_positions.weight"
        if name is not None:
            mapper.set(parameter, tables[name][:rows], name)
        else:
            table = tensor2tensor_sinusoids(rows, mapper.config_fields["d_model"])
            mapper.default(parameter, table, f"{origin}'s sinusoids")
    mapper.derive_config(
        "the positions of both stacks",
        position_embedding="learned",
        position_offset=offset,
        max_position_embeddings=rows - offset,
    )
    if None in names:
        mapper.report.notes.append(
            f"{origin}'s sinusoids differ from this model's (their frequencies are spaced by d_model / 2 - 1). "
            "Their values became a table of learned positions, which training updates."
        )
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
    exponents = torch.arange(frequencies, dtype=torch.float) * step
    angles = torch.outer(torch.arange(rows, dtype=torch.float), exponents.exp())
    sines_and_cosines = torch.cat([angles.sin(), angles.cos()], dim=1)
    return nn.functional.pad(sines_and_cosines, (0, d_model % 2))

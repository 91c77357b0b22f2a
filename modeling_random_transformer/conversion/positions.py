"""Conversion of position tables to computed sinusoids or learned positions."""

import math

import torch
from torch import Tensor

from ..modeling_random_transformer import sinusoids
from .state_dict_mapper import StateDictMapper

LAYOUTS = ("interleaved", "concatenated")
TOLERANCE = 1e-6  # between sinusoids of one formula, evaluated in different orders


def map_position_tables(mapper: StateDictMapper, encoder: str, decoder: str) -> None:
    """Map position tables, `[length, d_model]`, to computed sinusoids if equal, otherwise to learned positions.

    Both names may refer to one table that the stacks share.

    Raises:
        ValueError: a table is missing.
    """
    tables = [mapper.peek(name, dims=2) for name in (encoder, decoder)]
    mapper.remaining = {name: weight for name, weight in mapper.remaining.items() if name not in (encoder, decoder)}
    for layout in LAYOUTS:
        if all(are_sinusoids(table, layout) for table in tables):
            origin = f"the tables {encoder} and {decoder}, recomputed"
            mapper.derive_config(origin, position_embedding="sinusoidal", sinusoid_layout=layout)
            mapper.derive_config("their length", max_position_embeddings=max(map(len, tables)))
            mapper.report.unused.update(dict.fromkeys((encoder, decoder), "sinusoids, which are computed"))
            return
    length = min(map(len, tables))
    mapper.derive_config(
        f"the tables {encoder} and {decoder}, which differ from this model's sinusoids", position_embedding="learned"
    )
    mapper.derive_config("the length of the shorter table", max_position_embeddings=length)
    for name, table, stack in zip((encoder, decoder), tables, ("encoder", "decoder"), strict=True):
        mapper.set(f"model.{stack}.embed_positions.weight", table[:length], name)


def are_sinusoids(table: Tensor, layout: str) -> bool:
    """Whether a position table, `[length, d_model]`, contains this model's sinusoids."""
    length, d_model = table.shape
    if d_model % 2:
        return False
    expected = sinusoids(torch.arange(length), d_model, layout).to(table.dtype)
    return torch.allclose(expected.float(), table.float().cpu(), rtol=0, atol=TOLERANCE)


def tensor2tensor_sinusoids(rows: int, d_model: int, option: str) -> Tensor:
    """sin(p · 10000^(-i / (d_model / 2 - 1))), then the cosines, `[rows, d_model]`, in float32 as in the originals.

    tensor2tensor, fairseq and Marian space the frequencies by `d_model / 2 - 1`, the paper by `d_model / 2`.

    Args:
        rows: number of positions, from 0.
        d_model: width.
        option: the original's name of the width, for the error.

    Raises:
        ValueError: there are fewer than two frequencies.
    """
    frequencies = d_model // 2
    if frequencies < 2:
        raise ValueError(f"{option} must be at least 4 for sinusoids, got {d_model}.")
    step = -math.log(10000) / (frequencies - 1)
    angles = torch.arange(rows, dtype=torch.float)[:, None] * torch.exp(torch.arange(frequencies).float() * step)
    odd = torch.zeros(rows, d_model % 2)
    return torch.cat([angles.sin(), angles.cos(), odd], dim=1)

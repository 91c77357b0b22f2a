"""Conversion of position tables to computed sinusoids or learned positions."""

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

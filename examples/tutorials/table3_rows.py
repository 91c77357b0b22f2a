"""The rows of the paper's Table 3, and their configurations at a smaller scale."""

from dataclasses import dataclass

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.configuration_random_transformer import PRESETS
from modeling_random_transformer.training.arguments import parse_overrides

WIDTHS, DEPTHS = ("d_model", "d_k", "d_v", "d_ff"), ("encoder_layers", "decoder_layers")


@dataclass(frozen=True)
class Row:
    """One row of Table 3, which differs from the base model in one hyperparameter.

    Args:
        name: name of the row.
        change: the hyperparameter, as in the paper.
        perplexity: the paper's perplexity per word piece on newstest2013.
        bleu: the paper's BLEU on newstest2013.
        preset: preset of `RandomTransformerConfig`.
        label_smoothing: label smoothing factor.
    """

    name: str
    change: str
    perplexity: float
    bleu: float
    preset: str
    label_smoothing: float = 0.1


def _row(name: str, change: str, perplexity: float, bleu: float) -> Row:
    return Row(name, change, perplexity, bleu, preset=name)


ROWS = {
    row.name: row
    for row in (
        _row("base", "", 4.92, 25.8),
        _row("A-1", "h = 1, d_k = d_v = 512", 5.29, 24.9),
        _row("A-4", "h = 4, d_k = d_v = 128", 5.00, 25.5),
        _row("A-16", "h = 16, d_k = d_v = 32", 4.91, 25.8),
        _row("A-32", "h = 32, d_k = d_v = 16", 5.01, 25.4),
        _row("B-16", "d_k = 16", 5.16, 25.1),
        _row("B-32", "d_k = 32", 5.01, 25.4),
        _row("C-2", "N = 2", 6.11, 23.7),
        _row("C-4", "N = 4", 5.19, 25.3),
        _row("C-8", "N = 8", 4.88, 25.5),
        _row("C-d256", "d_model = 256, d_k = d_v = 32", 5.75, 24.5),
        _row("C-d1024", "d_model = 1024, d_k = d_v = 128", 4.66, 26.0),
        _row("C-ff1024", "d_ff = 1024", 5.12, 25.4),
        _row("C-ff4096", "d_ff = 4096", 4.75, 26.2),
        _row("D-0.0", "P_drop = 0.0", 5.77, 24.6),
        _row("D-0.2", "P_drop = 0.2", 4.95, 25.5),
        Row("D-smoothing-0.0", "ε_ls = 0.0", 4.67, 25.3, preset="base", label_smoothing=0.0),
        Row("D-smoothing-0.2", "ε_ls = 0.2", 5.47, 25.7, preset="base", label_smoothing=0.2),
        _row("E", "learned positions", 4.92, 25.7),
    )
}
# Fields besides the sizes that differ between rows: dropout, num_heads and position_embedding.
VARIED = sorted({name for row in ROWS.values() for name in PRESETS[row.preset]} - {*WIDTHS, *DEPTHS})


def scaled_overrides(row: Row, width: float, depth: float, overrides: str = "") -> str:
    """`config_overrides` of a row at a smaller scale.

    Args:
        row: the row.
        width: factor of `d_model`, `d_k`, `d_v` and `d_ff`.
        depth: factor of the numbers of layers.
        overrides: `config_overrides` of all rows.

    Raises:
        ValueError: a scaled size is not a positive integer, or `overrides` contains a field that is scaled or differs
            between rows.
    """
    parsed_overrides = parse_overrides(overrides)
    if scaled := sorted({*WIDTHS, *DEPTHS} & set(parsed_overrides)):
        raise ValueError(
            f"config_overrides must not set sizes (use width_scale, depth_scale), got {', '.join(scaled)}."
        )
    if varied := sorted(set(VARIED) & set(parsed_overrides)):
        raise ValueError(
            f"config_overrides must not set fields that differ between rows ({', '.join(VARIED)}), got "
            f"{', '.join(varied)}."
        )
    config = RandomTransformerConfig.from_preset(row.preset)
    sizes = {name: _scaled(row, name, getattr(config, name), width, "width_scale") for name in WIDTHS}
    sizes |= {name: _scaled(row, name, getattr(config, name), depth, "depth_scale") for name in DEPTHS}
    preset_values = {name: value for name, value in PRESETS[row.preset].items() if name not in sizes}
    values = {**sizes, **preset_values, **parsed_overrides}
    return ",".join(f"{name}={value}" for name, value in values.items())


def _scaled(row: Row, name: str, size: int, factor: float, argument: str) -> int:
    scaled = size * factor
    if abs(scaled - round(scaled)) > 1e-6 or round(scaled) < 1:
        raise ValueError(
            f"{argument} must give a positive integer for {name}={size} of row {row.name}, got {factor:g}."
        )
    return round(scaled)

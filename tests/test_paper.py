"""Parameter counts of the paper's models (Table 3), compared with a formula and the paper's rounded numbers."""

from pathlib import Path

import pytest
import torch

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

# Millions of parameters in Table 3. Rows A, D and E have no number there; they are variants of the base model.
PRINTED_MILLIONS = {
    "base": 65,
    "B-16": 58,
    "B-32": 60,
    "C-2": 36,
    "C-4": 50,
    "C-8": 80,
    "C-d256": 28,
    "C-d1024": 168,
    "C-ff1024": 53,
    "C-ff4096": 90,
    "big": 213,
}
ROWS = [*PRINTED_MILLIONS, "A-1", "A-4", "A-16", "A-32", "D-0.0", "D-0.2", "E"]


def closed_formula(config: RandomTransformerConfig) -> int:
    """Weights and biases of the paper's model with one shared embedding matrix."""
    d, h = config.d_model, config.num_heads
    attention = 2 * (d + 1) * h * config.d_k + (d + 1) * h * config.d_v + (h * config.d_v + 1) * d
    feed_forward = (d + 1) * config.d_ff + (config.d_ff + 1) * d
    norm = 2 * d
    encoder_block = attention + feed_forward + 2 * norm
    decoder_block = 2 * attention + feed_forward + 3 * norm
    positions = 2 * config.max_position_embeddings * d if config.position_embedding == "learned" else 0
    return (
        config.vocab_size * d
        + config.encoder_layers * encoder_block
        + config.decoder_layers * decoder_block
        + positions
    )


@pytest.mark.parametrize("row", ROWS)
def test_the_number_of_parameters_is_that_of_the_paper(row):
    config = RandomTransformerConfig.from_preset(row)
    with torch.device("meta"):
        model = RandomTransformerForConditionalGeneration(config)
    count = model.num_parameters()
    assert count == closed_formula(config)
    printed = PRINTED_MILLIONS.get(row, PRINTED_MILLIONS["base"])
    assert count / 1e6 == pytest.approx(printed, rel=0.07)
    if row not in ("E", "big"):  # the paper rounds and does not specify the vocabulary
        larger = closed_formula(RandomTransformerConfig.from_preset(row, vocab_size=41000))
        assert round(larger / 1e6) == printed
    document = (Path(__file__).parents[1] / "docs" / "reference" / "presets.md").read_text()
    line = next(line for line in document.splitlines() if line.startswith(f"| `{row}` |"))
    assert f" {count:,} " in line

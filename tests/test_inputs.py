"""From texts to the inputs of a model: checks, languages, limits on lengths, chunks and batches."""

from modeling_random_transformer.inputs_random_transformer import longest_target
from tests.helpers.translation import random_translator


def test_longest_target_is_source_length_plus_50(translator):
    """The source's length, rounded up to a multiple of 16, plus 50."""
    for length, limit in ((1, 66), (16, 66), (17, 82), (300, 354)):
        assert longest_target(length, translator.config) == limit
    assert longest_target(300, translator.config, max_new_tokens=7) == 7
    learned = random_translator(position_embedding="learned", max_position_embeddings=60).config
    assert longest_target(16, learned) == longest_target(16, learned, max_new_tokens=99) == 60

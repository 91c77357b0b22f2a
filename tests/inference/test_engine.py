"""The length penalty of a model is the same wherever it translates."""

import pytest

from modeling_random_transformer.inference import translate_n_best
from tests.helpers.translation import SENTENCES, random_translator

SEARCH = {"num_beams": 4, "max_new_tokens": 8}


@pytest.mark.parametrize(("saved", "applied"), [(None, 0.6), (1.0, 1.0), (-2.0, -2.0)])
def test_the_length_penalty_is_that_of_the_generation_config(saved, applied, tokenizer):
    """The reference is `generate()`: the score of its best hypothesis with the expected penalty."""
    model = random_translator().eval()
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    details = {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**inputs, **SEARCH, **details, length_penalty=applied).sequences_scores.item()
    model.generation_config.length_penalty = saved

    [[candidate]] = translate_n_best([SENTENCES[0]], model, tokenizer, n_best=1, **SEARCH)
    assert candidate.score == pytest.approx(expected, rel=1e-4)

"""The length penalty of a model is that of `translate` in engines, pages and the explorer."""

import pytest

from modeling_random_transformer.extras.export.search import read_search
from modeling_random_transformer.extras.export.web import page_settings
from modeling_random_transformer.extras.inspection.explorer import explore
from modeling_random_transformer.inference import translate_n_best
from tests.helpers.translation import SENTENCES, random_translator

SEARCH = {"num_beams": 4, "max_new_tokens": 8}


@pytest.mark.parametrize(("saved", "applied"), [(None, 0.6), (1.0, 1.0), (-2.0, -2.0)])
def test_extras_have_the_length_penalty_of_the_generation_config(saved, applied, tokenizer):
    model = random_translator().eval()
    model.generation_config.length_penalty = saved
    [[candidate]] = translate_n_best([SENTENCES[0]], model, tokenizer, n_best=1, **SEARCH)
    explored = explore(model, tokenizer, SENTENCES[0], **SEARCH)
    [best] = [node for node in explored["search"] if node["place"] == 0]
    assert best["score"] == pytest.approx(candidate.score, rel=1e-4)
    assert read_search(model, tokenizer, "an engine").length_penalty == applied
    assert page_settings(model, tokenizer, "float32")["length_penalty"] == applied

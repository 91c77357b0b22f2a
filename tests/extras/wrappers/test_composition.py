"""The wrappers together with what `translate` does without them."""

import pytest

from modeling_random_transformer.inference import translate

TEXTS = ["two", "42", "one", "- 3.5 %", "\u200b\ufeff"]


@pytest.mark.parametrize(("options", "invisible"), [({"split_sentences": True}, TEXTS[4]), ({"mbr": 2}, "")])
def test_texts_without_letters_are_unchanged(options, invisible, model, tokenizer):
    options = {**options, "seed": 3, "num_beams": 2, "progress": False}
    translations = translate(TEXTS, model, tokenizer, **options)
    assert (translations[1], translations[3], translations[4]) == ("42", "- 3.5 %", invisible)
    if "split_sentences" in options:
        assert [translations[0], translations[2]] == translate(["two", "one"], model, tokenizer, **options)

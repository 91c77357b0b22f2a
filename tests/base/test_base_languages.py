"""Names and codes of languages."""

import pytest

from modeling_random_transformer.base.languages import language_name, without_region


@pytest.mark.parametrize(("code", "name"), [("en", "English"), ("EN", "English"), ("xx", "xx")])
def test_a_known_code_gets_its_english_name(code, name):
    assert language_name(code) == name


@pytest.mark.parametrize(("code", "language"), [("pt-BR", "pt"), ("zh_Hans", "zh"), ("EN", "en")])
def test_the_region_is_ignored(code, language):
    assert without_region(code) == language

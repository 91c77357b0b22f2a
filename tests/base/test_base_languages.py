"""Codes of languages."""

import pytest

from modeling_random_transformer.base.languages import without_region


@pytest.mark.parametrize(("code", "language"), [("pt-BR", "pt"), ("zh_Hans", "zh"), ("EN", "en")])
def test_the_region_is_ignored(code, language):
    assert without_region(code) == language

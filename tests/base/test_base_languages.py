"""Names and codes of languages."""

import pytest

from modeling_random_transformer.base.languages import language_name, matching_code, without_region


@pytest.mark.parametrize(("code", "name"), [("en", "English"), ("EN", "English"), ("xx", "xx")])
def test_names(code, name):
    assert language_name(code) == name


@pytest.mark.parametrize(("code", "language"), [("pt-BR", "pt"), ("zh_Hans", "zh"), ("EN", "en")])
def test_the_region_is_ignored(code, language):
    assert without_region(code) == language


@pytest.mark.parametrize(
    ("code", "available", "match"),
    [
        ("es", ["es-ES", "ES"], "ES"),
        ("es", ["es-ES", "es_MX"], "es-ES"),
        ("es-MX", ["en", "es"], "es"),
        ("es-MX", ["es-ES"], None),
        ("es", ["est"], None),
        ("en", [], None),
    ],
)
def test_the_code_of_the_same_language(code, available, match):
    assert matching_code(code, available) == match

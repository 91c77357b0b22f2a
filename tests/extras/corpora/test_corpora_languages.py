"""The language of a corpus among those of a file."""

import pytest

from modeling_random_transformer.extras.corpora.languages import matching_code


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

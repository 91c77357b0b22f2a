"""Names of languages."""

import pytest

from modeling_random_transformer.extras.language_names import language_name


@pytest.mark.parametrize(("code", "name"), [("en", "English"), ("EN", "English"), ("xx", "xx")])
def test_a_known_code_gets_its_english_name(code, name):
    assert language_name(code) == name

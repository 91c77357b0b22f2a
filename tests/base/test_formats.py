"""The formats of texts, by the suffix of a file."""

import pytest

from modeling_random_transformer.base.formats import file_format


@pytest.mark.parametrize(
    ("name", "expected"), [("a.tsv", "tsv"), ("a.json.gz", "jsonl"), ("a.zst", "text"), ("a.tsv.en", "text")]
)
def test_the_format_follows_from_the_suffix(name, expected):
    assert file_format(name) == expected

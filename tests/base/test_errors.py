"""Exceptions from libraries as one-line errors."""

import pytest
from safetensors import SafetensorError

from modeling_random_transformer.base.errors import reraise_as_value_error

NO_SENTENCEPIECE = """
MarianTokenizer requires the SentencePiece library but it was not found in your environment. Check out the advice on the
installation page of its repo and follow the ones that match your environment.
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no file\nand much advice"), "no file"),
        (SafetensorError("header too large"), "header too large"),
        (ValueError("a field is invalid:\n  it must be b\nand a table"), "a field is invalid: it must be b"),
        (KeyError("name"), "KeyError: 'name'"),
        (
            ImportError(NO_SENTENCEPIECE),
            "MarianTokenizer requires the SentencePiece library but it was not found in your environment.",
        ),
    ],
)
def test_message_is_one_line(error, reason):
    with (
        pytest.raises(ValueError, match="FOLDER must") as caught,
        reraise_as_value_error("FOLDER must contain a model, got x"),
    ):
        raise error
    assert str(caught.value) == f"FOLDER must contain a model, got x: {reason}"
    assert caught.value.__cause__ is error

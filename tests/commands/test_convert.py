"""The arguments of `convert` are those of the function of a format."""

import pytest

from modeling_random_transformer.commands.convert import FORMATS, make_parser, run


@pytest.mark.parametrize("name", FORMATS)
def test_the_help_of_a_format_has_its_arguments(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        run("convert", [name, "--help"])
    help_text = capsys.readouterr().out
    assert f"usage: convert {name}" in help_text
    assert "--output" in help_text


def convert(source: str, output: str, num_heads: int = 8, scale_embedding: bool = False) -> None:
    """Convert.

    Args:
        source: the file.
        output: the folder.
        num_heads: the heads.
        scale_embedding: whether to scale.
    """


def test_a_parser_of_parameters():
    parser = make_parser("convert", convert, positional=1)
    values = parser.values(["a.npz", "--output", "b", "--num_heads", "4", "--scale_embedding"])
    assert values == {"source": "a.npz", "output": "b", "num_heads": 4, "scale_embedding": True}
    assert parser.values(["a.npz", "--output", "b"]) == {"source": "a.npz", "output": "b"}
    with pytest.raises(ValueError, match="the following arguments are required: --output"):
        parser.values(["a.npz"])


def test_an_unknown_format_is_an_error():
    with pytest.raises(ValueError, match="invalid choice: 'gguf'"):
        run("convert", ["gguf"])

"""The arguments of `clean`."""

import pytest

from modeling_random_transformer.commands.clean import one_or_pair, set_sizes


def test_sizes_of_sets_are_parsed():
    assert set_sizes("1000,50") == (1000, 50)


def test_one_file_or_a_pair():
    assert one_or_pair(both="a", left=None, right=None) == {"both": "a"}
    assert one_or_pair(both=None, left="a", right="b") == {"left": "a", "right": "b"}


@pytest.mark.parametrize(
    "files", [{}, {"left": "a"}, {"both": "a", "left": "b"}, {"both": "a", "left": "b", "right": "c"}]
)
def test_other_files_are_an_error(files):
    with pytest.raises(ValueError, match=r"--both, or --left and --right, must be given, got"):
        one_or_pair(**{name: files.get(name) for name in ("both", "left", "right")})

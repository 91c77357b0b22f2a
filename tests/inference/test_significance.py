"""Comparisons of two systems: the tests are sacrebleu's, the claims follow from them."""

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.inference.evaluation import TESTS, compare_systems

REFERENCES = [f"the {color} {animal} sees {count} old houses" for color in ("red", "blue", "green")
              for animal in ("dog", "cat", "bird", "horse") for count in ("two", "three", "four", "five")]  # fmt: skip
WORSE = [text.replace("old", "new").replace("sees", "looks") for text in REFERENCES]
ONE_WORSE = [*REFERENCES[:-1], WORSE[-1]]


def test_a_clear_difference_is_significant_in_both_tests():
    result = compare_systems(WORSE, REFERENCES, REFERENCES, ("old", "new"))
    assert [each.metric for each in result.metrics] == ["BLEU", "chrF2++"]
    for each in result.metrics:
        assert each.p_values.keys() == TESTS.keys()
        assert each.scores[1] == pytest.approx(100)
        assert each.is_significant
        assert each.claim(result.names).startswith(f"{each.metric}: new is better than old on texts like these")
    assert "seed:12345" in str(result)


@pytest.mark.parametrize("other", [REFERENCES, ONE_WORSE], ids=["equal", "one line differs"])
def test_no_claim_without_a_significant_difference(other):
    result = compare_systems(REFERENCES, other, REFERENCES)
    assert not any(each.is_significant for each in result.metrics)
    assert str(result).count("the test set does not show which system is better.") == 2


def test_the_command_compares_files(tmp_path, capsys):
    for name, lines in (("a", WORSE), ("b", REFERENCES), ("r", REFERENCES), ("short", WORSE[:3])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    flags = ["--target_file", str(tmp_path / "r")]
    assert cli.main(["score", "--compare", str(tmp_path / "a"), str(tmp_path / "b"), *flags]) == 0
    assert f"BLEU: {tmp_path / 'b'} is better than {tmp_path / 'a'}" in capsys.readouterr().out
    assert cli.main(["score", "--compare", str(tmp_path / "short"), str(tmp_path / "b"), *flags]) == 2
    assert "3 predictions and 48 with references" in capsys.readouterr().err

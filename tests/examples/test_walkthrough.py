"""The walkthrough: the results of the blog post, in both languages, and saved models."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"

import walkthrough  # noqa: E402

from tutorials import walkthrough_blog  # noqa: E402
from tutorials.blog_model import BLOG  # noqa: E402
from tutorials.walkthrough_display import matrix_lines  # noqa: E402

TEXTS = tomllib.loads((EXAMPLES / "tutorials" / "walkthrough_texts.toml").read_text())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_all_numbers_agree_with_the_blog_post(lang, capsys):
    assert walkthrough.main(["--plain", "--lang", lang]) == 0
    output = capsys.readouterr().out
    assert output.count("[ok]") == 24
    assert "[differs]" not in output
    summary = TEXTS["summary"]["agree"][lang].format(count=24)
    assert "".join(summary.split()) in "".join(output.split())  # line breaks depend on the width


def test_differing_number_is_reported(monkeypatch, capsys):
    monkeypatch.setitem(BLOG, "Z_div30", [[11.46394285, -13.18016471, -11.59340253, -17.04387829]] * 2)
    assert walkthrough.main(["--plain"]) == 1
    output = capsys.readouterr().out
    assert "[differs]" in output
    summary = "23 of the 24 results of the blog post that follow from its printed numbers agree. These differ: Z."
    assert summary in " ".join(output.split())


def test_values_without_norms_overflow_in_float16():
    model = walkthrough_blog.unnormalized_model()
    scores, states = walkthrough_blog.run_without_norms(model, walkthrough_blog.E)
    assert states[5] > 1000 * states[0]
    assert max(scores) > 709
    assert torch.tensor(walkthrough_blog.naive_softmax(max(scores))).isnan()
    float16_states = walkthrough_blog.run_without_norms(model.half(), walkthrough_blog.E.half())[1]
    assert torch.tensor(float16_states[-1]).isnan()


def test_texts_exist_in_both_languages():
    for section, texts in TEXTS.items():
        for key, versions in texts.items():
            assert set(versions) == {"en", "zh"}, f"{section}.{key}"
            fields = [set(re.findall(r"\{\w+\}", text)) for text in versions.values()]
            assert fields[0] == fields[1], f"{section}.{key}"


def test_matrix_columns_are_aligned():
    lines = matrix_lines(torch.tensor([[1.0, -22.5], [3.25, 4.0]]), columns=8)
    assert lines == ["[  1.   -22.5 ]", "[  3.25   4.  ]"]
    assert matrix_lines(torch.arange(12.0), columns=3) == ["[0. 1. 2. …]"]
    assert matrix_lines(torch.tensor([[7, 11]]), columns=3) == ["[ 7 11]"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_saved_model(translator_folder, lang, capsys):
    options = ["--plain", "--lang", lang, "--layer", "1", "--head", "1"]
    assert walkthrough.main(["--model", str(translator_folder), "the cat sees", *options]) == 0
    output = capsys.readouterr().out
    for name in ("position", "self_attn.head.1.weights", "encoder_attn.head.1.key", "ffn.activation"):
        assert name in output
    assert "head.0" not in output
    assert "the cat sees → " in output

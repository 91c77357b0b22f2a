"""The walkthrough: the results of the blog post, in both languages, and saved models."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.models import save_translator

EXAMPLES = Path(__file__).parents[2] / "examples"

import walkthrough  # noqa: E402

from tutorials import walkthrough_blog  # noqa: E402
from tutorials.blog_model import BLOG  # noqa: E402
from tutorials.walkthrough_display import Display, matrix_lines  # noqa: E402

TEXTS = tomllib.loads((EXAMPLES / "tutorials" / "walkthrough_texts.toml").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_translator(path)
    return path


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_all_numbers_agree_with_the_blog_post(lang, capsys):
    assert walkthrough.main(["--plain", "--lang", lang]) == 0
    output = capsys.readouterr().out
    assert output.count("[ok]") == 24
    assert "[differs]" not in output
    summary = TEXTS["summary"]["agree"][lang].format(count=24)
    assert "".join(summary.split()) in "".join(output.split())  # line breaks depend on the width


def values(tree, path=""):
    """The lists, strings and numbers of `blog_numbers.json`, lists without their shape, by path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from values(value, f"{path}{key}.")
    else:
        yield path, flat(tree)


def flat(printed):
    return np.ravel(printed).tolist() if isinstance(printed, list) else printed


def test_results_are_compared_and_inputs_are_not(monkeypatch):
    compared = []
    for method in ("compare", "compare_values"):
        original = getattr(Display, method)

        def recording(self, name, ours, printed, *args, original=original, **kwargs):
            compared.append(flat(printed))
            return original(self, name, ours, printed, *args, **kwargs)

        monkeypatch.setattr(Display, method, recording)
    walkthrough_blog.walkthrough_blog(Display(plain=True))
    inputs = tuple(f"{path}." for path in BLOG["inputs"] + BLOG["not_in_the_post"])
    # The sizes are in a table, one position is corrected, and tests/test_blog_numbers.py has the evaluation by hand.
    others = ("about", "inputs", "not_in", "original", "blog", "by_hand", "position_encoding.pos1_as_printed")
    found = {path for path, value in values(BLOG) if value in compared}
    assert found == {path for path, _ in values(BLOG) if not path.startswith(inputs + others)} | {"by_hand.E_plus_Z."}
    assert flat(BLOG["E"][0]) in compared  # "Hello"; the row of "World" contains the position with the error


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
def test_saved_model(folder, lang, capsys):
    arguments = ["--model", str(folder), "the cat sees", "--plain", "--lang", lang, "--layer", "1", "--head", "1"]
    assert walkthrough.main(arguments) == 0
    output = capsys.readouterr().out
    for name in ("position", "self_attn.head.1.weights", "encoder_attn.head.1.key", "ffn.activation"):
        assert name in output
    assert "head.0" not in output
    assert "the cat sees → " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "FOLDER"], "must be given together"),
        (["a sentence"], "must be given together"),
        (["--model", "nowhere", "a"], "--model: must be a folder with a saved model and its tokenizer, got 'nowhere'"),
        (["--model", "FOLDER", "  "], "the sentence must not be empty"),
        (["--model", "FOLDER", "a", "--layer", "7"], r"layers must be from 0 to 2, got \[7\]"),
        (["--model", "FOLDER", "a", "--head", "2"], r"heads must be from 0 to 1, got \[2\]"),
        (["--model", "FOLDER", "a", "--columns", "0"], "--columns must be a positive integer, got 0"),
    ],
)
def test_invalid_arguments(arguments, message, folder, capsys):
    arguments = [str(folder) if argument == "FOLDER" else argument for argument in arguments]
    try:
        code = walkthrough.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.slow
def test_script_runs_in_another_folder_without_a_terminal(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "walkthrough.py", "--plain"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "All 24 results of the blog post" in done.stdout
    assert "\x1b[" not in done.stdout

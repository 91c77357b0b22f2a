"""The walk through the seed: every number met, in both languages; and the walk through any model."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from tests.helpers.models import save_translator

EXAMPLES = Path(__file__).parents[2] / "examples"

import walkthrough  # noqa: E402
from tutorials import walkthrough_seed  # noqa: E402
from tutorials.seed_model import SEED  # noqa: E402
from tutorials.walkthrough_display import Display, matrix  # noqa: E402

TEXTS = tomllib.loads((EXAMPLES / "tutorials" / "walkthrough_texts.toml").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_translator(path)
    return path


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_number_of_the_seed_is_met(lang, capsys):
    assert walkthrough.main(["--plain", "--lang", lang]) == 0
    output = capsys.readouterr().out
    assert output.count("[ok]") == 39
    assert "[differs]" not in output
    assert TEXTS["walk_seed"]["agree"][lang].format(count=39) in output.replace("\n", "" if lang == "zh" else " ")


def arrays(values, path=""):
    """Every array and word of the seed's numbers, by its path."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from arrays(value, f"{path}.{key}")
    else:
        yield path, json.dumps(values)


def test_no_array_of_the_seed_is_left_out(monkeypatch):
    """All that `seed_numbers.json` holds is compared, or shown as the seed's mistake."""
    shown = []
    for method in ("compare", "compare_words"):
        original = getattr(Display, method)

        def watched(self, name, ours, printed, *args, original=original, **kwargs):
            shown.append(json.dumps(printed))
            return original(self, name, ours, printed, *args, **kwargs)

        monkeypatch.setattr(Display, method, watched)
    walkthrough_seed.walk_seed(Display(plain=True))
    sizes = [f".{kind}_sizes" for kind in ("original", "blog")]
    expected = {path: value for path, value in arrays(SEED) if not path.startswith((".about", *sizes))}
    del expected[".position_encoding.pos1_as_printed"]
    expected[".E"] = json.dumps(SEED["E"][0])  # its second row follows from that mistake
    missing = [path for path, value in expected.items() if value not in shown]
    assert not missing
    assert all(json.dumps(SEED[size[1:]]) in shown for size in sizes)


def test_a_number_that_differs_is_told(monkeypatch, capsys):
    monkeypatch.setitem(SEED, "Z_div30", [[11.46394285, -13.18016471, -11.59340253, -17.04387829]] * 2)
    assert walkthrough.main(["--plain"]) == 1
    output = capsys.readouterr().out
    assert "[differs]" in output
    assert "38 of the 39 results that the seed prints agree; these do not: Z." in output.replace("\n", " ")


def test_values_grow_without_norms_until_float16_ends():
    model = walkthrough_seed.wild_model()
    scores, states = walkthrough_seed.chain(model, walkthrough_seed.E)
    assert states[5] > 1000 * states[0]
    assert max(scores) > 709
    assert torch.tensor(walkthrough_seed.softmax_as_written(max(scores))).isnan()
    halves = walkthrough_seed.chain(model.half(), walkthrough_seed.E.half())[1]
    assert torch.tensor(halves[-1]).isnan()


def test_both_languages_say_everything():
    for station, texts in TEXTS.items():
        for key, versions in texts.items():
            assert set(versions) == {"en", "zh"}, f"{station}.{key}"
            fields = [set(re.findall(r"\{\w+\}", text)) for text in versions.values()]
            assert fields[0] == fields[1], f"{station}.{key}"


def test_matrices_align():
    lines = matrix(torch.tensor([[1.0, -22.5], [3.25, 4.0]]), columns=8)
    assert lines == ["[  1.   -22.5 ]", "[  3.25   4.  ]"]
    assert matrix(torch.arange(12.0), columns=3) == ["[0. 1. 2. …]"]
    assert matrix(torch.tensor([[7, 11]]), columns=3) == ["[ 7 11]"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_any_model(folder, lang, capsys):
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
        (["--model", "FOLDER"], "go together"),
        (["a sentence"], "go together"),
        (["--model", "nowhere", "a"], "--model: must be a folder with a saved model and its tokenizer, got 'nowhere'"),
        (["--model", "FOLDER", "  "], "the sentence must not be empty"),
        (["--model", "FOLDER", "a", "--layer", "7"], r"layers must be from 0 to 2, got \[7\]"),
        (["--model", "FOLDER", "a", "--head", "2"], r"heads must be from 0 to 1, got \[2\]"),
        (["--model", "FOLDER", "a", "--columns", "0"], "--columns must be a positive integer, got 0"),
    ],
)
def test_wrong_arguments(arguments, message, folder, capsys):
    arguments = [str(folder) if argument == "FOLDER" else argument for argument in arguments]
    try:
        code = walkthrough.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.slow
def test_as_a_command(tmp_path):
    """From another folder, into a file: no colour, no width of a terminal needed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "walkthrough.py", "--plain"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "All 39 results that the seed prints agree." in done.stdout
    assert "\x1b[" not in done.stdout

"""BLEU and chrF++: the scores of sacrebleu's command line, and the interface of `evaluate`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from modeling_random_transformer.inference.evaluation import METRICS, load_metric, score, translation_metrics
from tests.helpers.texts import BOTH_REFERENCES, PREDICTIONS, REFERENCES, SECOND_REFERENCES

DIGITS = 10

# Options and references, and the same options of sacrebleu's command line.
CHOICES = {
    "defaults": ({}, [REFERENCES], ["--chrf-word-order", "2"]),
    "several references": ({}, [REFERENCES, SECOND_REFERENCES], ["--chrf-word-order", "2"]),
    "international": (
        {"tokenize": "intl", "smooth_method": "floor", "smooth_value": 0.2, "char_order": 4, "beta": 3},
        [REFERENCES],
        ["-tok", "intl", "-s", "floor", "-sv", "0.2", "-cw", "2", "-cc", "4", "--chrf-beta", "3"],
    ),
}


def command_line(folder: Path, streams: list[list[str]], arguments: list[str]) -> dict[str, dict]:
    """The results of sacrebleu's command line on files, by metric."""
    paths = []
    for number, texts in enumerate([PREDICTIONS, *streams]):
        paths.append(str(folder / str(number)))
        Path(paths[-1]).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    prediction, *references = paths
    command = [sys.executable, "-m", "sacrebleu", *references, "-i", prediction, "-m", "bleu", "chrf"]
    done = subprocess.run(
        [*command, "-f", "json", "-w", str(DIGITS), *arguments], capture_output=True, check=True, timeout=1200
    )
    bleu, chrf = json.loads(done.stdout)
    return {"bleu": bleu, "chrf": chrf}


def verbose_score(result: dict) -> str:
    """The details that sacrebleu prints with a BLEU score."""
    precisions = "/".join(f"{precision:.1f}" for precision in result["precisions"])
    system, reference = result["sys_len"], result["ref_len"]
    lengths = f"ratio = {system / reference:.3f} hyp_len = {system} ref_len = {reference}"
    return f"{precisions} (BP = {result['bp']:.3f} {lengths})"


@pytest.mark.parametrize("choice", CHOICES)
def test_scores_equal_sacrebleu_command_line(choice, tmp_path):
    options, streams, arguments = CHOICES[choice]
    expected = command_line(tmp_path, streams, arguments)
    actual = score(PREDICTIONS, REFERENCES if len(streams) == 1 else BOTH_REFERENCES, **options)
    for name in METRICS:
        assert actual[name]["score"] == pytest.approx(expected[name]["score"], abs=10**-DIGITS)
        assert actual[name]["name"] == expected[name]["name"]
        assert actual[name]["signature"] == expected[name]["signature"]
        assert f"nrefs:{len(streams)}" in actual[name]["signature"]
        assert actual[name]["signature"].endswith(f"version:{sacrebleu.__version__}")
    assert verbose_score(actual["bleu"]) == expected["bleu"]["verbose_score"]


def test_details_equal_sacrebleu():
    expected = sacrebleu.BLEU().corpus_score(PREDICTIONS, [REFERENCES])
    actual = load_metric("bleu").compute(predictions=PREDICTIONS, references=REFERENCES)
    for name in ("counts", "totals", "precisions", "bp", "sys_len", "ref_len"):
        assert actual[name] == getattr(expected, name)
    chrf = load_metric("chrf").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert (chrf["name"], chrf["char_order"], chrf["word_order"], chrf["beta"]) == ("chrF2++", 6, 2, 2)
    assert "nw:2" in chrf["signature"]


def test_number_of_references_may_vary():
    references = [REFERENCES[0], BOTH_REFERENCES[1], *BOTH_REFERENCES[2:]]
    result = load_metric("bleu").compute(predictions=PREDICTIONS, references=references)
    streams = [REFERENCES, [None, *SECOND_REFERENCES[1:]]]
    assert result["score"] == sacrebleu.BLEU().corpus_score(PREDICTIONS, streams).score
    assert "nrefs:var" in result["signature"]


# The interface of evaluate


@pytest.mark.parametrize("name", METRICS)
def test_texts_can_be_added_in_batches(name):
    metric = load_metric(name)
    whole = metric.compute(predictions=PREDICTIONS, references=BOTH_REFERENCES)
    metric.add(prediction=PREDICTIONS[0], reference=BOTH_REFERENCES[0])
    metric.add_batch(predictions=PREDICTIONS[1:4], references=BOTH_REFERENCES[1:4])
    with pytest.raises(ValueError, match="got 1 predictions and 2 with references"):
        metric.add_batch(predictions=["a"], references=["a", "b"])
    assert metric.compute(predictions=PREDICTIONS[4:], references=BOTH_REFERENCES[4:]) == whole


# Invalid arguments

INVALID_TEXTS = [
    (["a", "b", "c"], ["a", "b"], "got 3 predictions and 2 with references"),
    ([], [], "at least one prediction.*, got 0"),
    (["a", "b"], ["a", []], "at least one reference for each, got 2 predictions and 1"),
    (["a", "b", "c"], "abc", "references must be a list of strings, got 'abc'"),
    (["a", "b"], [["a"], ["b", 7]], "must be strings, got 7"),
]


@pytest.mark.parametrize(("predictions", "references", "message"), INVALID_TEXTS)
def test_invalid_texts_raise_value_error(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        score(predictions, references)
    with pytest.raises(ValueError, match=message):
        load_metric("bleu").compute(predictions=predictions, references=references)


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        (("bleu", "ter"), {}, "metrics must be one of 'bleu', 'chrf', got 'ter'"),
        ((), {}, "metrics must contain one of 'bleu', 'chrf', got none"),
        (METRICS, {"tokenize": "klingon"}, r"tokenize must be one of .*'13a'.*, got 'klingon'"),
        (METRICS, {"smooth_method": "laplace"}, r"smooth_method must be one of .*'exp'.*, got 'laplace'"),
        (METRICS, {"max_ngram_order": 2}, r"options must be one of .*, got 'max_ngram_order'"),
        ("bleu", {"word_order": 2}, r"options must be one of .*'tokenize'.*, got 'word_order'"),
    ],
)
def test_unknown_metrics_and_invalid_options_raise_value_error(metrics, options, message):
    with pytest.raises(ValueError, match=message):
        score(["a"], ["a"], metrics, **options)
    with pytest.raises(ValueError, match="name must be one of 'bleu', 'chrf', got 'ter'"):
        load_metric("ter")


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (lambda: score(["a"], ["a"]), "sacrebleu"),
        (lambda: translation_metrics(None), "sacrebleu"),
        (lambda: load_metric("bleu"), "evaluate"),
    ],
)
def test_missing_dependency_raises_import_error_that_names_the_extra(function, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'random-transformer\[train\]'") as caught:
        function()
    assert caught.value.name == missing

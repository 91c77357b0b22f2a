"""The interface of the package evaluate."""

import sys

import pytest
import sacrebleu

from modeling_random_transformer.extras.evaluation import load_metric
from modeling_random_transformer.inference.evaluation import METRICS
from tests.helpers.texts import BOTH_REFERENCES, PREDICTIONS, REFERENCES, SECOND_REFERENCES


def test_number_of_references_may_vary():
    references = [REFERENCES[0], BOTH_REFERENCES[1], *BOTH_REFERENCES[2:]]
    result = load_metric("bleu").compute(predictions=PREDICTIONS, references=references)
    streams = [REFERENCES, [None, *SECOND_REFERENCES[1:]]]
    assert result["score"] == sacrebleu.BLEU().corpus_score(PREDICTIONS, streams).score
    assert "nrefs:var" in result["signature"]


@pytest.mark.parametrize("name", METRICS)
def test_texts_can_be_added_in_batches(name):
    metric = load_metric(name)
    whole = metric.compute(predictions=PREDICTIONS, references=BOTH_REFERENCES)
    metric.add(prediction=PREDICTIONS[0], reference=BOTH_REFERENCES[0])
    metric.add_batch(predictions=PREDICTIONS[1:4], references=BOTH_REFERENCES[1:4])
    with pytest.raises(ValueError, match="got 1 predictions and 2 with references"):
        metric.add_batch(predictions=["a"], references=["a", "b"])
    assert metric.compute(predictions=PREDICTIONS[4:], references=BOTH_REFERENCES[4:]) == whole


def test_invalid_texts_and_names():
    with pytest.raises(ValueError, match="got 3 predictions and 2 with references"):
        load_metric("bleu").compute(predictions=["a", "b", "c"], references=["a", "b"])
    with pytest.raises(ValueError, match="name must be one of bleu, chrf, got 'ter'"):
        load_metric("ter")


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "evaluate", None)
    with pytest.raises(ValueError, match=r"pip install 'random-transformer\[train\]': .*evaluate"):
        load_metric("bleu")

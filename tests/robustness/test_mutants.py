"""A fixed sample of the mutants; `python -m tests.robustness` loads all of them."""

import random

import pytest

from .judgment import Bench, judged
from .mutants import SEED

SAMPLE = 150
PARTS = 5


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


def test_there_are_enough_mutants_and_each_is_different(bench):
    assert len(bench.mutants) >= 1000
    assert {mutant.file for mutant in bench.mutants} >= {"config.json", "generation_config.json", "tokenizer.json"}


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_folders(bench, part):
    sample = random.Random(SEED).sample(bench.mutants, SAMPLE)[part::PARTS]
    report = judged(bench, sample)
    assert report.mutants == SAMPLE // PARTS
    assert not report.serious
    assert report.helpful >= 0.9 * report.refused, report.unhelpful

"""A fixed sample of the mutants; `python -m tests.robustness` runs all of them."""

import random

import pytest

from .fuzzing import Fuzzer, fuzz
from .mutants import SEED

SAMPLE = 150
PARTS = 5


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return Fuzzer(tmp_path_factory.mktemp("fuzzer"))


def test_mutants_cover_the_files(fuzzer):
    assert len(fuzzer.mutants) >= 1000
    assert {mutant.file for mutant in fuzzer.mutants} >= {"config.json", "generation_config.json", "tokenizer.json"}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_folders(fuzzer, part):
    sample = random.Random(SEED).sample(fuzzer.mutants, SAMPLE)[part::PARTS]
    report = fuzz(fuzzer, sample)
    assert report.mutants == SAMPLE // PARTS
    assert not report.serious
    assert report.helpful >= 0.9 * report.rejected, report.unhelpful

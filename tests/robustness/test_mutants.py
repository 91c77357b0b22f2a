"""Mutants of model folders: a fixed sample, or all of them."""

import os
import random

import pytest

from .folders import MIN_HELPFUL_SHARE, Folders
from .mutants import SEED

SAMPLE = 150
PARTS = 5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("folders"))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_folders(folders, part):
    assert len(folders.mutants) >= 1000
    size = len(folders.mutants) if "ALL_MUTANTS" in os.environ else SAMPLE
    report = folders.fuzz(random.Random(SEED).sample(folders.mutants, size)[part::PARTS])
    assert not report.findings
    rejected = report.outcomes["rejected"]
    assert rejected > 10
    assert len(report.unhelpful) <= (1 - MIN_HELPFUL_SHARE) * rejected + 1, report.unhelpful

"""Mutants of files from other tools: a few of each format, or many."""

import os
import sys

import pytest

from .readers import READERS, fuzz_readers

SAMPLE = 200 if "ALL_MUTANTS" in os.environ else 20


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are those of Linux")
def test_mutants_of_files_of_other_tools(tmp_path):
    report = fuzz_readers(SAMPLE, tmp_path)
    assert report.outcomes.total() == SAMPLE * len(READERS)
    assert not report.findings, report
    assert {f"{reader} rejected" for reader in READERS} <= set(report.outcomes), report

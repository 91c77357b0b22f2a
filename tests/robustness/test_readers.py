"""A fixed sample of the mutants of files of other tools; `python -m tests.robustness` runs more of them."""

import sys

import pytest

from .readers import READERS, fuzz_readers

SAMPLE = 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are those of Linux")
def test_mutants_of_files_of_other_tools(tmp_path):
    report = fuzz_readers(SAMPLE, tmp_path)
    assert report.outcomes.total() == SAMPLE * len(READERS)
    assert not report.findings, report
    assert {f"{reader} refused" for reader in READERS} <= set(report.outcomes), report

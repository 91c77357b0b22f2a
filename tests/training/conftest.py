"""Fixtures of the tests of training."""

import shutil

import pytest

from tests.helpers.training import run, write_corpus


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a corpus and, in `out`, a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    write_corpus(folder)
    run(folder, "out")
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run that a test may modify."""
    return shutil.copytree(finished, tmp_path / "copy")

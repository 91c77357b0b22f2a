"""Fixtures of the tests of training."""

import shutil

import pytest

from modeling_random_transformer.training import TranslationTrainingArguments
from tests.helpers.interruption import stop
from tests.helpers.training import run, write_corpus


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a corpus and, in `out`, a finished run; and its result."""
    folder = tmp_path_factory.mktemp("finished")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTrainingArguments, "main_process_first", stop)  # would wait with a timeout
        result = run(folder, "out", report_to="tensorboard")
    return folder, result


@pytest.fixture(scope="session")
def finished(trained):
    """The folder of the corpus and of the finished run, which no test may modify."""
    return trained[0]


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run that a test may modify."""
    return shutil.copytree(finished, tmp_path / "copy")

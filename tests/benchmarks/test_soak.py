"""`python -m benchmarks soak --smoke`: a server with disturbances for some seconds."""

import re

import pytest

from benchmarks.__main__ import main
from tests.helpers.translation import SENTENCES


@pytest.mark.long
def test_a_smoke_run_has_no_wrong_translation_although_threads_are_killed(translator_folder, tmp_path, capsys):
    source = tmp_path / "source"
    source.write_text("\n".join(SENTENCES), encoding="utf-8")
    assert main(["soak", "--smoke", "--model", str(translator_folder), "--source", str(source)]) == 0
    report = capsys.readouterr().out
    assert "wrong translations: 0" in report
    assert "'killed threads': 2" in report
    assert len(re.findall(r"from \d+ s: \d+ answers, ", report)) == 2

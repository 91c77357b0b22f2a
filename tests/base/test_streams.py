"""Files and standard streams that are read or written."""

import pytest

from modeling_random_transformer.base.streams import check_output


def test_an_output_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path.resolve())  # the user root may write all files
    with pytest.raises(ValueError, match=r"--output must be a file in a folder that can be written, got '.*a\.txt'"):
        check_output("--output", tmp_path / "a.txt")

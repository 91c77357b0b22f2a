"""Sizes of folders."""

import pytest

from modeling_random_transformer.base.measures import folder_size


def test_size_of_a_folder(tmp_path):
    (tmp_path / "nested").mkdir()
    (tmp_path / "first.bin").write_bytes(bytes(1000))
    (tmp_path / "nested" / "second.bin").write_bytes(bytes(500))
    (tmp_path / "text").write_bytes(bytes(20))
    assert folder_size(tmp_path) == pytest.approx(0.00152)
    assert folder_size(tmp_path, "*.bin") == pytest.approx(0.001)
    assert folder_size(tmp_path, "**/*.bin") == pytest.approx(0.0015)

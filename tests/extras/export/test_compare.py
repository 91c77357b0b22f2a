"""The comparison of an engine with the model."""

from modeling_random_transformer.extras.export.compare import time_interleaved


def test_calls_are_interleaved():
    calls = []
    times = time_interleaved([lambda: calls.append("first"), lambda: calls.append("second")], rounds=3)
    assert calls == ["first", "second"] * 3
    assert [len(seconds) for seconds in times] == [3, 3]

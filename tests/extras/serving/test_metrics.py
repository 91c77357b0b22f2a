"""Counted and logged requests, which contain no texts."""

import asyncio
import logging

import pytest

from modeling_random_transformer.extras.serving.metrics import ACCESS_LOGGER, CountRequests, Metrics


def request(path, scope_type="http", **fields):
    return {"type": scope_type, "path": path, "method": "GET", "client": ("10.0.0.1", 1), **fields}


def answer(status, is_known=True):
    async def app(scope, _, send):
        if is_known:
            scope["endpoint"] = app
        if status is None:
            raise RuntimeError("failed")
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": b""})

    return app


def count(app, scope):
    """The metrics after one request, and the messages that were sent."""
    metrics = Metrics()
    sent = []

    async def send(message):
        sent.append(message["type"])

    asyncio.run(CountRequests(app, metrics)(scope, None, send))
    return metrics, sent


def counted(metrics, path, status):
    return metrics.registry.get_sample_value("random_transformer_requests_total", {"path": path, "status": status})


def test_requests_are_counted_by_path_and_status():
    metrics, sent = count(answer(200), request("/translate"))
    assert sent == ["http.response.start", "http.response.body"]
    assert counted(metrics, "/translate", "200") == 1
    labels = {"path": "/translate"}
    assert metrics.registry.get_sample_value("random_transformer_request_seconds_count", labels) == 1


def test_unknown_paths_are_one_and_are_not_logged(caplog):
    with caplog.at_level(logging.INFO, logger=ACCESS_LOGGER.name):
        metrics, _ = count(answer(404, is_known=False), request("/a secret text"))
    assert counted(metrics, "other", "404") == 1
    assert "secret" not in caplog.text
    assert "10.0.0.1 GET other 404" in caplog.text


def test_an_error_counts_as_status_500():
    metrics = Metrics()
    with pytest.raises(RuntimeError):
        asyncio.run(CountRequests(answer(None), metrics)(request("/translate"), None, None))
    assert counted(metrics, "/translate", "500") == 1


def test_other_kinds_of_connections_are_passed_on():
    called = []

    async def app(scope, *_):
        called.append(scope["type"])

    metrics, _ = count(app, request("/", "lifespan"))
    assert called == ["lifespan"]
    assert counted(metrics, "/", "500") is None

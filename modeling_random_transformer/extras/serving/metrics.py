"""The metrics at `/metrics`, and the log of requests."""

import logging
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ACCESS_LOGGER = logging.getLogger(f"{__package__}.access")
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of an application in Prometheus' format. They contain no texts and no keys."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "random_transformer", "registry": self.registry}
        self.requests = Counter("requests", "Answered requests", ("path", "status"), **common)
        self.seconds = Histogram("request_seconds", "Time of requests", ("path",), buckets=SECONDS, **common)
        self.characters = Counter(
            "translated_characters", "Characters of translated texts", ("source", "target"), **common
        )
        self.batches = Histogram("batch_texts", "Texts of a batch", buckets=BATCH_SIZES, **common)
        self.waiting = Gauge("waiting_texts", "Texts that are in no batch yet", **common)


class CountRequests:
    """An ASGI middleware that counts and logs requests and their time. Unknown paths, which may be texts, are one."""

    def __init__(self, app: Any, metrics: Metrics):
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = monotonic(), "500"  # an exception is answered with 500 outside of this middleware

        async def watch(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            path = scope["path"] if "endpoint" in scope else "other"
            seconds = monotonic() - start
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            client = scope["client"][0] if scope["client"] else "-"
            ACCESS_LOGGER.info("%s %s %s %s %.3f s", client, scope["method"], path, status, seconds)

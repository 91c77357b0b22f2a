"""A running server, clients, and a model that waits."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import uvicorn
from starlette.testclient import TestClient

from modeling_random_transformer.extras.serving import Direction, Settings, create_app
from modeling_random_transformer.extras.serving.server import BoundedProtocol
from tests.helpers.translation import SENTENCES


@contextmanager
def running(directions, **settings):
    """A server in a thread, and its port."""
    app = create_app(directions, Settings(**settings))
    config = uvicorn.Config(app, http=BoundedProtocol, log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def ask(port, q, connection=None, **fields):
    """The status and the body of an answer."""
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"q": q, "source": "en", "target": "es", **fields})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read()), answer.headers


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


class Blocked:
    """Translates to upper case, each batch when `go` is set."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()
        self.direction = Direction("en", "es", None, None)
        object.__setattr__(self.direction, "translate", self)

    def __call__(self, texts):
        self.batches.append(list(texts))
        assert self.go.wait(60)
        return [text.upper() for text in texts]


@contextmanager
def waiting_requests(blocked, port, texts):
    """Requests, of which the first is being translated and the others wait; yields the futures of their answers."""
    with ThreadPoolExecutor(len(texts)) as pool:
        futures = [pool.submit(ask, port, texts[0])]
        wait_until(lambda: blocked.batches)
        waiting = 0
        for text in texts[1:]:
            futures.append(pool.submit(ask, port, text))
            waiting += 1 if isinstance(text, str) else len(text)
            wait_until(lambda expected=waiting: metric(port, "random_transformer_waiting_texts") == expected)
        yield futures


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


FORM = "application/x-www-form-urlencoded"


def application(directions, **settings):
    """A client of the API, without a server."""
    return TestClient(create_app(directions, Settings(**settings)), raise_server_exceptions=False)


def ask_application(api, q=SENTENCES[0], source="en", target="es", **fields):
    """The answer of the API to a text."""
    return api.post("/translate", json={"q": q, "source": source, "target": target, **fields})


class Echo:
    """A direction that returns the texts."""

    def __new__(cls):
        direction = Direction("en", "pt-BR", None, None)
        object.__setattr__(direction, "translate", list)
        return direction

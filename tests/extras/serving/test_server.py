"""A running server: concurrent requests, clients that disconnect, a full queue, and a graceful stop."""

import http.client
import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest
import uvicorn
from libretranslatepy import LibreTranslateAPI

from modeling_random_transformer.extras.documents import translate_html
from modeling_random_transformer.extras.serving import Direction, create_app, serve, server
from modeling_random_transformer.extras.serving.metrics import ACCESS_LOGGER
from modeling_random_transformer.inference import translate
from tests.helpers.serving import FORM, Blocked, ask, metric, running, wait_until, waiting_requests
from tests.helpers.translation import some_texts


def test_each_of_many_clients_gets_its_own_answers(translator, tokenizer):
    """A fourth of the clients sends HTML."""
    texts = [f"<b>{text}</b>" if i % 4 == 0 else text for i, text in enumerate(some_texts(32))]
    expected = translate(texts, translator, tokenizer)
    expected[::4] = translate_html(texts[::4], translator, tokenizer)

    def client(number):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        text_format = "text" if number % 4 else "html"
        for i in range(number, len(texts), 8):
            assert ask(port, texts[i], connection, format=text_format)[1] == {"translatedText": expected[i]}

    with running([Direction("en", "es", translator, tokenizer)]) as (_, port), ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
        assert metric(port, "random_transformer_batch_texts_count") < len(texts) / 2


def test_client_of_libretranslate(translator, tokenizer):
    [expected] = translate(["the boy"], translator, tokenizer)
    direction = Direction("en", "es", translator, tokenizer)
    with running([direction], api_keys=["key"]) as (_, port):
        api = LibreTranslateAPI(f"http://127.0.0.1:{port}", api_key="key")
        assert api.translate("the boy", "en", "es") == expected
        assert api.languages() == [{"code": "en", "name": "English", "targets": ["es"]}]
        with pytest.raises(HTTPError, match="403"):
            LibreTranslateAPI(f"http://127.0.0.1:{port}").translate("the boy", "en", "es")


def test_disconnect_within_a_body_is_one_line_of_the_log(caplog):
    caplog.set_level(logging.INFO, "modeling_random_transformer.extras.serving.api")
    with running([Blocked().direction]) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nq=")
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["A client disconnected before its request was complete."]
    assert all(record.exc_info is None for record in caplog.records)


def test_accepted_requests_are_answered_before_the_stop():
    blocked = Blocked()
    with (
        running([blocked.direction]) as (server, port),
        waiting_requests(blocked, port, ["first", "second"]) as futures,
    ):
        server.should_exit = True
        wait_until(lambda: not can_connect(port))
        blocked.go.set()
        assert [future.result()[1]["translatedText"] for future in futures] == ["FIRST", "SECOND"]


def test_sigterm_before_uvicorn_handles_it(monkeypatch):
    run = uvicorn.Server.run

    def run_after_signal(self, **options):
        signal.raise_signal(signal.SIGTERM)
        run(self, **options)

    monkeypatch.setattr(uvicorn.Server, "run", run_after_signal)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        serve(create_app([]), port=0)
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("sent", [b"", b"POST /translate HTTP/1.1\r\nHost: a\r\n"])
def test_heads_have_a_time_limit(sent, monkeypatch):
    """Also those of a second request; bodies and idle connections have other limits."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    with running([Blocked().direction]) as (_, port):
        for first in (b"", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") if sent else (b"",):
            with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
                connection.sendall(first)
                if first:
                    assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
                connection.sendall(sent)
                assert connection.recv(10) == b""


def test_slow_bodies_and_answers_are_not_cut(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    blocked = Blocked()
    with (
        running([blocked.direction]) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        body = b"q=a&source=en&target=es"
        head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: {FORM}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(0.3)
        connection.sendall(body)
        time.sleep(0.3)
        blocked.go.set()
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200")


def test_head_that_arrives_while_the_event_loop_is_busy_is_read(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with (
        running([Blocked().direction]) as (running_server, port),
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        time.sleep(0.05)  # it is accepted
        running_server.servers[0].get_loop().call_soon_threadsafe(time.sleep, 0.5)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200")


def test_limit_on_open_connections(monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with running([Blocked().direction]) as (_, port):
        idle = [socket.create_connection(("127.0.0.1", port), timeout=3) for _ in range(3)]
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            assert connection.recv(10) == b""
        for connection in idle:
            connection.close()
        wait_until(lambda: can_answer(port))


def can_answer(port):
    try:
        return metric(port, "random_transformer_waiting_texts") == 0
    except (ConnectionError, http.client.HTTPException):
        return False


def test_access_log_has_no_texts_and_no_keys(caplog):
    blocked = Blocked()
    blocked.go.set()
    with caplog.at_level("INFO", ACCESS_LOGGER.name), running([blocked.direction], api_keys=["secret"]) as (_, port):
        ask(port, "private", api_key="secret")
        for method, path in (("POST", "/translate?q=private&api_key=secret"), ("GET", "/private")):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path)
            assert connection.getresponse().status in (400, 404)
        wait_until(lambda: len(caplog.messages) == 3)
    assert [line.rpartition(" ")[0].rpartition(" ")[0] for line in caplog.messages] == [
        "127.0.0.1 POST /translate 200",
        "127.0.0.1 POST /translate 400",
        "127.0.0.1 GET other 404",
    ]


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_models_are_loaded_again_one_call_after_the_other():
    """Otherwise, a slow load of older models could end last."""
    loading = threading.Lock()
    loads = []

    def load():
        assert loading.acquire(blocking=False)  # `replace_models` catches this error
        time.sleep(0.05)
        loading.release()
        loads.append(object())
        return loads[-1:]

    app = SimpleNamespace(state=SimpleNamespace(api=Mock()))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(server.replace_models, [app] * 3, [load] * 3))
    replaced = [call.args[0] for call in app.state.api.replace_directions.call_args_list]
    assert replaced == [[model] for model in loads]
    assert len(loads) == 3


def test_host_is_not_empty():
    with pytest.raises(ValueError, match=r"host must be an address to listen on, such as 127\.0\.0\.1, got ''"):
        serve(None, "")

"""A running server: concurrent requests, clients that disconnect, a full queue, and a graceful stop."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.error import HTTPError

import pytest
import uvicorn
from libretranslatepy import LibreTranslateAPI

from modeling_random_transformer.extras.documents import translate_html
from modeling_random_transformer.extras.serving import Direction, Settings, create_app, serve
from modeling_random_transformer.inference import translate
from tests.helpers.translation import some_texts


@contextmanager
def running(directions, **settings):
    """A server in a thread, and its port."""
    config = uvicorn.Config(create_app(directions, Settings(**settings)), log_level="warning")
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


def test_disconnected_client_leaves_the_queue():
    blocked = Blocked()
    with running([blocked.direction]) as (_, port), waiting_requests(blocked, port, ["first", "second"]) as futures:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/translate", "q=left&source=en&target=es", {"Content-Type": FORM})
        wait_until(lambda: metric(port, "random_transformer_waiting_texts") == 2)
        connection.close()
        wait_until(lambda: metric(port, "random_transformer_waiting_texts") == 1)
        blocked.go.set()
        assert [future.result()[1]["translatedText"] for future in futures] == ["FIRST", "SECOND"]
    assert blocked.batches == [["first"], ["second"]]


def test_disconnect_within_a_body_is_one_line_of_the_log(caplog):
    with running([Blocked().direction]) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nq=")
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["A client disconnected before its request was complete."]
    assert all(record.exc_info is None for record in caplog.records)


FORM = "application/x-www-form-urlencoded"


def test_html_and_texts_form_separate_batches():
    blocked, of_html = Blocked(), Blocked()
    object.__setattr__(blocked.direction, "translate_html", of_html)
    of_html.go.set()
    with running([blocked.direction]) as (_, port), waiting_requests(blocked, port, ["first", "second"]) as futures:
        with ThreadPoolExecutor(1) as pool:
            futures.append(pool.submit(ask, port, ["<b>", "<i>"], format="html"))
            wait_until(lambda: metric(port, "random_transformer_waiting_texts") == 3)
            blocked.go.set()
        assert [future.result()[1]["translatedText"] for future in futures] == ["FIRST", "SECOND", ["<B>", "<I>"]]
    assert (blocked.batches, of_html.batches) == ([["first"], ["second"]], [["<b>", "<i>"]])


def test_full_queue():
    blocked = Blocked()
    with running([blocked.direction], max_waiting=3) as (_, port):
        with waiting_requests(blocked, port, ["first", ["a", "b"]]) as futures:
            status, answer, headers = ask(port, ["c", "d"])
            assert (status, answer) == (429, {"error": "Too many texts are waiting. Try again in 1 s."})
            assert headers["Retry-After"] == "1"
            blocked.go.set()
            assert [future.result()[0] for future in futures] == [200, 200]
        assert ask(port, ["a"] * 4)[1] == {"translatedText": ["A"] * 4}  # nothing waits


def test_long_request_does_not_delay_others():
    blocked = Blocked()
    long = ["x" * 1000] * 30
    server = running([blocked.direction], max_characters=10**6)
    with server as (_, port), waiting_requests(blocked, port, ["first", long, "short"]) as futures:
        blocked.go.set()
        answers = [future.result()[1]["translatedText"] for future in futures]
    assert answers == ["FIRST", ["X" * 1000] * 30, "SHORT"]
    assert [len(batch) for batch in blocked.batches] == [1, 9, 10, 9, 3]
    assert blocked.batches[2][0] == "short"


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


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.slow
def test_command(translator_folder):
    command = [sys.executable, "-m", "modeling_random_transformer", "serve", "--port", "0"]
    model = f"en:es={translator_folder}"
    with subprocess.Popen([*command, "--model", model], stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline().rpartition(":")[2])
        assert ask(port, "the boy")[0] == 200
        with pytest.raises(ValueError, match=f"host and port must be available, got 127.0.0.1 and {port}: .* in use"):
            serve(None, "127.0.0.1", port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

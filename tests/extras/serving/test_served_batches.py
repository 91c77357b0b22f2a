"""The queue of texts: common batches, limits, errors, and the thread that translates."""

import http.client
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from modeling_random_transformer.extras.serving import Direction
from modeling_random_transformer.extras.serving.batches import THREAD_NAME
from tests.helpers.serving import FORM, Blocked, ask, metric, running, wait_until, waiting_requests


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


def test_a_request_above_the_length_of_the_queue_is_rejected():
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


def end(thread):
    """End a thread of a pool as a failing library does, by an error outside of its calls."""
    [work] = [argument for argument in thread._args if isinstance(argument, SimpleQueue)]
    work.put(SimpleNamespace(run=lambda *_: sys.exit()))
    thread.join()


def test_thread_that_ends_is_replaced(caplog):
    blocked = Blocked()
    blocked.go.set()
    with running([blocked.direction]) as (_, port):
        assert ask(port, "first")[1] == {"translatedText": "FIRST"}
        [thread] = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]
        end(thread)
        assert ask(port, "second")[1] == {"translatedText": "SECOND"}
        assert ask(port, "third")[1] == {"translatedText": "THIRD"}
        assert not thread.is_alive()
    assert "The thread that translates has ended. A new thread repeats its call." in caplog.messages


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_error_of_any_kind_is_that_of_its_text(error):
    direction = Direction("en", "es", None, None)

    def translate(texts):
        if "bad" in texts:
            raise error
        return texts

    object.__setattr__(direction, "translate", translate)
    with running([direction]) as (_, port):
        assert ask(port, ["good", "bad"])[:2] == (500, {"error": "The text was not translated."})
        assert ask(port, "good")[1] == {"translatedText": "good"}

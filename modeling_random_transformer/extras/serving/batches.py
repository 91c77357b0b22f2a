"""Batches of texts from concurrent requests, which one thread translates."""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from ...inputs_random_transformer import TextError

logger = logging.getLogger(__name__)

TranslateTexts = Callable[[Sequence[str]], list[Any]]  # strings, or candidates with a confidence

# Characters of the texts that are translated together. A larger limit increases the throughput by a few percent, but
# new requests wait longer.
BATCH_CHARACTERS = 8192
THREAD_NAME = "translate"
CHECK_SECONDS = 1  # between two checks of whether the thread is alive

T = TypeVar("T")


class QueueFullError(Exception):
    """Too many texts are waiting.

    Args:
        seconds: the time after which they will probably have been translated.
    """

    def __init__(self, seconds: int):
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class QueuedRequest:
    """The texts of a request.

    Attributes:
        translate: the function that translates them; texts with equal functions can share a batch.
        texts: the texts.
        done: the future of the translations.
        results: the translations so far, or errors.
        started: the number of texts that are in a batch or translated.
    """

    translate: TranslateTexts
    texts: Sequence[str]
    done: "asyncio.Future[list[Any]]"
    results: list[Any] = field(default_factory=list)
    started: int = 0

    @property
    def waiting(self) -> int:
        """The number of texts that are in no batch yet."""
        return len(self.texts) - self.started


class Batcher:
    """Translates the texts of concurrent requests in common batches.

    A long request gets one batch, and then waits behind the others for its next one. A text that cannot be translated
    does not affect other requests. A request that is cancelled leaves the queue.

    Args:
        max_waiting: limit on the texts that wait. A request that finds an empty queue is always accepted.
        observe: called with the number of texts of each batch.
    """

    def __init__(self, max_waiting: int, observe: Callable[[int], None] = lambda _: None):
        self.max_waiting = max_waiting
        self.observe = observe
        self.queue: deque[QueuedRequest] = deque()
        self.filled = asyncio.Event()
        self.seconds_per_text = 0.0  # measured in the last batch

    @property
    def waiting(self) -> int:
        """The number of texts that are in no batch yet."""
        return sum(request.waiting for request in self.queue)

    def submit(self, translate: TranslateTexts, texts: Sequence[str]) -> "asyncio.Future[list[Any]]":
        """The future of the translations of a request's texts.

        Its exception is the `TextError` that `translate` raises for one of them, or a `RuntimeError`.

        Args:
            translate: called with texts of one or more requests, in a separate thread; returns the translations.
            texts: the texts.

        Raises:
            QueueFullError: too many texts are waiting.
        """
        done = asyncio.get_running_loop().create_future()
        if not texts:
            done.set_result([])
            return done
        waiting = self.waiting
        if waiting and waiting + len(texts) > self.max_waiting:
            raise QueueFullError(max(1, math.ceil(waiting * self.seconds_per_text)))
        request = QueuedRequest(translate, texts, done)
        self.queue.append(request)
        self.filled.set()
        done.add_done_callback(lambda _: self.remove(request))  # removes a cancelled request
        return done

    def remove(self, request: QueuedRequest) -> None:
        """Remove a request from the queue, if it is still there."""
        with suppress(ValueError):
            self.queue.remove(request)

    async def run(self) -> None:
        """Translate the queued texts until this task is cancelled."""
        self.filled = asyncio.Event()  # bound to this event loop, since an application can be started again
        self.filled.set()
        worker = Worker()
        try:
            while True:
                await self.filled.wait()
                if self.queue:
                    await self.run_batch(worker)
                else:
                    self.filled.clear()
        finally:
            worker.pool.shutdown()

    async def run_batch(self, worker: "Worker") -> None:
        """Translate one batch, and answer the requests that it completes."""
        translate = self.queue[0].translate
        parts = self.take()
        texts = [text for _, part in parts for text in part]
        start = monotonic()
        results = iter(await worker.run(partial(translate_each, translate, texts)))
        self.seconds_per_text = (monotonic() - start) / len(texts)
        self.observe(len(texts))
        for request, part in parts:
            request.results += [next(results) for _ in part]
            self.answer(request)

    def answer(self, request: QueuedRequest) -> None:
        """Complete a request that has all its translations or an error. A cancelled request is already complete."""
        errors = [result for result in request.results if isinstance(result, Exception)]
        if request.done.done() or not (errors or len(request.results) == len(request.texts)):
            return
        if not errors:
            request.done.set_result(request.results)
            return
        request.done.set_exception(errors[0])
        self.remove(request)

    def take(self) -> list[tuple[QueuedRequest, Sequence[str]]]:
        """Remove the texts of the next batch from the queue. All of them have the function of the first request."""
        translate = self.queue[0].translate
        size = 0
        parts = []
        for request in [request for request in self.queue if request.translate == translate]:
            first = request.started
            while request.waiting and size < BATCH_CHARACTERS:
                size += len(request.texts[request.started])
                request.started += 1
            if request.started == first:
                break
            self.queue.remove(request)
            if request.waiting:
                self.queue.append(request)
            parts.append((request, request.texts[first : request.started]))
        return parts


class Worker:
    """A thread that runs one call at a time. If the thread ends, a new thread repeats the call."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the thread."""
        self.pool = ThreadPoolExecutor(1, THREAD_NAME)
        self.thread = self.pool.submit(threading.current_thread).result()

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a call, which raises no errors."""
        loop = asyncio.get_running_loop()
        result = loop.run_in_executor(self.pool, call)
        while True:
            done, _ = await asyncio.wait([result], timeout=CHECK_SECONDS)
            if done:
                return result.result()
            if not self.thread.is_alive():  # the call would never return
                logger.error("The thread that translates has ended. A new thread repeats its call.")
                self.start()
                result = loop.run_in_executor(self.pool, call)


def translate_each(translate: TranslateTexts, texts: Sequence[str]) -> list[Any]:
    """The translations of texts. If some cannot be translated, the error takes the place of the translation.

    Errors of other classes than `TextError` are logged, and replaced by an error without details.
    """
    try:
        return [*translate(texts)]
    except BaseException as error:  # any kind, such as the exit of a library, so that the server continues
        if len(texts) > 1:
            return [result for text in texts for result in translate_each(translate, [text])]
        if isinstance(error, TextError):
            return [error]
        logger.exception("A text was not translated.")
        return [RuntimeError("The text was not translated.")]

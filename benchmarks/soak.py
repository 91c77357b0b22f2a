"""A server for twenty minutes with clients that change, crash and are slow, reloads, and a thread that is killed.

Each answer is compared with that of `translate`. The time of answers, the memory and the open files of the server are
shown for ten parts of the time. The exit status is 1 if an answer is wrong or missing.
"""

import argparse
import asyncio
import ctypes
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from modeling_random_transformer.inference import load_translator, translate

from .http import cpu_time

LANGUAGES = ("en", "xx")
RELOADED, KILLED, CLOSED = "reloads", "killed threads", "connections without an answer"
HEAD = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
RESET = struct.pack("ii", 1, 0)  # value of SO_LINGER with which closing a connection aborts it
MAX_PAUSE = 0.5  # seconds between two requests of a client
DISTURBANCES = 20  # reloads, and as many killed threads
PARTS = 10  # parts of the running time that are reported separately
SMOKE_SECONDS, SMOKE_CLIENTS, SMOKE_DISTURBANCES, SMOKE_PARTS = 12, 4, 2, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path("outputs/quickstart"), metavar="FOLDER", help="saved model")
    parser.add_argument("--source", type=Path, help="sentences, one per line; default: data/test.en of the model")
    parser.add_argument("--minutes", type=float, default=20, help="duration")
    parser.add_argument("--clients", type=int, default=16, help="concurrent clients")
    parser.add_argument("--engine", choices=["ctranslate2"], help="inference engine")
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_SECONDS} seconds, few clients")


def run(options: argparse.Namespace) -> None:
    seconds = SMOKE_SECONDS if options.smoke else 60 * options.minutes
    source = options.source or options.model / "data" / "test.en"
    texts = source.read_text(encoding="utf-8").splitlines()
    model, tokenizer = load_translator(options.model, engine=options.engine)
    search: dict[str, Any] = {"split_sentences": True, "src_lang": LANGUAGES[0], "progress": False}
    expected = dict(zip(texts, translate(texts, model, tokenizer, **search), strict=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=serve_model, args=(options.model, options.engine, port), daemon=True)
    server.start()
    assert server.pid is not None
    soak = Soak(port, server.pid, expected, seconds)
    try:
        if options.smoke:
            asyncio.run(soak.run(SMOKE_CLIENTS, SMOKE_DISTURBANCES))
        else:
            asyncio.run(soak.run(options.clients, DISTURBANCES))
    finally:
        server.terminate()
        server.join(60)
    print(soak.report(SMOKE_PARTS if options.smoke else PARTS))
    interrupted = soak.statuses.pop(500, 0)  # requests of one text whose batch was interrupted
    if soak.wrong or soak.events[CLOSED] or interrupted > soak.events[KILLED] or set(soak.statuses) - {200, 400}:
        sys.exit(1)


# The server


def serve_model(folder: Path, engine: str | None, port: int) -> None:
    """`random-transformer serve`, with a signal that kills the thread that translates."""
    from modeling_random_transformer.extras.serving import create_app, load_directions, serve

    options = {"split_sentences": True, "num_beams": 4}
    models = [f"{':'.join(LANGUAGES)}={folder}"]
    load = partial(load_directions, models, options=options, engine=engine)
    signal.signal(signal.SIGUSR1, lambda *_: kill_worker())
    serve(create_app(load()), port=port, reload=load)


def kill_worker() -> None:
    """End the thread that translates, as a failing library does."""
    from modeling_random_transformer.extras.serving.batches import THREAD_NAME

    for thread in threading.enumerate():
        if thread.name.startswith(THREAD_NAME):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


@dataclass
class Sample:
    """The resources of a process.

    Attributes:
        time: when they were read, in seconds.
        memory: its memory in megabytes (10⁶ bytes).
        files: its open files.
        threads: its threads.
        cpu: its CPU time so far, in seconds.
        load: the processes that run on the machine, on average of a minute.
    """

    time: float
    memory: float
    files: int
    threads: int
    cpu: float
    load: float


def resources(process: int) -> Sample:
    """The resources of a process now."""
    status = Path(f"/proc/{process}/status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return Sample(
        time=time.monotonic(),
        memory=int(lines["VmRSS"].split()[0]) * 1024 / 1e6,
        files=len(os.listdir(f"/proc/{process}/fd")),
        threads=int(lines["Threads"]),
        cpu=cpu_time(process),
        load=os.getloadavg()[0],
    )


# The clients


@dataclass
class Soak:
    """Clients of a server, and what they saw.

    Attributes:
        port: the port of the server.
        process: its process.
        expected: the translation of each text.
        seconds: the duration.
        answers: the time at which each translation arrived, and what it took, both in seconds.
        wrong: translations that are not those expected.
        statuses: the number of answers by HTTP status.
        samples: the resources of the server.
        events: the number of each kind of client, and of disturbances.
    """

    port: int
    process: int
    expected: dict[str, str]
    seconds: float
    answers: list[tuple[float, float]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        random.seed(0)
        self.texts = list(self.expected)
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {  # kinds of requests with their weights
            self.several_requests: 8,
            self.slow_request: 1,
            self.half_head: 1,
            self.half_body: 1,
            self.no_wait_for_the_answer: 2,
            self.invalid_request: 1,
        }

    async def run(self, clients: int, disturbances: int) -> None:
        """Send requests by concurrent clients until the time is over."""
        await self.wait_for_server()
        self.start = time.monotonic()
        self.end = self.start + self.seconds
        await asyncio.gather(self.disturb(disturbances), self.watch(), *(self.client() for _ in range(clients)))

    async def wait_for_server(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.2)
                continue
            writer.close()
            return

    async def disturb(self, count: int) -> None:
        """Load the models again, and kill the thread that translates, in turns."""
        for _ in range(count):
            for event, number in ((RELOADED, signal.SIGHUP), (KILLED, signal.SIGUSR1)):
                await asyncio.sleep(self.seconds / (2 * count + 1))
                os.kill(self.process, number)
                self.events[event] += 1

    async def watch(self) -> None:
        """Sample the resources of the server."""
        while time.monotonic() < self.end:
            self.samples.append(resources(self.process))
            await asyncio.sleep(self.seconds / 120)

    async def client(self) -> None:
        """Clients of all kinds, one after the other."""
        while time.monotonic() < self.end:
            [kind] = random.choices(list(self.kinds), list(self.kinds.values()))
            self.events[kind.__name__] += 1
            try:
                await kind()
            except (ConnectionError, asyncio.IncompleteReadError):
                self.events[CLOSED] += 1
            await asyncio.sleep(random.uniform(0, MAX_PAUSE))

    async def several_requests(self) -> None:
        """One to ten requests on one connection, some of several texts."""
        reader, writer = await self.connect()
        for _ in range(random.randint(1, 10)):
            texts = random.sample(self.texts, random.choice([1, 1, 1, 5]))
            start = time.monotonic()
            writer.write(request(texts))
            self.check(texts, *await read_answer(reader))
            self.answers.append((time.monotonic(), time.monotonic() - start))
            await asyncio.sleep(random.uniform(0, MAX_PAUSE))
        writer.close()

    async def slow_request(self) -> None:
        """A request and an answer in small pieces."""
        reader, writer = await self.connect()
        texts = random.sample(self.texts, 5)
        content = request(texts)
        for first in range(0, len(content), 40):
            writer.write(content[first : first + 40])
            await asyncio.sleep(0.1)
        self.check(texts, *await read_answer(reader, pause=0.1))
        writer.close()

    async def half_head(self) -> None:
        """A head that does not end, until the server closes the connection."""
        reader, writer = await self.connect()
        writer.write(request(self.texts[:1])[:40])
        assert await asyncio.wait_for(reader.read(), 60) == b"", "the server must close the connection"
        writer.close()

    async def half_body(self) -> None:
        """A connection that is aborted within a body."""
        _, writer = await self.connect()
        writer.write(request(self.texts[:1])[:-10])
        await writer.drain()
        abort(writer)

    async def no_wait_for_the_answer(self) -> None:
        """A connection that is aborted before the answer."""
        _, writer = await self.connect()
        writer.write(request(random.sample(self.texts, 5)))
        await asyncio.sleep(random.uniform(0, 0.2))
        abort(writer)

    async def invalid_request(self) -> None:
        """A body that is not JSON."""
        reader, writer = await self.connect()
        writer.write(HEAD.format(4).encode() + b"{{{{")
        status, _ = await read_answer(reader)
        self.statuses[status] += 1
        writer.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def check(self, texts: list[str], status: int, answer: dict[str, Any]) -> None:
        """Count an answer, and compare its translations."""
        self.statuses[status] += 1
        if status == 200:
            translations = zip(texts, answer["translatedText"], strict=True)
            self.wrong += [
                (text, translation) for text, translation in translations if translation != self.expected[text]
            ]

    def report(self, parts: int) -> str:
        """What held, and what did not, in each part of the time."""
        length = self.seconds / parts
        starts = [self.start + number * length for number in range(parts)]
        rows = [
            f"{self.seconds:.0f} s, {dict(sorted(self.events.items()))}",
            f"answers by status: {dict(sorted(self.statuses.items()))}; wrong translations: {len(self.wrong)}",
            *(f"from {start - self.start:.0f} s: {self.part(start, start + length)}" for start in starts),
            *(f"{text!r}: {translation!r} instead of {self.expected[text]!r}" for text, translation in self.wrong[:5]),
        ]
        return "\n".join(rows)

    def part(self, start: float, end: float) -> str:
        """The time of answers and the resources of the server in a part of the time."""
        times = [seconds for arrived, seconds in self.answers if start <= arrived <= end]
        samples = [sample for sample in self.samples if start <= sample.time <= end]
        if len(times) < 2 or len(samples) < 2:  # possible in a short part on a loaded machine
            return f"{len(times)} answers, too few to measure"
        percentiles = statistics.quantiles(times, n=100)
        cpu = (samples[-1].cpu - samples[0].cpu) / (samples[-1].time - samples[0].time)
        memory, files, threads, load = (
            statistics.median(getattr(sample, name) for sample in samples)
            for name in ("memory", "files", "threads", "load")
        )
        return (
            f"{len(times)} answers, p50 {percentiles[49]:.3f} s, p99 {percentiles[98]:.3f} s; {memory:.0f} MB, "
            f"{files:.0f} open files, {threads:.0f} threads; CPU {cpu:.0%}, load of the machine {load:.1f}"
        )


def request(texts: list[str]) -> bytes:
    """A request for the translations of texts."""
    body = json.dumps({"q": texts, "source": LANGUAGES[0], "target": LANGUAGES[1]}).encode()
    return HEAD.format(len(body)).encode() + body


async def read_answer(reader: asyncio.StreamReader, pause: float = 0) -> tuple[int, dict[str, Any]]:
    """The status and the body of an answer; with a pause, which is read slowly."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = b""
    while len(body) < length:
        await asyncio.sleep(pause)
        body += await reader.read(20 if pause else length)
    return int(head.split()[1]), json.loads(body)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection as the end of a process does that is killed."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()

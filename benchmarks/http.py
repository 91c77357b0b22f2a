"""Sentences per second and latency of `random-transformer serve` under load, beside `translate`.

Clients send one sentence after the other, and check every answer. Rounds of the server and of `translate`, on the
same sentences, take turns. On a machine with other work, compare the CPU times.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from modeling_random_transformer.inference import load_translator, translate

LANGUAGES = ("en", "xx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path("outputs/quickstart"), metavar="FOLDER", help="saved model")
    parser.add_argument("--source", type=Path, help="sentences, one per line; default: data/test.en of the model")
    parser.add_argument("--clients", type=int, default=64, help="concurrent clients")
    parser.add_argument("--seconds", type=float, default=60, help="total time of load")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of load and of translate")
    parser.add_argument("--engine", choices=["ctranslate2"], help="inference engine of both")


def run(options: argparse.Namespace) -> None:
    source = options.source or options.model / "data" / "test.en"
    texts = source.read_text(encoding="utf-8").splitlines()
    model, tokenizer = load_translator(options.model, engine=options.engine)
    search: dict[str, Any] = {"split_sentences": True, "src_lang": LANGUAGES[0], "progress": False}
    expected = dict(zip(texts, translate(texts, model, tokenizer, **search), strict=True))
    ratios, of_cpu, seconds, wrong = [], [], [], 0
    with server(options) as (port, process):
        asyncio.run(load(port, options.clients, 3, cycle(texts)))  # warm-up
        before = memory(process)
        for _ in range(options.rounds):
            start, cpu = time.perf_counter(), cpu_time(process)
            answers = asyncio.run(load(port, options.clients, options.seconds / options.rounds, cycle(texts)))
            of_server, cpu_of_server = time.perf_counter() - start, cpu_time(process) - cpu
            wrong += sum(answer != expected[text] for text, answer, _ in answers)
            seconds += [elapsed for _, _, elapsed in answers]
            start, cpu = time.perf_counter(), time.process_time()
            translate([text for text, _, _ in answers], model, tokenizer, **search)
            ratios.append((time.perf_counter() - start) / of_server)
            of_cpu.append((time.process_time() - cpu) / cpu_of_server)
            print(
                f"{len(answers) / of_server:.0f} sentences/s, {ratios[-1]:.2f} times as fast as translate", flush=True
            )
        print(f"memory of the server: {before:.0f} MB before, {memory(process):.0f} MB after")
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{len(seconds)} answers, {wrong} different from those of translate")
    print(f"speed over that of translate: {show(ratios)}; CPU time of translate over the server's: {show(of_cpu)}")
    print(f"time of an answer: p50 {cuts[49]:.2f} s, p95 {cuts[94]:.2f} s, p99 {cuts[98]:.2f} s")


def show(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


@contextmanager
def server(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Start a server; yields its port and its process id."""
    arguments = ["--port", "0", "--model", f"{':'.join(LANGUAGES)}={options.model}"]
    arguments += ["--engine", options.engine] if options.engine else []
    command = [sys.executable, "-m", "modeling_random_transformer", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2]), process.pid
        finally:
            process.terminate()


async def load(port: int, clients: int, seconds: float, texts: Iterator[str]) -> list[tuple[str, str, float]]:
    """Send texts by several clients; returns each text with its answer and its time in seconds."""
    answers: list[tuple[str, str, float]] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            text, start = next(texts), time.perf_counter()
            body = json.dumps({"q": text, "source": LANGUAGES[0], "target": LANGUAGES[1]}).encode()
            writer.write(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            answers.append((text, answer.get("translatedText", ""), time.perf_counter() - start))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


def cpu_time(process: int) -> float:
    """The CPU time of a process, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """The memory of a process, in megabytes (10⁶ bytes)."""
    [line] = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024 / 1e6

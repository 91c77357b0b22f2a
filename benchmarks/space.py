"""Sentences per second of the live page's HTTP API (examples/space) beside the pipeline that it uses."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from transformers import pipeline

from modeling_random_transformer.inference.loading import load_translator

from .timing import paired

APP = Path(__file__).parents[1] / "examples" / "space" / "app.py"
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # options of the API and of the pipeline
    "greedy": ({"method": "greedy"}, {"num_beams": 1}),
    "4 beams": ({"n_best": 1}, {"num_beams": 4, "length_penalty": 0.6}),
}
MAX_BATCH_TOKENS = 4096  # the value of the web page
START_SECONDS = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path("outputs/quickstart"), metavar="FOLDER", help="saved model")
    parser.add_argument("--source", type=Path, help="sentences, one per line; default: data/test.en of the model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32], help="numbers of concurrent clients")
    parser.add_argument("--sentences", type=int, default=256, help="sentences of one timing")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs")


def run(options: argparse.Namespace) -> None:
    source = options.source or options.model / "data" / "test.en"
    lines = source.read_text(encoding="utf-8").splitlines()
    texts = (lines * (options.sentences // len(lines) + 1))[: options.sentences]
    model, tokenizer = load_translator(options.model, argument="--model")
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer)
    with server(APP, str(options.model), stdout=subprocess.DEVNULL) as address:
        for name, (of_api, of_pipe) in METHODS.items():
            expected = translate_alone(pipe, texts, of_pipe)
            for count in options.clients:
                with Clients(address, count) as clients:
                    answers = clients.translate(texts, of_api)
                    wrong = sum(answer != text for answer, text in zip(answers, expected, strict=True))
                    ratio = paired(
                        partial(clients.translate, texts, of_api),
                        partial(translate_alone, pipe, texts, of_pipe),
                        options.pairs,
                    )
                speeds = f"{len(texts) / ratio.ours:.0f} sentences/s, the pipeline {len(texts) / ratio.theirs:.0f}"
                print(f"{name}, {count} clients: {speeds}, ratio {ratio}; {wrong} answers differ")


def translate_alone(pipe: Any, texts: list[str], options: dict[str, Any]) -> list[str]:
    """The translations of the pipeline, without the page, in large batches."""
    answers = pipe(texts, max_batch_tokens=MAX_BATCH_TOKENS, return_scores=True, **options)
    return [answer["generated_text"] for answer in answers]


class Clients:
    """Concurrent clients of the API; each sends one text after the other."""

    def __init__(self, address: str, count: int):
        self.http = [httpx.Client(base_url=address, timeout=START_SECONDS, trust_env=False) for _ in range(count)]
        self.threads = ThreadPoolExecutor(count)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.shutdown()
        for client in self.http:
            client.close()

    def translate(self, texts: list[str], options: dict[str, Any]) -> list[str]:
        """The best translations; client i sends every n-th text, starting with the i-th."""
        count = len(self.http)
        translations = [""] * len(texts)

        def send(index: int) -> None:
            for i in range(index, len(texts), count):
                answer = call(self.http[index], {"text": texts[i], **options})
                translations[i] = answer["translations"][0]["text"]

        list(self.threads.map(send, range(count)))
        return translations


def call(client: httpx.Client, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call of `/translate`: a request that starts it, and one that waits for its last event."""
    event = client.post("gradio_api/call/v2/translate", json=arguments).raise_for_status().json()["event_id"]
    lines = client.get(f"gradio_api/call/translate/{event}").raise_for_status().text.strip().splitlines()
    (answer,) = json.loads(lines[-1].removeprefix("data: "))
    return answer


@contextmanager
def server(app: Path, *arguments: str, **options: Any) -> Iterator[str]:
    """Start a page in a separate process, with options of `Popen`; yields its address when it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port)}
    process = subprocess.Popen([sys.executable, str(app), *arguments], env=environment, **options)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(START_SECONDS):
            time.sleep(1)
            if process.poll() is not None:
                raise SystemExit(f"{app.name} has stopped with exit status {process.returncode}.")
            try:
                httpx.get(f"{address}/config", trust_env=False)
                break
            except httpx.TransportError:
                continue
        else:
            raise SystemExit(f"{app.name} must answer within {START_SECONDS} seconds.")
        yield address
    finally:
        process.terminate()
        process.wait()

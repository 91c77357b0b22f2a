"""Time per sentence of the engines for a saved model, one sentence at a time and for a file.

Each engine runs in a process of its own; the processes take turns. With one thread, times are CPU times, which other
processes disturb less; with several, they are wall times of an idle machine. CTranslate2 translates one batch per
thread: several threads for one batch make it slower. `CT2_FORCE_CPU_ISA=AVX2`, `ATEN_CPU_CAPABILITY=avx2` and
`ONEDNN_MAX_CPU_ISA=AVX2` select older instructions.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from modeling_random_transformer.extras.export import export_model
from modeling_random_transformer.inference import load_translator
from modeling_random_transformer.inference.translation import Translator
from modeling_random_transformer.tokenization_random_transformer import read_lines

LIMIT = 128  # tokens of a translation
SINGLE = 20  # sentences that are translated one at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="a saved model")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--shortlist", type=Path, help="vmap.txt of an export of the model")
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences of the file")
    parser.add_argument("--num_beams", type=int, default=4, help="beam size")
    parser.add_argument("--rounds", type=int, default=5, help="number of alternating rounds")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each engine")


def run(options: argparse.Namespace) -> None:
    with open(options.source, "rb") as file:
        texts = list(read_lines(file, str(options.source)))[: options.sentences]
    with tempfile.TemporaryDirectory() as cache:
        loaders: dict[str, Callable[[], Callable[[Sequence[str]], Any]]] = {}
        for dtype in ("float32", "int8"):
            plain = {"dtype": dtype}
            engine = {"engine": "ctranslate2", "engine_dtype": dtype, "engine_folder": cache}
            loaders[f"model, {dtype}"] = partial(ours, options.model, options.num_beams, **plain)
            loaders[f"translate --engine ctranslate2, {dtype}"] = partial(
                ours, options.model, options.num_beams, **engine
            )
            loaders[f"program with CTranslate2, {dtype}"] = partial(
                program, options.model, options.num_beams, Path(cache, f"program-{dtype}"), dtype
            )
            loaders[f"ONNX Runtime, {dtype}"] = partial(
                onnx, options.model, options.num_beams, Path(cache, f"onnx-{dtype}"), dtype
            )
            if options.shortlist:
                loaders[f"translate --engine ctranslate2, {dtype}, shortlist"] = partial(
                    ours, options.model, options.num_beams, **engine, engine_shortlist=options.shortlist
                )
        report(measure(loaders, texts, options.rounds, options.threads), len(texts), options.threads)


def ours(folder: Path, num_beams: int, **options: Any) -> Callable[[Sequence[str]], Any]:
    """`translate` with a saved model, or with an engine."""
    model, tokenizer = load_translator(folder, **options)
    return prepared(model, tokenizer, num_beams)


def prepared(model: Any, tokenizer: Any, num_beams: int) -> Callable[[Sequence[str]], Any]:
    """A function that translates with options that are prepared once, as by the commands `translate` and `serve`."""
    translator = Translator(model, tokenizer, num_beams=num_beams, max_new_tokens=LIMIT, early_stopping=num_beams > 1)
    return lambda texts: list(translator.stream(texts, progress=False))


def onnx(folder: Path, num_beams: int, output: Path, dtype: str) -> Callable[[Sequence[str]], Any]:
    """`translate` with the exported graphs."""
    from modeling_random_transformer.extras.export.onnx_model import OnnxModel

    model, tokenizer = load_translator(folder)
    export_model(model, tokenizer, output, engine="onnx", dtype=dtype)
    graphs = OnnxModel.load(output)
    return prepared(graphs, tokenizer, num_beams)


def program(folder: Path, num_beams: int, output: Path, dtype: str) -> Callable[[Sequence[str]], Any]:
    """A program that uses CTranslate2 and tokenizers only."""
    import ctranslate2
    from tokenizers import Tokenizer

    export_model(*load_translator(folder), output, dtype=dtype)
    engine = ctranslate2.Translator(str(output), inter_threads=torch.get_num_threads(), intra_threads=1)
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    ids = tokenizer.get_vocab()

    def translate_texts(texts: Sequence[str]) -> list[str]:
        sources = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
        settings = {"beam_size": num_beams, "length_penalty": 0.6, "max_decoding_length": LIMIT, "max_batch_size": 32}
        results = engine.translate_batch(sources, **settings)
        return tokenizer.decode_batch([[ids[token] for token in result.hypotheses[0]] for result in results])

    return translate_texts


def measure(
    loaders: dict[str, Callable[[], Callable[[Sequence[str]], Any]]], texts: list[str], rounds: int, threads: int
) -> dict[str, list[tuple[float, float]]]:
    """The seconds per sentence of each candidate, alone and in a file, in each round."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    for name, loader in loaders.items():
        pipes[name], child = context.Pipe()
        context.Process(target=serve, args=(child, loader, threads), daemon=True).start()
        pipes[name].recv()  # the model has been loaded
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(texts)
            round_times = pipe.recv()
            if number:  # the first round is a warm-up
                times[name].append(round_times)
    return times


def serve(connection: Connection, loader: Callable[[], Callable[[Sequence[str]], Any]], threads: int) -> None:
    """Translate texts until the other end of the connection is closed."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    translate_texts = loader()
    connection.send(None)
    while True:
        try:
            texts = connection.recv()
        except EOFError:
            return
        start = clock()
        for text in texts[:SINGLE]:
            translate_texts([text])
        middle = clock()
        translate_texts(texts)
        alone = (middle - start) / len(texts[:SINGLE])
        connection.send((alone, (clock() - middle) / len(texts)))


def report(times: dict[str, list[tuple[float, float]]], sentences: int, threads: int) -> None:
    clock = "CPU time" if threads == 1 else f"Wall time with {threads} threads"
    table = Table("engine", "one sentence", f"file of {sentences}", title=f"{clock} per sentence in ms: median (range)")
    for name, rounds in times.items():
        columns = [[1000 * value for value in column] for column in zip(*rounds, strict=True)]
        cells = [f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})" for column in columns]
        table.add_row(name, *cells)
    Console(width=120).print(table)

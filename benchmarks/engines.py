"""CTranslate2 with the weights of our model, in a separate process.

In the same process, its threads would compete with those of PyTorch: after its first translation, `generate()` with two
threads takes twice as long.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer.extras.export.ctranslate2 import build_spec, write

from .models import END, PAD, START, VOCAB_SIZE

TOKENS = {PAD: "<pad>", START: "<s>", END: "</s>"}


def translate(model: Any, compute_type: str, new_tokens: int) -> Callable[[Tensor, int], list[list[str]]]:
    """A function of source ids `[batch, source_len]` and `num_beams` that generates `new_tokens` tokens per source.

    Args:
        model: a model of `models.ours`.
        compute_type: `"float32"` or `"int8"`.
        new_tokens: length of every translation, in tokens.
    """
    folder = tempfile.TemporaryDirectory()
    save(model, Path(folder.name))
    parent, child = multiprocessing.Pipe()
    arguments = (child, folder.name, compute_type, new_tokens, torch.get_num_threads())
    multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True).start()
    child.close()
    parent.recv()  # the engine has been loaded
    folder.cleanup()

    def run(ids: Tensor, num_beams: int) -> list[list[str]]:
        parent.send(([[f"t{i}" for i in row] for row in ids.tolist()], num_beams))
        translations: list[list[str]] = parent.recv()
        return translations

    return run


def save(model: Any, folder: Path) -> None:
    """Write the model in CTranslate2's format."""
    vocabulary = {TOKENS.get(i, f"t{i}"): i for i in range(VOCAB_SIZE)}
    write(build_spec(model, SimpleNamespace(get_vocab=lambda: vocabulary, unk_token=None)), folder, "float32")


def serve(connection: Connection, folder: str, compute_type: str, new_tokens: int, threads: int) -> None:
    """Translate batches until the other end of the connection is closed."""
    import ctranslate2

    engine = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads)
    options = {"min_decoding_length": new_tokens, "max_decoding_length": new_tokens}
    connection.send(None)
    while True:
        try:
            sources, num_beams = connection.recv()
        except EOFError:
            return
        results = engine.translate_batch(sources, beam_size=num_beams, **options)
        connection.send([result.hypotheses[0] for result in results])

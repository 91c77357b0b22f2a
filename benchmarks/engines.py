"""CTranslate2 with the weights of our model."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import torch
from torch import Tensor

from modeling_random_transformer.export.ctranslate2 import RandomTransformerLoader

from .models import END, PAD, START, VOCAB_SIZE

TOKENS = {PAD: "<pad>", START: "<s>", END: "</s>"}


def translator(model: Any, compute_type: str, folder: Path) -> ctranslate2.Translator:
    """Export a model of `models.ours` to CTranslate2, with `compute_type` "float32" or "int8"."""
    vocabulary = {TOKENS.get(i, f"t{i}"): i for i in range(VOCAB_SIZE)}
    spec = RandomTransformerLoader()(model, SimpleNamespace(get_vocab=lambda: vocabulary, unk_token=None))
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return ctranslate2.Translator(str(folder), compute_type=compute_type, intra_threads=torch.get_num_threads())


def translate(model: Any, compute_type: str, new_tokens: int) -> Callable[[Tensor, int], list[list[str]]]:
    """A function of source ids `[batch, source_len]` and `num_beams` that generates `new_tokens` tokens per source."""
    with tempfile.TemporaryDirectory() as folder:  # the engine reads it once, in the constructor
        engine = translator(model, compute_type, Path(folder))

    def run(ids: Tensor, num_beams: int) -> list[list[str]]:
        sources = [[f"t{i}" for i in row] for row in ids.tolist()]
        options = {"min_decoding_length": new_tokens, "max_decoding_length": new_tokens}
        results = engine.translate_batch(sources, beam_size=num_beams, **options)
        return [result.hypotheses[0] for result in results]

    return run

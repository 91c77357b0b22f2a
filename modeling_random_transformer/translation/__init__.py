"""Translating with a trained model: a list, a stream that never ends, or a file shared out over many processes.

    translate(["hello world"], model, tokenizer)                 # → ["hola mundo"]
    for line in translate_stream(read_lines(file), model, tokenizer): ...
    translate_file("big.en", "big.es", model, tokenizer)         # after a kill, the same call goes on

Any model of transformers' `AutoModelForSeq2SeqLM` does, with its tokenizer.
"""

from .files import translate_file
from .lines import encode_lines, one_line, read_lines, write_atomically
from .texts import Translator, longest_target, translate, translate_stream

__all__ = [
    "Translator",
    "encode_lines",
    "longest_target",
    "one_line",
    "read_lines",
    "translate",
    "translate_file",
    "translate_stream",
    "write_atomically",
]

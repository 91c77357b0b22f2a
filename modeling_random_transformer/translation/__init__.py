"""Translation of a list, a stream or a file with a trained model.

    translate(["hello world"], model, tokenizer)                 # → ["hola mundo"]
    for line in translate_stream(read_lines(file), model, tokenizer): ...
    translate_file("big.en", "big.es", model, tokenizer)         # sharded over processes; the same call resumes

    for candidates in translate_n_best(texts, model, tokenizer, n_best=4): ...     # with scores, the best first

All of them are front ends of `Seq2SeqPipeline` and take any model of `AutoModelForSeq2SeqLM`.
"""

from ..pipeline_random_transformer import longest_target
from ..utils.text import encode_lines, one_line, read_lines
from .files import translate_file
from .streams import Candidate, TranslationOptions, translate, translate_n_best, translate_stream

__all__ = [
    "Candidate",
    "TranslationOptions",
    "encode_lines",
    "longest_target",
    "one_line",
    "read_lines",
    "translate",
    "translate_file",
    "translate_n_best",
    "translate_stream",
]

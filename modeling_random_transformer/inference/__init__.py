"""Translation, scoring and evaluation with trained models, and ensembles of them.

    model, tokenizer = load_translator("outputs/en-es")
    translate(["hello world"], model, tokenizer)                 # → ["hola mundo"]
    for line in translate_stream(read_lines(file), model, tokenizer): ...
    translate([paragraphs], model, tokenizer, split_sentences=True)
    translate_file("big.en", "big.es", model, tokenizer)         # sharded over processes; the same call resumes
    for candidates in translate_n_best(texts, model, tokenizer, n_best=4): ...     # with scores, the best first

    for score in score_pairs(model, tokenizer, [("a dog", "ein Hund"), ...]):
        score.log_probability / score.tokens

All of them take any model of `AutoModelForSeq2SeqLM`. The metrics of `evaluation` require the extra `train`.
"""

from ..base.files import encode_lines, one_line
from ..inputs_random_transformer import longest_target
from ..tokenization_random_transformer import read_lines
from .candidates import Candidate
from .loading import load_translator
from .scoring import PairScore, score_pairs
from .translation import TranslationOptions, translate, translate_n_best, translate_stream
from .translation_files import translate_file

__all__ = [
    "Candidate",
    "PairScore",
    "TranslationOptions",
    "encode_lines",
    "load_translator",
    "longest_target",
    "one_line",
    "read_lines",
    "score_pairs",
    "translate",
    "translate_file",
    "translate_n_best",
    "translate_stream",
]

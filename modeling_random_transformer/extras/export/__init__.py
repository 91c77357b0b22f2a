"""Exports a trained model to an engine, CTranslate2, onnxruntime or Argos Translate, or to a class of transformers.

    export_model(model, tokenizer, "out", engine="ctranslate2", dtype="int8")
    translate = load_engine("out", "ctranslate2")
    translate(["hello world"], num_beams=4, max_new_tokens=64)     # → ["hola mundo"]
    compare(model, tokenizer, translate, sentences)                # identical translations, and throughput
    export_web_page(model, tokenizer, "page")                      # translates in the browser

The engines are extras: `random-transformer[ctranslate2]`, `random-transformer[onnx]`, `random-transformer[argos]`.
"""

from .compare import Comparison, compare
from .engines import WEIGHT_DTYPES, EngineTranslate, export_model, load_engine
from .web import export_web_page

__all__ = [
    "WEIGHT_DTYPES",
    "Comparison",
    "EngineTranslate",
    "compare",
    "export_model",
    "export_web_page",
    "load_engine",
]

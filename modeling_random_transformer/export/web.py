"""Exports a model as a static web page that translates in the browser, with onnxruntime-web.

The folder is an export to ONNX with a page and its JavaScript: `load_engine` and `OnnxModel` load it too. The packages
that the page needs are downloaded from npm when it is exported; the page itself loads nothing from other hosts.
"""

import json
import shutil
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..pipeline_random_transformer import LENGTH_STEP, LONGER_THAN_SOURCE, source_limit
from ..utils.atomic_files import check_free, new_folder
from .engines import check_engine, check_exportable, engine_module
from .npm import Package, default_cache, download, extract
from .search import (
    LENGTH_PENALTY,
    check_options,
    end_tokens,
    first_token,
    min_new_tokens,
    start_token,
    suppressed_sequences,
)

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"
SCRIPTS, VENDOR = "page", "page/vendor"
SETTINGS = "page.json"
RUNTIME = Package(
    "onnxruntime-web",
    "1.30.0",
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"),
)
TOKENIZERS = Package(
    "@huggingface/tokenizers",
    "0.2.0",
    "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
    ("dist/tokenizers.min.mjs", "LICENSE"),
)
PACKAGES = (RUNTIME, TOKENIZERS)


def export_web_page(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: str | PathLike,
    *,
    dtype: str = "int8",
    npm_cache: str | PathLike | None = None,
) -> None:
    """Export a model, its tokenizer and a page that translates with them in the browser.

    Any static host can serve the folder, such as `python -m http.server`. The folder is created atomically. The model
    is not changed.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer, with byte-level BPE.
        output: a new or empty folder.
        dtype: dtype of the weights: `"int8"` or `"float32"`.
        npm_cache: folder of the archives of JavaScript packages. Missing archives are downloaded with npm. `None` for
            `~/.cache/random-transformer/npm`.

    Raises:
        ValueError: an argument is invalid, onnxruntime or npm is not installed, or the page does not support the model.
    """
    check_engine("onnx", dtype)
    check_exportable(model, tokenizer)
    settings = page_settings(model, tokenizer, dtype)
    engine = engine_module("onnx")
    check_free(output)
    cache = default_cache() if npm_cache is None else Path(npm_cache)
    download(PACKAGES, cache)
    with new_folder(output) as folder:
        engine.save(model, tokenizer, folder, dtype, web=True)
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2, allow_nan=False) + "\n")
        copy_page(folder, cache)


def copy_page(folder: Path, cache: Path) -> None:
    """Copy the page, its scripts, and the files of the JavaScript packages with their licenses."""
    shutil.copyfile(PAGE / INDEX, folder / INDEX)
    ignored = shutil.ignore_patterns(INDEX)
    shutil.copytree(PAGE, folder / SCRIPTS, ignore=ignored, copy_function=shutil.copyfile)
    for package in PACKAGES:
        target = folder / VENDOR / package.name.rpartition("/")[2]
        target.mkdir(parents=True)
        extract(package, cache, target)
        for module in target.glob("*.mjs"):  # some hosts have no content type for .mjs
            module.rename(module.with_suffix(".js"))
    import onnxruntime  # the archive of onnxruntime-web has no license; it is that of onnxruntime

    for name in ("LICENSE", "ThirdPartyNotices.txt"):
        shutil.copyfile(Path(onnxruntime.__file__).parent / name, folder / VENDOR / RUNTIME.name / name)


def page_settings(
    model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, dtype: str
) -> dict[str, Any]:
    """The settings that the page requires: of the model, its tokenizer and its generation config.

    Raises:
        ValueError: the page does not support the tokenizer or an option of the generation config, or the generation
            config has no start token.
    """
    config = model.config
    check_web_tokenizer(tokenizer)
    check_options(model, "the web page")
    positions = config.max_position_embeddings if config.position_embedding == "learned" else None
    limit, _ = source_limit(tokenizer, positions, None)
    return {
        "dtype": dtype,
        "parameters": model.num_parameters(),
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "num_heads": config.num_heads,
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "vocab_size": config.vocab_size,
        "start_token": start_token(model, "the web page"),
        "end_tokens": end_tokens(model),
        "first_token": first_token(model, tokenizer),
        "suppressed_sequences": suppressed_sequences(model),
        "min_new_tokens": min_new_tokens(model),
        "no_repeat_ngram_size": model.generation_config.no_repeat_ngram_size or 0,
        "prefix": getattr(config, "prefix", None) or "",
        "control_tokens": getattr(tokenizer, "control_tokens", []),  # text, if they occur in a text
        "clean_up_tokenization_spaces": bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)),
        "max_source_tokens": limit if limit < 10**6 else None,  # 10³⁰ means none
        "max_target_tokens": positions,
        # `longest_target` of the pipeline: the source's length, rounded up, plus a constant
        "length_step": LENGTH_STEP,
        "longer_than_source": LONGER_THAN_SOURCE,
        "length_penalty": LENGTH_PENALTY,
    }


def check_web_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError for a tokenizer that @huggingface/tokenizers does not compute exactly.

    It splits some texts differently with imported SentencePiece models.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = {} if backend is None else json.loads(backend.to_str())
    kinds = [(parts.get(part) or {}).get("type") for part in ("model", "pre_tokenizer", "decoder")]
    if kinds != ["BPE", "ByteLevel", "ByteLevel"]:
        found = type(tokenizer).__name__ if backend is None else f"{type(tokenizer).__name__} of type {kinds[0]}"
        raise ValueError(f"tokenizer must be a byte-level BPE tokenizer for the web page, got a {found}.")

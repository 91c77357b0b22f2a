"""Converts Marian's own model files, as published by OPUS-MT and for Firefox Translations."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from ...base.errors import format_value
from .embeddings import check_ids, learn_positions, map_embeddings, pad_rows
from .marian_npz_files import EOS, UNK, find_files, find_model, read_vocabularies, save_tokenizer
from .options import DEPTH, FLAG, RATE, SIZE, Kind, Option, equal, is_number, is_size, one_of, read_options
from .untrusted import parse_yaml, read_arrays, read_yaml
from .weights import ConversionReport, Converted, StateDictMapper, save_conversion

STORED_OPTIONS = "special:model.yml"  # a string in an array of int8, which ends with a zero byte
POSITIONS = 1024  # of computed sinusoids; marian-decoder reads at most 1000 tokens by default
EPSILON = 1e-6
MAX_BEAMS = 1000
OUTPUT = "decoder_ff_logit_out"
# Sublayers in Marian and their modules here, by stack.
ATTENTIONS = {"encoder": {"self": "self_attn"}, "decoder": {"self": "self_attn", "context": "encoder_attn"}}
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
PARAMETERS = (("W", "weight"), ("b", "bias"))
NORM_PARAMETERS = (("ln_scale", "weight"), ("ln_bias", "bias"))
IS_MATRIX = re.compile(rf".*_W[qkvo12]|{OUTPUT}_W")  # [in, out]; other parameters are [1, width] or [rows, width]
# Marian's activation names and transformers'. Up to version 1.12.0, gelu is swish with the factor 1.702.
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
APPROXIMATE_GELU, LAST_APPROXIMATE_GELU = "quick_gelu", (1, 12, 0)
VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
# Operations before and after a sublayer: `a` is the residual connection and `n` a layer norm. `d` is dropout, which is
# removed, as it affects training only.
NORM_ORDERS = {("", "an"): "post", ("n", "a"): "pre"}
OPERATIONS = Kind("a string of operations", lambda value: isinstance(value, str), lambda value: value.replace("d", ""))
NO_OPERATIONS = Kind("'d' or ''", lambda value: value in ("d", ""))
TOP = Kind("'' or 'n'", lambda value: str(value).replace("d", "") in ("", "n"), lambda value: "n" in value)
SEQUENCES = Kind("'sequence' for each input", lambda v: isinstance(v, list) and v == ["sequence"] * len(v))
OPTIONS = (
    Option("type", equal("transformer")),
    Option("transformer-decoder-autoreg", equal("self-attention"), "self-attention"),
    Option("transformer-ffn-depth", equal(2), 2),
    Option("transformer-no-projection", equal(False), False),
    Option("transformer-pool", equal(False), False),
    Option("transformer-tied-layers", equal([]), []),
    Option("right-left", equal(False), False),
    Option("ulr", equal(False), False),
    Option("lemma-dim-emb", equal(0), 0),
    Option("input-types", SEQUENCES, []),
    Option("dim-emb", SIZE, fields=("d_model",)),
    Option("transformer-dim-ffn", SIZE, fields=("d_ff",)),
    Option("transformer-heads", SIZE, fields=("num_heads",)),
    Option("enc-depth", DEPTH, fields=("encoder_layers",)),
    Option("dec-depth", DEPTH, fields=("decoder_layers",)),
    Option("transformer-ffn-activation", one_of(ACTIVATIONS), "swish", ("activation_function",)),
    Option("transformer-preprocess", OPERATIONS, ""),
    Option("transformer-postprocess", OPERATIONS, "dan"),
    Option("transformer-postprocess-emb", NO_OPERATIONS, ""),
    Option("transformer-postprocess-top", TOP, "", ("final_layer_norm",)),
    Option("transformer-train-position-embeddings", FLAG, False),
    Option("transformer-train-positions", FLAG, False),  # an older name
    Option("tied-embeddings-all", FLAG, False),
    Option("tied-embeddings-src", FLAG, False),
    Option("tied-embeddings", FLAG, False),
    Option("output-omit-bias", FLAG, False),
    Option("transformer-dropout", RATE, None, ("dropout",)),
    Option("transformer-dropout-attention", RATE, None, ("attention_dropout",)),
    Option("transformer-dropout-ffn", RATE, None, ("activation_dropout",)),
)
# Options of the decoder's feed-forward network in recent versions; 0 stands for the value of the encoder's.
SAME = (
    ("transformer-decoder-dim-ffn", "transformer-dim-ffn"),
    ("transformer-decoder-ffn-depth", "transformer-ffn-depth"),
)


def from_marian_npz(model: str | Path, *, eos_token_id: int = 0, unk_token_id: int = 1) -> Converted:
    """Convert the weights of a `.npz` file of Marian.

    Token ids are those of Marian's vocabularies. The last id is added for padding and as the first decoder input. Its
    embedding is zero: Marian's first decoder input is a zero vector. Marian's sinusoids use other frequencies (their
    logarithms are spaced by `d_model / 2 - 1`), so their values become a table of learned positions.

    Args:
        model: the file, or a folder with one such file.
        eos_token_id: the id of `</s>` in the target vocabulary, which the file does not contain.
        unk_token_id: the id of `<unk>` in the target vocabulary. `generate()` never returns it, as in Marian.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: the file is damaged, quantized or packed; or an option or a weight has no counterpart in this model.
            The message names it.
    """
    path = find_model(Path(model))
    weights, options = read_npz(path)
    return convert_weights(weights, options, str(path), eos_token_id, unk_token_id)


def convert_marian_npz(
    model: str | Path, output: str | Path, *, vocabs: Sequence[str | Path] = (), spm: Sequence[str | Path] = ()
) -> ConversionReport:
    """Convert a `.npz` file of Marian to a folder, with a `MarianTokenizer` if there are SentencePiece models.

    Files that are not given are found next to the model: the vocabularies, which `decoder.yml` may name; the
    SentencePiece models `source.spm` and `target.spm`; and the options of the search in `decoder.yml`.

    Args:
        model: the file, or a folder with one such file.
        output: a new or empty folder.
        vocabs: one vocabulary, or that of the source and that of the target: `.yml` or `.json` files of tokens and ids,
            `.vocab` or `.txt` files of one token per line, or SentencePiece models (`.spm`).
        spm: the SentencePiece models of source and target, or one for both, for vocabularies of another format.

    Raises:
        ValueError: see `from_marian_npz`; or a vocabulary is missing, damaged or does not match the embedding. In this
            case, nothing is written.
    """
    path = find_model(Path(model))
    files = find_files(path, [Path(file) for file in vocabs], [Path(file) for file in spm])
    weights, options = read_npz(path)
    vocabularies = read_vocabularies(files)
    eos, unk = (vocabularies[1][EOS], vocabularies[1][UNK]) if vocabularies else (0, 1)

    def convert() -> Converted:
        converted, report = convert_weights(weights, options, str(path), eos, unk)
        for file, ids, name in zip(files.vocabs or (), vocabularies or (), embedding_names(options), strict=False):
            check_ids(file, ids.values(), len(weights[name]))
        set_search_options(converted.generation_config, files.decoder, report)
        return converted, report

    return save_conversion(output, convert, partial(save_tokenizer, vocabularies, files.spm))


def read_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights and the options of a model. No code in the file is executed.

    Options that the file does not contain are read from `<path>.yml`, where Marian writes those of the training.

    Returns:
        The weights by their names in Marian, and the options by their names on Marian's command line.

    Raises:
        ValueError: the file is missing or damaged, or contains no options or unsupported ones; or an array is not of
            floats.
    """
    arrays = read_arrays(path)
    training = Path(f"{path}.yml")
    stored = read_yaml(training) if training.is_file() else {}
    if STORED_OPTIONS in arrays:
        text = arrays.pop(STORED_OPTIONS).tobytes().split(b"\0", 1)[0]
        stored |= parse_yaml(text, f"{STORED_OPTIONS} of {path}")
    elif not stored:
        raise ValueError(f"{path} must contain the model's options as {STORED_OPTIONS}, or {training.name} must exist.")
    return {name: as_tensor(name, array, path) for name, array in arrays.items()}, parse_options(stored)


def as_tensor(name: str, array: np.ndarray, path: Path) -> Tensor:
    """An array with the shape of this model's parameters: matrices transposed, vectors without the first dimension."""
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} of {path} must be an array of floats, not quantized, got {array.dtype}.")
    weight = torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    if weight.dim() == 2 and IS_MATRIX.fullmatch(name):
        return weight.T
    return weight.flatten() if weight.dim() == 2 and len(weight) == 1 else weight


def parse_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options and convert their values.

    Raises:
        ValueError: an option is missing, or has a value that this model does not support. The message names both.
    """
    zeros = [name for name, _ in SAME if stored.get(name) == 0]
    options = read_options({name: stored[name] for name in stored if name not in zeros}, OPTIONS, SAME)
    version = VERSION.match(str(options.get("version", "")))
    is_recent = version is not None and tuple(map(int, version.groups())) > LAST_APPROXIMATE_GELU
    if options["transformer-ffn-activation"] == "gelu" and not is_recent:
        options["transformer-ffn-activation"] = APPROXIMATE_GELU
    sublayer = ("transformer-preprocess", "transformer-postprocess")
    order = NORM_ORDERS.get((options[sublayer[0]], options[sublayer[1]]))
    if order is None:
        found = " and ".join(format_value(stored.get(name, "")) for name in sublayer)
        allowed = "'' and 'dan' (post-norm) or 'n' and 'da' (pre-norm)"
        raise ValueError(f"{' and '.join(sublayer)} must be {allowed}, got {found}.")
    if order == "pre" and "transformer-postprocess-top" not in stored:
        reason = "before version 1.10, Marian did not normalize the keys and values of pre-norm models"
        allowed = "stored with transformer-preprocess='n'"
        raise ValueError(f"transformer-postprocess-top must be {allowed}, but it is missing: {reason}.")
    return {**options, "norm_order": order}


def convert_weights(
    weights: Mapping[str, Tensor], options: Mapping[str, Any], origin: str, eos_token_id: int, unk_token_id: int
) -> Converted:
    """Convert weights with these options. Arguments and errors are those of `from_marian_npz`."""
    mapper = StateDictMapper(origin, weights)
    mapper.derive_options(OPTIONS, options)
    mapper.derive_config("transformer-preprocess, transformer-postprocess", norm_order=options["norm_order"])
    mapper.derive_config("Marian", layer_norm_eps=EPSILON)
    map_vocabulary(mapper, options, eos_token_id)
    # Both stacks share the positions. Marian adds trained ones to embeddings that are not scaled.
    learned = options["transformer-train-position-embeddings"] or options["transformer-train-positions"]
    mapper.derive_config("transformer-train-position-embeddings", scale_embedding=not learned)
    learn_positions(mapper, ("Wpos", "Wpos") if learned else (None, None), POSITIONS, origin="Marian")
    mapper.rename(weight_names(options))
    model = mapper.finish()
    model.generation_config.suppress_tokens = [unk_token_id]
    return model, mapper.report


def embedding_names(options: Mapping[str, Any]) -> tuple[str, str]:
    shared = options["tied-embeddings-all"] or options["tied-embeddings-src"]
    return ("Wemb", "Wemb") if shared else ("encoder_Wemb", "decoder_Wemb")


def map_vocabulary(mapper: StateDictMapper, options: Mapping[str, Any], eos_token_id: int) -> None:
    """Map the embeddings and the output layer, with one more id for padding, whose embedding is zero."""
    source, target = embedding_names(options)
    tied = options["tied-embeddings-all"] or options["tied-embeddings"]
    legacy = f"{OUTPUT}_W"  # of old versions
    output = legacy if legacy in mapper.remaining and not tied else f"{OUTPUT}_Wt"
    sizes = [len(mapper.peek(name, dims=2)) for name in (source, target)]
    rows = pad_rows(sizes[0], sizes[1], more=1)
    bias = None if options["output-omit-bias"] else f"{OUTPUT}_b"
    map_embeddings(mapper, source, None if source == target else target, None if tied else output, bias, rows)
    pad = len(rows[0]) - 1
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad}
    mapper.derive_config("the added id, whose embedding is zero as Marian's first decoder input", **ids)
    mapper.derive_config("</s> of the vocabulary", eos_token_id=eos_token_id)
    mapper.derive_config("Marian, which has no <s>", bos_token_id=None)


def weight_names(options: Mapping[str, Any]) -> dict[str, str]:
    """Marian's names of the weights of all layers, which it counts from 1, and the parameters."""
    suffix = "_pre" if options["norm_order"] == "pre" else ""
    names: dict[str, str] = {}
    for stack, depth in (("encoder", "enc-depth"), ("decoder", "dec-depth")):
        linears = {f"ffn_{{}}{number}": f"fc{number}" for number in "12"}
        norms = {"ffn_ffn": "final_layer_norm"}
        for sublayer, module in ATTENTIONS[stack].items():
            linears |= {f"{sublayer}_{{}}{letter}": f"{module}.{name}" for letter, name in PROJECTIONS.items()}
            norms[f"{sublayer}_Wo"] = f"{module}_layer_norm"
        for i in range(options[depth]):
            source, target = f"{stack}_l{i + 1}", f"model.{stack}.layers.{i}"
            for kind, parameter in PARAMETERS:
                names |= {f"{source}_{name.format(kind)}": f"{target}.{linears[name]}.{parameter}" for name in linears}
            for kind, parameter in NORM_PARAMETERS:
                names |= {f"{source}_{name}_{kind}{suffix}": f"{target}.{norms[name]}.{parameter}" for name in norms}
        for kind, parameter in NORM_PARAMETERS if options["transformer-postprocess-top"] else ():
            names[f"{stack}_top_{kind}"] = f"model.{stack}.layer_norm.{parameter}"
    return names


def set_search_options(config: GenerationConfig, decoder: Mapping[str, Any], report: ConversionReport) -> None:
    """Copy the beam size and the length normalization of Marian's search, and whether it may return `<unk>`.

    `length_penalty` requires more than one beam. Without `beam-size`, Marian would use 12 beams; this model has one.
    """
    beams, normalize = decoder.get("beam-size"), decoder.get("normalize")
    copied = {}
    if is_size(beams, MAX_BEAMS):
        copied["beam-size"] = config.num_beams = beams
    if is_number(normalize) and abs(normalize) <= sys.float_info.max and (config.num_beams or 1) > 1:
        copied["normalize"] = config.length_penalty = float(normalize)
    if decoder.get("allow-unk") is True:
        copied["allow-unk"], config.suppress_tokens = True, None
    report.notes += [f"{name}={value} of the search was copied." for name, value in copied.items()]
    report.notes += [
        f"{name}={format_value(decoder[name])} of the search has no counterpart and was dropped."
        for name in ("beam-size", "normalize", "word-penalty", "allow-unk")
        if decoder.get(name) and name not in copied
    ]

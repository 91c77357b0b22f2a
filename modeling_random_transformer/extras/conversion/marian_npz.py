"""Converts Marian's own model files, as published by OPUS-MT and for Firefox Translations."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from ...base.errors import format_value
from ...base.files import StrPath
from ...configuration_random_transformer import is_number
from ...inputs_random_transformer import MAX_HYPOTHESES
from .embeddings import check_ids, learn_positions, map_embeddings
from .marian_npz_files import EOS, UNK, find_files, find_model, read_vocabularies, save_marian_tokenizer
from .options import Kind, Options, invalid, is_size, read_format, read_options
from .untrusted import Weights, parse_yaml, read_arrays, read_yaml
from .weights import ConversionReport, Converted, StateDictMapper, save_conversion

STORED_OPTIONS = "special:model.yml"  # a string in an array of int8, which ends with a zero byte
EPSILON = 1e-6
OUTPUT_LAYER = "decoder_ff_logit_out"
# Parameters of which the first axis is that of the inputs; others are [1, width] or [rows, width].
IS_MATRIX = re.compile(rf".*_W[qkvo12]|{OUTPUT_LAYER}_W")
NORM = re.compile(r".*\{number\}.*_ln_(scale|bias)")  # names of the layer norms; "_pre" follows in models with pre-norm
# Operations before and after a sublayer: `a` is the residual connection and `n` a layer norm. `d` is dropout, which is
# removed, as it affects training only.
NORM_ORDERS = {("", "an"): "post", ("n", "a"): "pre"}
OPERATIONS = Kind("a string of operations", lambda value: isinstance(value, str), lambda value: value.replace("d", ""))
TOP = Kind("'' or 'n'", lambda value: value in ("", "d", "n", "dn", "nd"), lambda value: "n" in value)
SEQUENCES = Kind("'sequence' for each input", lambda value: value in ([], ["sequence"], ["sequence", "sequence"]))
DROPOUT = Kind("'d' or ''", lambda value: value in ("d", ""))
FORMAT = read_format(__file__, operations=OPERATIONS, top=TOP, dropout=DROPOUT, sequences=SEQUENCES)


def from_marian_npz(model: StrPath, *, eos_token_id: int = 0, unk_token_id: int = 1) -> Converted:
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
    return convert_weights(weights, options, path, eos_token_id, unk_token_id)


def convert_marian_npz(
    model: StrPath,
    output: StrPath,
    *,
    vocabs: Sequence[StrPath] = (),
    spm: Sequence[StrPath] = (),
    overwrite: bool = False,
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
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_marian_npz`; or a vocabulary is missing, damaged or does not match the embedding. In this
            case, nothing is written.
    """
    path = find_model(Path(model))
    files = find_files(path, [*map(Path, vocabs)], [*map(Path, spm)])
    weights, options = read_npz(path)
    vocabularies = read_vocabularies(files)
    eos_token_id = 0
    unk_token_id = 1
    if vocabularies:
        eos_token_id = vocabularies[1][EOS]
        unk_token_id = vocabularies[1][UNK]
    converted = convert_weights(weights, options, path, eos_token_id, unk_token_id)
    for file, ids, name in zip(files.vocabs or (), vocabularies or (), embedding_names(options), strict=False):
        check_ids(file, ids.values(), len(weights[name]))
    model, report = converted
    set_search_options(model.generation_config, files.decoder, report)
    report.save_tokenizer = partial(save_marian_tokenizer, vocabularies, files.spm)
    return save_conversion(output, converted, overwrite)


def read_npz(path: Path) -> tuple[Weights, Options]:
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
        content = arrays.pop(STORED_OPTIONS).tobytes()
        text, _, _ = content.partition(b"\0")
        stored |= parse_yaml(text, f"{STORED_OPTIONS} of {path}")
    elif not stored:
        raise ValueError(f"{path} must contain the model's options as {STORED_OPTIONS}, or {training.name} must exist.")
    weights = {name: as_tensor(name, array, path) for name, array in arrays.items()}
    return weights, parse_options(stored)


def as_tensor(name: str, array: np.ndarray, path: Path) -> Tensor:
    """An array with the shape of this model's parameters: matrices transposed, vectors without the first dimension."""
    dtype = array.dtype
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError(f"{name} of {path} must be an array of floats, not quantized, got {dtype}.")
    native = np.ascontiguousarray(array, dtype.newbyteorder("="))
    weight = torch.from_numpy(native)
    if weight.dim() != 2:
        return weight
    if IS_MATRIX.fullmatch(name):
        return weight.T
    return weight.flatten() if len(weight) == 1 else weight


def parse_options(stored: Options) -> Options:
    """Check the options and convert their values.

    Raises:
        ValueError: an option is missing, or has a value that this model does not support. The message names both.
    """
    decided = {name: value for name, value in stored.items() if not (name in FORMAT.same and value == 0)}
    options = read_options(decided, FORMAT)
    order = NORM_ORDERS.get((options["transformer-preprocess"], options["transformer-postprocess"]))
    if order is None:
        preprocess = format_value(stored.get("transformer-preprocess", ""))
        postprocess = format_value(stored.get("transformer-postprocess", ""))
        raise ValueError(
            "transformer-preprocess and transformer-postprocess must be '' and 'dan' (post-norm) or 'n' and 'da' "
            f"(pre-norm), got {preprocess} and {postprocess}."
        )
    if order == "pre" and "transformer-postprocess-top" not in stored:
        raise ValueError(
            "transformer-postprocess-top must be stored with transformer-preprocess='n', but it is missing: before "
            "version 1.10, Marian did not normalize the keys and values of pre-norm models."
        )
    return {**options, "norm_order": order}


def convert_weights(
    weights: Weights, options: Options, origin: Path, eos_token_id: int, unk_token_id: int
) -> Converted:
    """Convert weights with these options. Arguments and errors are those of `from_marian_npz`."""
    mapper = StateDictMapper(origin, weights)
    mapper.derive_options(FORMAT, options)
    mapper.derive_config("transformer-preprocess, transformer-postprocess", norm_order=options["norm_order"])
    mapper.derive_config("Marian", layer_norm_eps=EPSILON)
    map_vocabulary(mapper, options, eos_token_id)
    # Both stacks share the positions. With trained positions, Marian does not scale the embeddings.
    learned = options["transformer-train-position-embeddings"] or options["transformer-train-positions"]
    mapper.derive_config("transformer-train-position-embeddings", scale_embedding=not learned)
    learn_positions(mapper, ("Wpos", "Wpos") if learned else (None, None), origin="Marian")
    names = FORMAT.names
    if options["norm_order"] == "pre":
        names = {NORM.sub(r"\g<0>_pre", name): target for name, target in names.items()}
    mapper.rename(names)
    model = mapper.finish()
    model.generation_config.suppress_tokens = [unk_token_id]
    return model, mapper.report


def embedding_names(options: Options) -> tuple[str, str]:
    shared = options["tied-embeddings-all"] or options["tied-embeddings-src"]
    return ("Wemb", "Wemb") if shared else ("encoder_Wemb", "decoder_Wemb")


def map_vocabulary(mapper: StateDictMapper, options: Options, eos_token_id: int) -> None:
    """Map the embeddings and the output layer, with one more id for padding, whose embedding is zero."""
    source, target = embedding_names(options)
    rows = [len(mapper.peek(name)) for name in (source, target)]
    sizes = options.get("dim-vocabs", rows)
    if sizes != rows:  # a factored vocabulary has rows of lemmas and factors instead of tokens
        raise invalid("dim-vocabs", f"the rows of the embeddings, {rows}", sizes)
    output: str | None = f"{OUTPUT_LAYER}_Wt"
    if options["tied-embeddings-all"] or options["tied-embeddings"]:
        output = None
    elif f"{OUTPUT_LAYER}_W" in mapper.remaining:  # name in old versions
        output = f"{OUTPUT_LAYER}_W"
    bias = None if options["output-omit-bias"] else f"{OUTPUT_LAYER}_b"
    map_embeddings(mapper, source, None if source == target else target, output, bias, added=1)
    pad = mapper.config_fields["vocab_size"] - 1
    mapper.derive_config(
        "the added id, whose embedding is zero as Marian's first decoder input",
        pad_token_id=pad,
        decoder_start_token_id=pad,
    )
    mapper.derive_config("</s> of the vocabulary", eos_token_id=eos_token_id)
    mapper.derive_config("Marian, which has no <s>", bos_token_id=None)


def set_search_options(config: GenerationConfig, decoder: Options, report: ConversionReport) -> None:
    """Copy the beam size and the length normalization of Marian's search, and whether it may return `<unk>`.

    `length_penalty` requires more than one beam. Without `beam-size`, Marian would use 12 beams; this model has one.
    """
    beams = decoder.get("beam-size")
    normalize = decoder.get("normalize")
    copied = []
    if is_size(beams, MAX_HYPOTHESES):
        config.num_beams = beams
        copied.append("beam-size")
    if is_number(normalize) and abs(normalize) <= sys.float_info.max and (config.num_beams or 1) > 1:
        config.length_penalty = float(normalize)
        copied.append("normalize")
    if decoder.get("allow-unk") is True:
        config.suppress_tokens = None
        copied.append("allow-unk")
    for name in ("beam-size", "normalize", "word-penalty", "allow-unk"):
        if decoder.get(name):
            result = "was copied" if name in copied else "has no counterpart and was dropped"
            report.notes.append(f"{name}={format_value(decoder[name])} of the search {result}.")

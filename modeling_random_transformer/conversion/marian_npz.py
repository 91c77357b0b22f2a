"""Converts Marian's own model files, as published by OPUS-MT and for Firefox Translations."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor
from transformers import GenerationConfig

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.atomic_files import new_folder
from ..utils.errors import format_value
from .embeddings import NO_ROW, Rows, map_embeddings
from .marian_npz_files import NpzFiles, find_files, find_model
from .marian_npz_npz import read_npz
from .marian_npz_options import NpzOptions, parse_options
from .marian_npz_vocabularies import Vocabularies, check_vocabulary, read_vocabularies, save_tokenizer
from .positions import tensor2tensor_sinusoids
from .report import ConversionReport
from .state_dict_mapper import StateDictMapper

POSITIONS = 1024  # of computed sinusoids; marian-decoder reads at most 1000 tokens by default
EPSILON = 1e-6
MAX_BEAMS = 1000
SHARED, SOURCE, TARGET, POSITION_TABLE = "Wemb", "encoder_Wemb", "decoder_Wemb", "Wpos"
OUTPUT = "decoder_ff_logit_out"
# Sublayers in Marian and their modules here, by stack.
ATTENTIONS = {"encoder": {"self": "self_attn"}, "decoder": {"self": "self_attn", "context": "encoder_attn"}}
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


def from_marian_npz(
    model: str | Path, *, eos_token_id: int = 0, unk_token_id: int = 1
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
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
    return convert_weights(weights, parse_options(options), str(path), eos_token_id, unk_token_id)


def convert_marian_npz(
    model: str | Path,
    output: str | Path,
    *,
    vocabs: Sequence[str | Path] = (),
    spm: Sequence[str | Path] = (),
) -> ConversionReport:
    """Convert a `.npz` file of Marian to a folder, with a `MarianTokenizer` if there are SentencePiece models.

    Files that are not given are found next to the model: the vocabularies, which `decoder.yml` may name; the
    SentencePiece models `source.spm` and `target.spm`; and the options of the search in `decoder.yml`.

    Args:
        model: the file, or a folder with one such file.
        output: a new or empty folder.
        vocabs: one vocabulary, or that of the source and that of the target: `.yml` files of tokens and ids, or
            SentencePiece models (`.spm`).
        spm: the SentencePiece models of source and target, or one for both, for vocabularies in `.yml` files.

    Raises:
        ValueError: see `from_marian_npz`; or a vocabulary is missing, damaged or does not match the embedding. In this
            case, nothing is written.
    """
    path = find_model(Path(model))
    files = find_files(path, [Path(file) for file in vocabs], [Path(file) for file in spm])
    weights, stored = read_npz(path)
    options = parse_options(stored)
    vocabularies = read_vocabularies(files)
    if vocabularies is not None:
        check_vocabularies(vocabularies, files, weights, options)
    with new_folder(output) as temporary:
        eos, unk = (vocabularies.eos_token_id, vocabularies.unk_token_id) if vocabularies else (0, 1)
        converted, report = convert_weights(weights, options, str(path), eos, unk)
        set_search_options(converted.generation_config, files.decoder, report)
        converted.save_pretrained(temporary)
        save_tokenizer(vocabularies, temporary, converted.config, report)
    return report


def convert_weights(
    weights: Mapping[str, Tensor], options: NpzOptions, origin: str, eos_token_id: int, unk_token_id: int
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert weights with these options. Arguments and errors are those of `from_marian_npz`."""
    mapper = StateDictMapper(origin, weights, title="Marian transformer")
    derive_config(mapper, options)
    map_vocabulary(mapper, options, eos_token_id)
    map_positions(mapper, options)
    for stack, layers in (("encoder", options.encoder_layers), ("decoder", options.decoder_layers)):
        for i in range(layers):
            map_layer(mapper, options, stack, i)
        if options.final_norm:
            map_norm(mapper, f"{stack}_top", "", f"model.{stack}.layer_norm")
    model = mapper.finish()
    model.generation_config.suppress_tokens = [unk_token_id]
    return model, mapper.report


def derive_config(mapper: StateDictMapper, options: NpzOptions) -> None:
    """Derive all config fields except those of embeddings and positions."""
    mapper.derive_config("dim-emb", d_model=options.d_model)
    mapper.derive_config("transformer-dim-ffn", d_ff=options.d_ff)
    mapper.derive_config("transformer-heads", num_heads=options.num_heads)
    mapper.derive_config("enc-depth", encoder_layers=options.encoder_layers)
    mapper.derive_config("dec-depth", decoder_layers=options.decoder_layers)
    mapper.derive_config("transformer-ffn-activation, version", activation_function=options.activation)
    mapper.derive_config("transformer-preprocess, transformer-postprocess", norm_order=options.norm_order)
    mapper.derive_config("transformer-postprocess-top", final_layer_norm=options.final_norm)
    mapper.derive_config("Marian", layer_norm_eps=EPSILON)
    for name, rate in options.dropout.items():
        mapper.derive_config("the options of the training", **{name: rate})


def map_vocabulary(mapper: StateDictMapper, options: NpzOptions, eos_token_id: int) -> None:
    """Map the embeddings and the output layer, with one more id for padding."""
    source, target = (SHARED, None) if options.share_embeddings else (SOURCE, TARGET)
    legacy = f"{OUTPUT}_W"  # of old versions, transposed
    output = f"{OUTPUT}_Wt"
    if legacy in mapper.remaining and not options.tie_output:
        output = legacy
        mapper.remaining[legacy] = mapper.peek(legacy, dims=2).T
    rows = rows_with_padding(*(len(mapper.peek(name, dims=2)) for name in (source, target or source)))
    pad = len(rows[0]) - 1
    map_embeddings(
        mapper,
        source,
        target,
        None if options.tie_output else output,
        f"{OUTPUT}_b" if options.output_bias else None,
        rows=rows,
    )
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad}
    mapper.derive_config("the added id, whose embedding is zero as Marian's first decoder input", **ids)
    mapper.derive_config("</s> of the vocabulary", eos_token_id=eos_token_id)
    mapper.derive_config("Marian, which has no <s>", bos_token_id=None)


def rows_with_padding(source: int, target: int) -> Rows:
    """The row of each id in tables of these sizes. One more id, the last, has no row: its embedding is zero."""
    size = max(source, target) + 1
    first, second = ([*range(rows), *[NO_ROW] * (size - rows)] for rows in (source, target))
    return first, second


def map_positions(mapper: StateDictMapper, options: NpzOptions) -> None:
    """Map positions to a table of learned or sinusoidal positions, which both stacks share in Marian.

    Marian adds trained positions to embeddings that are not scaled.
    """
    notes = mapper.report.notes
    mapper.derive_config("transformer-train-position-embeddings", scale_embedding=not options.learned_positions)
    if options.learned_positions:
        table = mapper.pop(POSITION_TABLE, dims=2)
    else:
        table = tensor2tensor_sinusoids(POSITIONS, options.d_model, "dim-emb")
        notes.append(
            "Marian's sinusoids differ from this model's (their frequencies are spaced by d_model / 2 - 1). Their "
            "values became a table of learned positions, which training updates."
        )
    for stack in ATTENTIONS:
        name = f"model.{stack}.embed_positions.weight"
        if options.learned_positions:
            mapper.set(name, table, POSITION_TABLE)
        else:
            mapper.default(name, table.clone(), "Marian's sinusoids")
    mapper.derive_config("the positions of both stacks", position_embedding="learned")
    mapper.derive_config("their number", max_position_embeddings=len(table))
    notes.append(f"Texts can have at most {len(table)} tokens, the number of positions.")


def map_layer(mapper: StateDictMapper, options: NpzOptions, stack: str, i: int) -> None:
    """Map the weights of layer `i`, counted from 0; Marian counts from 1."""
    source, target = f"{stack}_l{i + 1}", f"model.{stack}.layers.{i}"
    suffix = "_pre" if options.norm_order == "pre" else ""
    for sublayer, module in ATTENTIONS[stack].items():
        for letter, projection in PROJECTIONS.items():
            map_linear(mapper, f"{source}_{sublayer}", letter, f"{target}.{module}.{projection}")
        map_norm(mapper, f"{source}_{sublayer}_Wo", suffix, f"{target}.{module}_layer_norm")
    for number in "12":
        map_linear(mapper, f"{source}_ffn", number, f"{target}.fc{number}")
    map_norm(mapper, f"{source}_ffn_ffn", suffix, f"{target}.final_layer_norm")


def map_linear(mapper: StateDictMapper, prefix: str, suffix: str, target: str) -> None:
    """Map a linear layer: Marian's matrices are `[in, out]`, its biases `[1, out]`."""
    weight, bias = f"{prefix}_W{suffix}", f"{prefix}_b{suffix}"
    mapper.set(f"{target}.weight", mapper.pop(weight, dims=2).T, weight, "transposed")
    mapper.set(f"{target}.bias", mapper.pop(bias).flatten(), bias)


def map_norm(mapper: StateDictMapper, prefix: str, suffix: str, target: str) -> None:
    """Map a layer norm, whose parameters are `[1, d_model]`."""
    for name, parameter in (("scale", "weight"), ("bias", "bias")):
        source = f"{prefix}_ln_{name}{suffix}"
        mapper.set(f"{target}.{parameter}", mapper.pop(source).flatten(), source)


def check_vocabularies(
    vocabularies: Vocabularies, files: NpzFiles, weights: Mapping[str, Tensor], options: NpzOptions
) -> None:
    """Raise a `ValueError` unless each vocabulary matches its embedding."""
    names = (SHARED, SHARED) if options.share_embeddings else (SOURCE, TARGET)
    sides = zip((vocabularies.source, vocabularies.target), names, files.vocabs or (), strict=True)
    for ids, name, path in sides:
        if name in weights and weights[name].dim():
            check_vocabulary(ids, len(weights[name]), path)


def set_search_options(config: GenerationConfig, decoder: Mapping[str, Any], report: ConversionReport) -> None:
    """Copy the beam size and the length normalization of Marian's search, and whether it may return `<unk>`.

    `length_penalty` requires more than one beam. Without `beam-size`, Marian would use 12 beams; this model has one.
    """
    beams, normalize = decoder.get("beam-size"), decoder.get("normalize")
    if is_number(beams) and isinstance(beams, int) and 0 < beams <= MAX_BEAMS:
        config.num_beams = beams
        report.notes.append(f"num_beams={beams} is beam-size of the options of the search.")
    elif beams is not None:
        report.notes.append(
            f"beam-size={format_value(beams)} of the search was dropped: it must be an integer from 1 to {MAX_BEAMS}."
        )
    if is_number(normalize) and (config.num_beams or 1) > 1:
        config.length_penalty = float(normalize)
        report.notes.append(f"length_penalty={config.length_penalty} is normalize of the options of the search.")
    elif normalize is not None:
        report.notes.append(
            f"normalize={format_value(normalize)} of the search was dropped: it must be a finite number, with a "
            "beam-size above 1."
        )
    if decoder.get("allow-unk") is True:
        config.suppress_tokens = None
        report.notes.append("generate() may return <unk>, as the options of the search have allow-unk.")
    else:
        report.notes.append("As in Marian, generate() never returns <unk>.")
    if decoder.get("word-penalty"):
        report.notes.append(f"word-penalty={format_value(decoder['word-penalty'])} of the search was dropped.")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value of YAML is a finite number. In Python, true and false are integers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

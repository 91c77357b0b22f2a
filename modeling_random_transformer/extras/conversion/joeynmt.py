"""Converts models of JoeyNMT 2: a checkpoint, and the configuration, vocabularies and tokenizer model next to it."""

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import normalizers
from transformers import GenerationConfig

from ...base.errors import format_value
from .embeddings import map_embeddings
from .joined_tokenizer import JoinedTokenizer, find_file, join_files, read_tokens
from .options import (
    FLAG,
    MAX_DEPTH,
    OFF,
    RATE,
    SIZE,
    TEXT,
    Kind,
    Option,
    equal,
    flatten,
    invalid,
    is_number,
    is_size,
    one_of,
    read_stacks,
)
from .untrusted import read_checkpoint, read_yaml, state_dict_in
from .weights import STACKS, ConversionReport, Converted, NameTable, StateDictMapper, save_conversion

CHECKPOINTS = ("best.ckpt", "latest.ckpt")  # in a model's folder, which JoeyNMT calls model_dir
SIDES = {"src": "encoder", "trg": "decoder"}
ATTENTIONS = {
    "encoder.layers.{i}.src_src_att": "model.encoder.layers.{i}.self_attn",
    "decoder.layers.{i}.trg_trg_att": "model.decoder.layers.{i}.self_attn",
    "decoder.layers.{i}.src_trg_att": "model.decoder.layers.{i}.encoder_attn",
}
NAMES: NameTable = {
    **{f"{source}.{{qkv}}_layer.{{p}}": f"{target}.{{qkv}}_proj.{{p}}" for source, target in ATTENTIONS.items()},
    **{f"{source}.output_layer.{{p}}": f"{target}.out_proj.{{p}}" for source, target in ATTENTIONS.items()},
    "{stack}.layers.{i}.feed_forward.pwff_layer.0.{p}": "model.{stack}.layers.{i}.fc1.{p}",
    "{stack}.layers.{i}.feed_forward.pwff_layer.3.{p}": "model.{stack}.layers.{i}.fc2.{p}",
    "encoder.layers.{i}.layer_norm.{p}": "model.encoder.layers.{i}.self_attn_layer_norm.{p}",
    "decoder.layers.{i}.x_layer_norm.{p}": "model.decoder.layers.{i}.self_attn_layer_norm.{p}",
    "decoder.layers.{i}.dec_layer_norm.{p}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "{stack}.layers.{i}.feed_forward.layer_norm.{p}": "model.{stack}.layers.{i}.final_layer_norm.{p}",
    "{stack}.layer_norm.{p}": "model.{stack}.layer_norm.{p}",
}
# The last linear module of each sub-layer, in the order of computation.
OUTPUTS = {"encoder": ("self_attn.out_proj", "fc2"), "decoder": ("self_attn.out_proj", "encoder_attn.out_proj", "fc2")}
DEEPNET = "xavier_normal"  # the initializer that implies DeepNet's factors of residual connections
SEGMENTATIONS = {"sentencepiece": "model_file", "subword-nmt": "codes"}  # and the option with the file
SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}  # with the ids 0 to 3, by default
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")  # JoeyNMT has one rate for all
MAX_BEAMS = 1000
MAX_EXPONENT = 60  # the largest divisor of a weight is exp(60), below the range of float32
FACTOR = Kind("a number from 0 to 1000000", lambda value: is_number(value) and 0 < value <= 1e6, float)
ID = Kind("an id", lambda value: is_number(value) and is_size(value + 1))
ACTIVATION = one_of({"relu": "relu", "gelu": "gelu", "swish": "silu"})
NORM_ORDER = one_of({"pre": "pre", "post": "post"})
# Options of both stacks, which must be equal: the defaults in the encoder and the decoder, and the field.
EQUAL_IN_STACKS: tuple[tuple[str, Kind, Any, Any, str], ...] = (
    ("num_heads", SIZE, 4, 8, "num_heads"),
    ("activation", ACTIVATION, "relu", "relu", "activation_function"),
    ("layer_norm", NORM_ORDER, "pre", "post", "norm_order"),
    ("embeddings.scale", FLAG, False, False, "scale_embedding"),
)
OPTIONS = (
    Option("model.encoder.type", equal("transformer"), "recurrent"),
    Option("model.decoder.type", equal("transformer"), "transformer"),
    *(Option(f"model.encoder.{name}", kind, default, (field,)) for name, kind, default, _, field in EQUAL_IN_STACKS),
    *(Option(f"model.decoder.{name}", kind, default) for name, kind, _, default, _ in EQUAL_IN_STACKS),
    *(Option(f"model.{stack}.alpha", FACTOR, 1.0) for stack in STACKS),
    Option("model.initializer", TEXT, "xavier_uniform"),
    Option("model.encoder.dropout", RATE, 0.1, DROPOUTS),
    *(Option(f"data.special_symbols.{name}_token", TEXT, token) for name, token in SPECIAL.items()),
    *(Option(f"data.special_symbols.{name}_id", ID, i) for i, name in enumerate(SPECIAL)),
    *(Option(f"data.special_symbols.{name}", OFF, None) for name in ("sep_token", "lang_tags")),  # of prompts
    *(Option(f"data.{side}.level", Kind("bpe or word", ("bpe", "word").__contains__)) for side in SIDES),
    *(Option(f"data.{side}.tokenizer_type", one_of({n: n for n in SEGMENTATIONS}), "sentencepiece") for side in SIDES),
    *(Option(f"data.{side}.tokenizer_cfg.{file}", TEXT, "") for side in SIDES for file in SEGMENTATIONS.values()),
    *(Option(f"data.{side}.tokenizer_cfg.separator", equal("@@"), "@@") for side in SIDES),
    *(Option(f"data.{side}.lowercase", FLAG, False) for side in SIDES),
)


def from_joeynmt(checkpoint: str | Path, tokenizer: JoinedTokenizer | None = None) -> Converted:
    """Convert the weights of a Transformer of JoeyNMT 2.

    DeepNet's factors of residual connections (`initializer: xavier_normal`) become part of the weights.

    Args:
        checkpoint: a `.ckpt` file with `config.yaml` next to it; or their folder, whose best checkpoint is converted.
        tokenizer: joins the two vocabularies. When `None`, token ids are those of JoeyNMT.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: a file is damaged or requires executing code; or an option or a weight has no counterpart in this
            model. The message names it.
    """
    path = find_checkpoint(Path(checkpoint))
    return convert_weights(path, read_config(path), tokenizer)


def convert_joeynmt(checkpoint: str | Path, output: str | Path) -> ConversionReport:
    """Convert a model of JoeyNMT to a folder, with a tokenizer if there are vocabularies.

    JoeyNMT writes all files to one folder: `config.yaml`, `src_vocab.txt`, `trg_vocab.txt`, and the SentencePiece model
    or the BPE codes.

    Args:
        checkpoint: a `.ckpt` file in this folder; or the folder, whose best checkpoint is converted.
        output: a new or empty folder.

    Raises:
        ValueError: see `from_joeynmt`; or a vocabulary does not match the model or the segmentation. In this case,
            nothing is written.
    """
    path = find_checkpoint(Path(checkpoint))
    options = read_config(path)
    tokenizer = make_tokenizer(path.parent, options)
    convert = partial(convert_weights, path, options, tokenizer)
    return save_conversion(output, convert, tokenizer.save if tokenizer else None)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path, or the best one in a folder, or else the latest one."""
    found = next((path / name for name in CHECKPOINTS if (path / name).is_file()), path)
    if not found.is_file():
        raise ValueError(f"checkpoint must be a file, or a folder with {' or '.join(CHECKPOINTS)}, got {str(path)!r}.")
    return found


def read_config(checkpoint: Path) -> dict[str, Any]:
    """The options in `config.yaml` by their paths, such as `model.encoder.num_heads`, with converted values.

    Raises:
        ValueError: an option has a value that this model does not support, or it differs between the stacks.
    """
    stored = flatten(read_yaml(checkpoint.parent / "config.yaml"))
    names = [name for name, *_ in EQUAL_IN_STACKS]
    if stored.get("model.tied_embeddings"):  # the decoder has the embeddings of the encoder, with their scale
        names.remove("embeddings.scale")
    return read_stacks(stored, OPTIONS, names)


def convert_weights(path: Path, options: Mapping[str, Any], tokenizer: JoinedTokenizer | None) -> Converted:
    """Convert a checkpoint with these options. Arguments and errors are those of `from_joeynmt`."""
    mapper = StateDictMapper(str(path), state_dict_in(read_checkpoint(path), str(path), "model_state"))
    mapper.derive_sizes("feed_forward.pwff_layer.0", "layer_norm")
    mapper.derive_options(OPTIONS, options)
    positions = {"position_embedding": "sinusoidal", "sinusoid_layout": "interleaved"}
    mapper.derive_config("JoeyNMT", layer_norm_eps=1e-6, **positions)
    mapper.ignore([f"{stack}.pe.pe" for stack in STACKS], "sinusoids, which are computed")
    ids = {name: options[f"data.special_symbols.{name}_id"] for name in SPECIAL}
    if tokenizer is not None:
        ids = {name: getattr(tokenizer.tokenizer, f"{name}_token_id") for name in SPECIAL}
    special = {f"{name}_token_id": ids[name] for name in ("pad", "bos", "eos")}
    mapper.derive_config("special_symbols", **special, decoder_start_token_id=ids["bos"])
    rows = (tokenizer.source_ids, tokenizer.target_ids) if tokenizer else None
    embeddings = ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
    map_embeddings(mapper, *embeddings, rows=rows, unk_token_id=ids["unk"])
    mapper.rename(NAMES)
    divide_by_factors(mapper, options)
    model = mapper.finish()
    set_search_options(model.generation_config, options, ids, mapper.report)
    return model, mapper.report


def divide_by_factors(mapper: StateDictMapper, options: Mapping[str, Any]) -> None:
    """Divide the outputs of sub-layers by factors of residual connections (DeepNet, Wang et al. 2022, section 3.2).

    As a layer norm ignores the scale of its input, LN(a x + f(x)) = LN(x + f(x) / a). With pre-norm, the scale of the
    residual stream grows by `a` with each sub-layer. Only the epsilon of the norms acts differently (below 1e-6).

    Raises:
        ValueError: the divisors are out of range.
    """
    layers = [mapper.config_fields[f"{stack}_layers"] for stack in STACKS]
    if max(layers) > MAX_DEPTH:
        return  # `finish` names the missing layers
    deepnet = (0.81 * (layers[0] ** 4 * layers[1]) ** (1 / 16), (3 * layers[1]) ** (1 / 4))
    for stack, implied in zip(STACKS, deepnet, strict=True):
        factor = implied if options["model.initializer"] == DEEPNET else options[f"model.{stack}.alpha"]
        if factor == 1:
            continue
        mapper.report.notes.append(f"The {stack}'s factor of residual connections, {factor:.4g}, divided the weights.")
        outputs = OUTPUTS[stack]
        pattern = re.compile(rf"model\.{stack}\.layers\.(\d+)\.({'|'.join(map(re.escape, outputs))})\.\w+")
        for name, weight in mapper.state_dict.items():
            if match := pattern.fullmatch(name):
                number = int(match[1]) * len(outputs) + outputs.index(match[2]) + 1
                exponent = math.log(factor) * (number if mapper.config_fields["norm_order"] == "pre" else 1)
                if abs(exponent) > MAX_EXPONENT:
                    raise invalid(f"model.{stack}.alpha", "nearer to 1 with this number of pre-norm layers", factor)
                mapper.state_dict[name] = weight / math.exp(exponent)


def set_search_options(
    config: GenerationConfig, options: Mapping[str, Any], ids: Mapping[str, int], report: ConversionReport
) -> None:
    """Copy the beam size. As in JoeyNMT, neither <pad> nor <s> is generated, nor </s> as the first token."""
    forbidden = ["pad", "bos", *(["unk"] if options.get("testing.generate_unk") is False else [])]
    config.suppress_tokens, config.min_new_tokens = [ids[name] for name in forbidden], 1
    beams, alpha = options.get("testing.beam_size"), options.get("testing.beam_alpha")
    if is_size(beams, MAX_BEAMS):
        config.num_beams = beams
        report.notes.append(f"testing.beam_size={beams} was copied.")
    if beams != 1 and is_number(alpha) and alpha > 0:
        reason = "JoeyNMT divides scores by ((5 + length) / 6)^alpha, generate() by length^length_penalty (default: 1)"
        report.notes.append(f"testing.beam_alpha={format_value(alpha)} was dropped: {reason}.")


def make_tokenizer(folder: Path, options: Mapping[str, Any]) -> JoinedTokenizer | None:
    """The tokenizer of the vocabularies in a folder; `None` if there are none.

    Raises:
        ValueError: a file is missing or damaged, or the two languages are segmented differently.
    """
    files = [folder / f"{side}_vocab.txt" for side in SIDES]
    if not all(file.is_file() for file in files):
        return None
    kind, other = (segmentation(options, side) for side in SIDES)
    if kind != other:
        raise invalid("data.trg.tokenizer_type", f"that of data.src, {kind}", other)
    special = {f"{name}_token": options[f"data.special_symbols.{name}_token"] for name in SPECIAL}
    source, target = (read_tokens(file, special, kind == "subword-nmt") for file in files)
    names = [options[f"data.{side}.tokenizer_cfg.{SEGMENTATIONS[kind]}"] for side in SIDES if kind in SEGMENTATIONS]
    made = join_files(kind == "sentencepiece", (find_file(folder, name) for name in names), source, target)
    if options["data.src.lowercase"]:
        backend = made.tokenizer.backend_tokenizer
        steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(steps)
    return made


def segmentation(options: Mapping[str, Any], side: str) -> str:
    return options[f"data.{side}.tokenizer_type"] if options[f"data.{side}.level"] == "bpe" else "word"

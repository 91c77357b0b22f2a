"""Converts models of eole, the successor of OpenNMT-py: the folder with weights, options, vocabulary and tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...base import read_json
from ...base.errors import format_value
from .embeddings import learn_positions, map_embeddings
from .joined_tokenizer import JoinedTokenizer, find_file, join_files, name_tokens
from .options import OFF, RATE, SIZE, Kind, Option, equal, flatten, invalid, is_number, one_of, read_stacks
from .untrusted import read_checkpoint
from .weights import STACKS, ConversionReport, Converted, NameTable, StateDictMapper, save_conversion

SIDES = {"encoder": "src", "decoder": "tgt"}
LAYER = "{stack}.transformer_layers.{i}"
PROJECTIONS = {"query": "q_proj", "keys": "k_proj", "values": "v_proj"}
ATTENTIONS = {
    **{f"self_attn.linear_{source}": f"self_attn.{target}" for source, target in PROJECTIONS.items()},
    **{f"context_attn.linear_{source}": f"encoder_attn.{target}" for source, target in PROJECTIONS.items()},
    "self_attn.final_linear": "self_attn.out_proj",
    "context_attn.final_linear": "encoder_attn.out_proj",
}
MODULES = ATTENTIONS | {
    "mlp.gate_up_proj": "fc1",
    "mlp.down_proj": "fc2",
    "input_layernorm": "self_attn_layer_norm",
    "precontext_layernorm": "encoder_attn_layer_norm",
    "post_attention_layernorm": "final_layer_norm",
}
NAMES: NameTable = {
    **{f"{LAYER}.{source}.{{p}}": f"model.{{stack}}.layers.{{i}}.{target}.{{p}}" for source, target in MODULES.items()},
    "{stack}.layer_norm.{p}": "model.{stack}.layer_norm.{p}",
}
EMBEDDINGS = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight", "generator.bias")
SPECIAL = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # the defaults
POSITIONS = 1024  # of sinusoids that this model does not compute
INTERLEAVED, CONCATENATED, LEARNED = "SinusoidalInterleaved", "SinusoidalConcat", "Learned"
POSITION = "model.embeddings.position_encoding_type"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "quick_gelu": "quick_gelu", "silu": "silu"}
NORM = Kind("'standard' or 'standardFP32'", ("standard", "standardFP32").__contains__)
EPSILON = Kind("a number above 0", lambda value: is_number(value) and 0 < value < 1, float)
RATES = Kind("a list of rates", lambda v: isinstance(v, list) and len(v) > 0 and RATE.accepts(v[-1]), lambda v: v[-1])
OFFSET = Kind("an integer", lambda value: value == 0 or SIZE.accepts(value))
# Options of stacks without a counterpart in this model; all are off by default.
UNSUPPORTED = (
    *("sliding_window", "relative_positions_buckets", "shared_layer_norm", "ffn_layernorm", "parallel_residual"),
    *("query_norm", "key_norm", "value_norm", "q_gating", "num_experts", "layer_types", "coverage_attn", "rope_config"),
    *("heads_kv", "head_dim", "attn_scaling"),
)
# Options of stacks: the allowed values, the default and the field. The stacks must have equal ones.
STACK_OPTIONS: tuple[tuple[str, Kind, Any, tuple[str, ...]], ...] = (
    ("heads", SIZE, 8, ("num_heads",)),
    ("mlp_activation_fn", one_of(ACTIVATIONS), "relu", ("activation_function",)),
    ("norm_eps", EPSILON, None, ("layer_norm_eps",)),
    ("layer_norm", NORM, "standard", ()),
)
OPTIONS = (
    Option("model.architecture", equal("transformer")),
    *(Option(f"model.{stack}.{stack}_type", equal("transformer"), "transformer") for stack in STACKS),
    Option("model.encoder.encoder_layer_style", equal("standard"), "standard"),
    Option("model.encoder.final_encoder_layer_norm", equal(True), True),
    *(Option(f"model.{stack}.{name}", OFF, None) for stack in STACKS for name in UNSUPPORTED),
    *(Option(f"model.encoder.{name}", kind, default, fields) for name, kind, default, fields in STACK_OPTIONS),
    *(Option(f"model.decoder.{name}", kind, default) for name, kind, default, _ in STACK_OPTIONS),
    Option("model.generator_function", equal("softmax"), "softmax"),
    Option("model.add_estimator", OFF, None),
    Option("model.embeddings.normalize", OFF, None),
    Option("model.embeddings.embedding_type", equal("standard"), "standard"),
    Option(POSITION, one_of({name: name for name in (INTERLEAVED, CONCATENATED, LEARNED)}), INTERLEAVED),
    Option("model.embeddings.position_shift", OFFSET, 0),
    Option("training.dropout", RATES, None, ("dropout", "activation_dropout")),
    Option("training.attention_dropout", RATES, None, ("attention_dropout",)),
)


def from_eole(folder: str | Path) -> Converted:
    """Convert the weights of a Transformer of eole. Token ids are those of the joined vocabulary (`convert_eole`).

    Args:
        folder: `config.json`, `vocab.json` and the weights, `model.00.safetensors`.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: a file is missing or damaged; or an option or a weight has no counterpart in this model. The message
            names it.
    """
    options = read_config(Path(folder))
    return convert_weights(Path(folder), options, make_tokenizer(Path(folder), options))


def convert_eole(folder: str | Path, output: str | Path) -> ConversionReport:
    """Convert a model of eole to a folder with a tokenizer.

    Two vocabularies become one, so that one `RandomTransformerTokenizer` encodes sources and targets. As in eole, no
    end token is appended to sources.

    Args:
        folder: the folder of the model or of one of its steps, with `config.json`, `vocab.json`, the weights, and the
            SentencePiece model or the BPE codes.
        output: a new or empty folder.

    Raises:
        ValueError: see `from_eole`; or a vocabulary does not match the segmentation. In this case, nothing is written.
    """
    options = read_config(Path(folder))
    made = make_tokenizer(Path(folder), options)
    report = save_conversion(output, lambda: convert_weights(Path(folder), options, made), made.save)
    report.notes.append(f"Transforms of the model: {format_value(options.get('transforms'))}.")
    return report


def read_config(folder: Path) -> dict[str, Any]:
    """The options in `config.json` by their paths, such as `model.encoder.heads`, with converted values.

    An option of the model is that of both stacks, unless they have their own.

    Raises:
        ValueError: an option has a value that this model does not support, or it differs between the stacks.
    """
    stored = flatten(read_json(folder / "config.json"))
    names = (*UNSUPPORTED, *(name for name, *_ in STACK_OPTIONS))
    common = {f"model.{stack}.{name}": stored.get(f"model.{name}") for stack in STACKS for name in names}
    return read_stacks({**common, **stored}, OPTIONS, (name for name, *_ in STACK_OPTIONS))


def convert_weights(folder: Path, options: Mapping[str, Any], made: JoinedTokenizer) -> Converted:
    """Convert the weights in a folder with these options. Errors are those of `from_eole`."""
    mapper = StateDictMapper(str(folder), read_weights(folder))
    mapper.derive_sizes("mlp.gate_up_proj", "layer_norm", ("transformer_layers", "transformer_layers"))
    mapper.derive_options(OPTIONS, options)
    if options["model.encoder.norm_eps"] is None:
        mapper.derive_config("norm_eps, the default since eole 0.2 (1e-6 before)", layer_norm_eps=1e-5)
    scalars = [name for name in mapper.remaining if name.endswith(".layer_scalar")]
    mapper.ignore(scalars, "not used by layers that attend to a source")
    mapper.rename(NAMES)
    mapper.complete_biases()
    buffers = [f"{side}_emb.pe.pe" for side in SIDES.values()]
    map_positions(mapper, "eole", options[POSITION], buffers, options["model.embeddings.position_shift"])
    return finish(mapper, EMBEDDINGS, made)


def finish(mapper: StateDictMapper, embeddings: tuple[str, ...], made: JoinedTokenizer) -> Converted:
    """Map the embeddings, of which only the first must be stored, and build the model."""
    mapper.derive_config("the original's layers", norm_order="pre")
    target, output, bias = (name if name in mapper.remaining else None for name in embeddings[1:])
    tokenizer, rows = made.tokenizer, (made.source_ids, made.target_ids)
    map_embeddings(mapper, embeddings[0], target, output, bias, rows, tokenizer.unk_token_id)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    mapper.derive_config("the vocabulary", **ids, decoder_start_token_id=tokenizer.bos_token_id)
    return mapper.finish(), mapper.report


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in all files of a folder.

    Raises:
        ValueError: there is no file.
    """
    files = sorted(folder.glob("model.*.safetensors"))
    if not files:
        raise ValueError(f"{folder} must contain the weights as model.00.safetensors, got none.")
    return {name: weight for file in files for name, weight in read_checkpoint(file).items()}


def map_positions(mapper: StateDictMapper, origin: str, kind: str | None, buffers: list[str], offset: int = 0) -> None:
    """Map positions of a kind. With sinusoids, embeddings are scaled, and `buffers` are the names of their values."""
    mapper.derive_config("the kind of positions", scale_embedding=kind in (INTERLEAVED, CONCATENATED))
    mapper.ignore(buffers, "sinusoids, which are computed")
    if kind == INTERLEAVED:
        mapper.derive_config(kind, position_embedding="sinusoidal", sinusoid_layout="interleaved")
    elif kind == CONCATENATED:
        learn_positions(mapper, (None, None), POSITIONS, origin=origin)
    elif kind == LEARNED:
        learn_positions(mapper, ("src_emb.pe.weight", "tgt_emb.pe.weight"), offset=offset, origin=origin)
    else:
        mapper.derive_config("the kind of positions", position_embedding="none")


def make_tokenizer(folder: Path, options: Mapping[str, Any]) -> JoinedTokenizer:
    """The tokenizer of the vocabularies. Errors are those of `join_sides`."""
    kind, path = choose_segmentation(options.get("transforms")), folder / "vocab.json"
    models = [options.get(f"transforms_configs.{kind}.{side}_subword_model") for side in SIDES.values()]
    return join_sides(folder, kind, models, {"specials": {}, **read_json(path)}, str(path))


def choose_segmentation(transforms: Any) -> str | None:
    """The transform that segments words, if there is one among the names."""
    named = transforms if isinstance(transforms, list) else []
    return next((kind for kind in ("sentencepiece", "bpe") if kind in named), None)


def join_sides(folder: Path, kind: Any, models: list[Any], stored: Mapping[str, Any], origin: str) -> JoinedTokenizer:
    """The tokenizer of two vocabularies, with the SentencePiece model or the BPE codes.

    Args:
        folder: contains the files of `models`, which are those of source and target.
        kind: sentencepiece, bpe or `None`.
        models: the stored paths, of any folder.
        stored: the vocabularies (see `name_sides`).
        origin: their file, for errors.

    Raises:
        ValueError: a file is missing or damaged, or the two languages have different SentencePiece models.
    """
    source, target = name_sides(stored, origin, kind == "bpe")
    files = (find_file(folder, path) for path in models if kind)
    return join_files(kind == "sentencepiece", files, source, target, source_eos=False)


def name_sides(stored: Mapping[str, Any], origin: str, as_pieces: bool) -> list[dict[str, int]]:
    """The ids of the tokens of source and target, in `src` and `tgt`. Sources may have no start and end token.

    Raises:
        ValueError: a value is invalid, or the decoder does not start from `<s>`.
    """
    for name, kind in {"src": list, "tgt": list, "specials": dict}.items():
        if not isinstance(stored.get(name), kind):
            raise invalid(f"{name} of {origin}", f"a {kind.__name__}", stored.get(name))
    special = {kind: str(stored["specials"].get(kind, token)) for kind, token in SPECIAL.items()}
    if stored.get("decoder_start_token", special["bos_token"]) != special["bos_token"]:
        raise invalid("decoder_start_token", format_value(special["bos_token"]), stored["decoder_start_token"])
    of_source = {kind: t for kind, t in special.items() if kind in ("pad_token", "unk_token") or t in stored["src"]}
    named = {"src": of_source, "tgt": special}
    return [name_tokens(f"{side} of {origin}", stored[side], names, as_pieces) for side, names in named.items()]

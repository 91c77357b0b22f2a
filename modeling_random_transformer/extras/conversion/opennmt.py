"""Converts checkpoints of OpenNMT-py 2 and 3, the predecessor of eole: weights, options and vocabularies in a file."""

from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...base.errors import format_value, reraise_as_value_error
from . import eole
from .joined_tokenizer import JoinedTokenizer
from .options import FLAG, OFF, SIZE, TEXT, Kind, Option, check_plain, equal, one_of, read_options
from .untrusted import PlainObject, read_checkpoint, state_dict_in
from .weights import STACKS, ConversionReport, Converted, NameTable, StateDictMapper, save_conversion

ENCODER, DECODER = "encoder.transformer.{i}", "decoder.transformer_layers.{i}"
FEED_FORWARD = {"feed_forward.w_1": "fc1", "feed_forward.w_2": "fc2", "feed_forward.layer_norm": "final_layer_norm"}
MODULES = eole.ATTENTIONS | FEED_FORWARD
NAMES: NameTable = {
    **{f"{ENCODER}.{source}.{{p}}": f"model.encoder.layers.{{i}}.{target}.{{p}}" for source, target in MODULES.items()},
    **{f"{DECODER}.{source}.{{p}}": f"model.decoder.layers.{{i}}.{target}.{{p}}" for source, target in MODULES.items()},
    f"{ENCODER}.layer_norm.{{p}}": "model.encoder.layers.{i}.self_attn_layer_norm.{p}",
    f"{DECODER}.layer_norm_1.{{p}}": "model.decoder.layers.{i}.self_attn_layer_norm.{p}",
    f"{DECODER}.layer_norm_2.{{p}}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "{stack}.layer_norm.{p}": "model.{stack}.layer_norm.{p}",
}
PREFIXES = [f"{stack}.embeddings.make_embedding" for stack in STACKS]
EMBEDDINGS = (*(f"{prefix}.emb_luts.0.weight" for prefix in PREFIXES), "generator.weight", "generator.bias")
TRANSFORMS = Kind("a set of names", lambda v: isinstance(v, set) and all(isinstance(n, str) for n in v), sorted)
# Options without a counterpart in this model; all are off by default.
UNSUPPORTED = (
    *("max_relative_positions", "relative_positions_buckets", "num_kv", "multiquery", "sliding_window", "num_experts"),
    *("parallel_residual", "copy_attn", "n_src_feats", "lora_layers", "lora_embedding", "quant_layers"),
)
OPTIONS = (
    Option("model_task", equal("seq2seq"), "seq2seq"),
    *(Option(f"{stack}_type", equal("transformer")) for stack in STACKS),
    *(Option(name, OFF, None) for name in UNSUPPORTED),
    Option("self_attn_type", one_of(dict.fromkeys(("scaled-dot", "scaled-dot-flash"))), "scaled-dot"),
    Option("layer_norm", equal("standard"), "standard"),
    Option("norm_eps", eole.EPSILON, 1e-6, ("layer_norm_eps",)),
    Option("heads", SIZE, 8, ("num_heads",)),
    Option("pos_ffn_activation_fn", one_of({"relu": "relu", "gelu": "gelu"}), "relu", ("activation_function",)),
    Option("position_encoding", FLAG, False),
    Option("position_encoding_type", one_of({n: n for n in (eole.INTERLEAVED, eole.CONCATENATED)}), eole.INTERLEAVED),
    Option("generator_function", equal("softmax"), "softmax"),
    Option("dropout", eole.RATES, None, ("dropout", "activation_dropout")),
    Option("attention_dropout", eole.RATES, None, ("attention_dropout",)),
    Option("_all_transform", TRANSFORMS, None),
    *(Option(f"{side}_subword_model", TEXT, None) for side in eole.SIDES.values()),
)

Stored = Mapping[str, Any]


def from_opennmt(checkpoint: str | Path) -> Converted:
    """Convert the weights of a Transformer of OpenNMT-py 2 or 3.

    Token ids are those of the joined vocabulary (`convert_opennmt`).

    Args:
        checkpoint: a `.pt` file, and the SentencePiece model or the BPE codes next to it.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: a file is missing, is damaged or requires executing code; or an option or a weight has no
            counterpart in this model. The message names it.
    """
    return convert_weights(*read_stored(Path(checkpoint)))


def convert_opennmt(checkpoint: str | Path, output: str | Path) -> ConversionReport:
    """Convert a checkpoint of OpenNMT-py 2 or 3 to a folder with a tokenizer.

    Two vocabularies become one, so that one `RandomTransformerTokenizer` encodes sources and targets. As in
    OpenNMT-py, no end token is appended to sources.

    Args:
        checkpoint: a `.pt` file, and the SentencePiece model or the BPE codes next to it.
        output: a new or empty folder.

    Raises:
        ValueError: see `from_opennmt`; or a vocabulary does not match the segmentation. In this case, nothing is
            written.
    """
    path, content, options, made = read_stored(Path(checkpoint))
    report = save_conversion(output, partial(convert_weights, path, content, options, made), made.save)
    report.notes.append(f"Transforms of the model: {format_value(options['_all_transform'])}.")
    return report


def read_stored(path: Path) -> tuple[Path, Stored, Stored, JoinedTokenizer]:
    """The path and the content of a checkpoint, its checked options, and the tokenizer.

    Raises:
        ValueError: this is not a checkpoint of OpenNMT-py, an option has a value that this model does not support, or
            the errors of `make_tokenizer`.
    """
    content = read_checkpoint(path)
    parts = content if isinstance(content, Mapping) else {}
    if not isinstance(parts.get("opt"), Namespace) or not isinstance(parts.get("vocab"), Mapping):
        raise ValueError(f"{path} must be a checkpoint of OpenNMT-py 2 or 3 with 'opt' and 'vocab', got none.")
    with reraise_as_value_error(f"'opt' of {path} must have options that this model supports"):
        check_plain(vars(parts["opt"]))
        options = read_options(vars(parts["opt"]), OPTIONS)
    return path, parts, options, make_tokenizer(path, parts["vocab"], options)


def convert_weights(path: Path, content: Stored, options: Stored, made: JoinedTokenizer) -> Converted:
    """Convert the weights of a checkpoint with these options. Errors are those of `from_opennmt`."""
    model, generator = (state_dict_in(content, str(path), key) for key in ("model", "generator"))
    output = {f"generator.{name.removeprefix('0.')}": weight for name, weight in generator.items()}
    mapper = StateDictMapper(str(path), {**model, **output})
    mapper.derive_sizes("feed_forward.w_1", "layer_norm", ("transformer", "transformer_layers"))
    mapper.derive_options(OPTIONS, options)
    mapper.rename(NAMES)
    mapper.complete_biases()
    kind = options["position_encoding_type"] if options["position_encoding"] else None
    eole.map_positions(mapper, "OpenNMT-py", kind, [f"{prefix}.pe.pe" for prefix in PREFIXES])
    return eole.finish(mapper, EMBEDDINGS, made)


def make_tokenizer(path: Path, vocabularies: Stored, options: Stored) -> JoinedTokenizer:
    """The tokenizer of the vocabularies. Errors are those of `join_sides`."""
    stored = {**vocabularies, "specials": {}}
    for side in eole.SIDES.values():
        if isinstance(stored.get(side), PlainObject):  # a TextMultiField of OpenNMT-py 2
            with reraise_as_value_error(f"{side} of {path} must be a field with a vocabulary, got an error"):
                stored[side] = stored[side].fields[0][1].vocab.itos
    source, target = (options[f"{side}_subword_model"] for side in eole.SIDES.values())
    kind = eole.choose_segmentation(options["_all_transform"])
    return eole.join_sides(path.parent, kind, [source, target or source], stored, str(path))

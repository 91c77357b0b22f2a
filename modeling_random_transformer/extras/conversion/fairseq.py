"""Converts fairseq's `transformer` checkpoints, with their dictionaries and BPE codes."""

import re
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...base.errors import format_names, format_value
from .embeddings import Rows, learn_positions, map_embeddings
from .joined_tokenizer import JoinedTokenizer, join_bpe, name_tokens, numbered_lines, read_codes
from .options import NEGATED, OFF, PRE_NORM, RATE, SIZE, TRAINING, Kind, Option, check_plain, one_of, read_options
from .untrusted import is_hidden, read_checkpoint, state_dict_in
from .weights import STACKS, ConversionReport, Converted, NameTable, StateDictMapper, save_conversion

FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
PAD, EOS, UNK = 1, 2, 3
OVERWRITES = " #fairseq:overwrite"  # the end of a dictionary's line
FIRST_POSITION = PAD + 1
DEFAULT_POSITIONS = 1024  # fairseq's default of max_source_positions and max_target_positions
NAMES: NameTable = {
    "{stack}.layers.{i}.{module}.{p}": "model.{stack}.layers.{i}.{module}.{p}",
    "{stack}.layer_norm.{p}": "model.{stack}.layer_norm.{p}",
    # Old checkpoints: one matrix for queries, keys and values, and numbered norms.
    "{stack}.layers.{i}.{attention}.in_proj_{p}": "model.{stack}.layers.{i}.{attention}.{qkv}_proj.{p}",
    "{stack}.layers.{i}.layer_norms.0.{p}": "model.{stack}.layers.{i}.self_attn_layer_norm.{p}",
    "encoder.layers.{i}.layer_norms.1.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
    "decoder.layers.{i}.layer_norms.1.{p}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "decoder.layers.{i}.layer_norms.2.{p}": "model.decoder.layers.{i}.final_layer_norm.{p}",
}
# fairseq's architectures with the same computation. Others, such as transformer_unidirectional, may have equal weights.
ARCHITECTURES = (
    *("transformer", "transformer_tiny", "transformer_iwslt_de_en", "transformer_align"),
    *("transformer_wmt_en_de", "transformer_wmt_en_de_big", "transformer_wmt_en_de_big_t2t"),
    *("transformer_vaswani_wmt_en_de_big", "transformer_vaswani_wmt_en_fr_big", "transformer_wmt_en_de_big_align"),
)
HINT = "(store 'transformer' if it only sets options of fairseq's transformer)"
ARCH = Kind(f"one of {', '.join(ARCHITECTURES)} {HINT}", lambda name: name in ARCHITECTURES)
# fairseq's activation names and transformers'.
ACTIVATIONS = {
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
# Options that change the computation and have no counterpart in this model; all are off by default.
STACK_OPTIONS = ("add_adapters", "recurrent_stacking", "factorized_embed_dim", "layers_to_keep", "xformers_att_config")
UNSUPPORTED = (
    *("adaptive_input", "adaptive_softmax_cutoff", "character_embeddings", "char_inputs", "layernorm_embedding"),
    *("merge_src_tgt_embed", "use_factorized_embedding", "base_layers", "cross_self_attention", "no_cross_attention"),
    *("no_decoder_final_norm", "scale_attn", "scale_heads", "scale_fc", "scale_resids"),
    *("quant_noise_pq", "quant_noise_scalar"),
    *(f"{stack}_{name}" for stack in STACKS for name in STACK_OPTIONS),
)
HEADS = Kind("given as a positive integer if encoder_attention_heads is not stored", SIZE.accepts)
OPTIONS = (
    Option("arch", ARCH, "transformer"),
    *(Option(name, OFF, None) for name in UNSUPPORTED),
    Option("num_heads", HEADS, fields=("num_heads",)),
    Option("activation_fn", one_of(ACTIVATIONS), "relu", ("activation_function",)),
    Option("encoder_normalize_before", PRE_NORM, False, ("norm_order",)),
    Option("no_scale_embedding", NEGATED, False, ("scale_embedding",)),
    Option("dropout", RATE, 0.1, ("dropout",)),
    Option("attention_dropout", RATE, 0.0, ("attention_dropout",)),
    Option("activation_dropout", RATE, 0.0, ("activation_dropout",)),
    *(Option(f"{stack}_layerdrop", TRAINING, 0.0) for stack in STACKS),
    Option("max_source_positions", SIZE, DEFAULT_POSITIONS),
    Option("max_target_positions", SIZE, DEFAULT_POSITIONS),
)
EQUAL_IN_STACKS = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")
SAME = (
    ("num_heads", "encoder_attention_heads"),
    *((f"decoder_{name}", f"encoder_{name}") for name in EQUAL_IN_STACKS),
    ("decoder_input_dim", "decoder_embed_dim"),
    ("decoder_output_dim", "decoder_embed_dim"),
)
DICTIONARIES = "dict.<language>.txt"
DICTIONARY = re.compile(r"dict\.(?P<language>.+)\.txt")
CODES = re.compile(r"(.*[._-])?(bpe)?codes?([._-].+)?")
FILES = re.compile(f"{DICTIONARY.pattern}|{CODES.pattern}")  # files that `convert_fairseq` finds

Languages = tuple[str, str]  # of the source and the target


def from_fairseq(
    checkpoint: str | Path | Mapping[str, Any], *, num_heads: int | None = None, fairseq_ids: Rows | None = None
) -> Converted:
    """Convert the weights of a fairseq `transformer`.

    fairseq's sinusoids use other frequencies (their logarithms are spaced by `d_model / 2 - 1`), so their values become
    a table of learned positions. Dictionaries of different sizes are padded to one size, unless `fairseq_ids`
    specifies their common tokens.

    Args:
        checkpoint: a `.pt` file or its content: `"model"`, and `"args"` or `"cfg"`.
        num_heads: number of attention heads, if the checkpoint does not store it.
        fairseq_ids: for each token id of this model, fairseq's id in the source and in the target dictionary:
            `source_ids` and `target_ids` of a `JoinedTokenizer`. When `None`, the ids of fairseq are used.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: the file is damaged, is not a fairseq checkpoint or requires executing code; or an option or a
            weight has no counterpart in this model, or a dictionary and its embedding differ in size. The message
            names it.
    """
    origin = "the fairseq checkpoint" if isinstance(checkpoint, Mapping) else str(checkpoint)
    content = checkpoint if isinstance(checkpoint, Mapping) else read_checkpoint(checkpoint)
    return convert_weights(content, read_stored(content, origin, num_heads), origin, fairseq_ids)


def convert_fairseq(
    checkpoint: str | Path,
    output: str | Path,
    *,
    source_dict: str | Path | None = None,
    target_dict: str | Path | None = None,
    source_codes: str | Path | None = None,
    target_codes: str | Path | None = None,
    num_heads: int | None = None,
) -> ConversionReport:
    """Convert a fairseq checkpoint to a folder, with a tokenizer if there is a dictionary.

    If no file is given, those next to the checkpoint are used: `dict.<language>.txt`, and BPE codes such as `bpecodes`,
    of the languages that the checkpoint stores. Two dictionaries become one vocabulary, so that one
    `RandomTransformerTokenizer` encodes sources and targets, also if they have separate codes.

    Args:
        checkpoint: a `.pt` file.
        output: a new or empty folder.
        source_dict: `dict.<source language>.txt`.
        target_dict: `dict.<target language>.txt`; `None` for the source's dictionary.
        source_codes: codes of subword-nmt or fastBPE; without them, texts must already be segmented.
        target_codes: the target's codes; `None` for the source's codes.
        num_heads: number of attention heads, if the checkpoint does not store it.

    Raises:
        ValueError: see `from_fairseq` and `fairseq_tokenizer`; or it is ambiguous which files to use. In this case,
            nothing is written.
    """
    path = Path(checkpoint)
    content = read_checkpoint(path)
    options = read_stored(content, str(path), num_heads)
    given = {"dictionary": source_dict, "target_dictionary": target_dict}
    given |= {"codes": source_codes, "target_codes": target_codes}
    if source_dict is None and any(given.values()):
        raise ValueError("source_dict must be given with target_dict, source_codes or target_codes, got None.")
    files = given if source_dict else find_files(path.parent, read_languages(content))
    made = fairseq_tokenizer(**files, model_max_length=options["max_source_positions"]) if files else None
    ids = (made.source_ids, made.target_ids) if made else None
    convert = partial(convert_weights, content, options, str(path), ids)
    return save_conversion(output, convert, made.save if made else None)


def read_stored(checkpoint: Any, origin: str, num_heads: int | None) -> dict[str, Any]:
    """Read and check the options of a checkpoint, in any of the three layouts that fairseq has used.

    Raises:
        ValueError: this is not a fairseq checkpoint, or an option has a value that this model does not support.
    """
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{origin} must be a fairseq checkpoint with 'args' or 'cfg' and 'model', got none.")
    state_dict_in(checkpoint, origin, "model")
    options = dict(as_mapping(checkpoint.get("args")) or as_mapping(as_mapping(checkpoint.get("cfg")).get("model")))
    if not options:
        raise ValueError(f"{origin} must contain the model's options as 'args' or in 'cfg', got neither.")
    for part in (*STACKS, "quant_noise"):  # nested, in the newest layout
        options |= {f"{part}_{name}": value for name, value in as_mapping(options.pop(part, None)).items()}
    check_plain(options)
    options["arch"] = options.get("arch") or options.get("_name")
    options["activation_dropout"] = options.get("activation_dropout") or options.get("relu_dropout")
    options["num_heads"] = options.get("encoder_attention_heads") if num_heads is None else num_heads
    return read_options(options, OPTIONS, SAME)


def as_mapping(value: Any) -> Mapping[str, Any]:
    value = vars(value) if isinstance(value, Namespace) else value
    return value if isinstance(value, Mapping) else {}


def convert_weights(content: Mapping[str, Any], options: Mapping[str, Any], origin: str, ids: Rows | None) -> Converted:
    """Convert a state dict with these options. Arguments and errors are those of `from_fairseq`."""
    mapper = StateDictMapper(origin, content["model"])
    mapper.derive_sizes("fc1", "layer_norm")
    mapper.derive_options(OPTIONS, options)
    mapper.derive_config("fairseq", layer_norm_eps=1e-5)
    special = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    mapper.derive_config("fairseq's dictionary; its decoder starts from </s>", **special)
    for stack in STACKS:
        buffers = [f"{stack}.embed_positions._float_tensor", f"{stack}.embed_positions.weights"]
        mapper.ignore(buffers, "buffers of sinusoids, which are computed")
        mapper.ignore([f"{stack}.version"], "format version")
    map_vocabulary(mapper, options, ids)
    if options.get("no_token_positional_embeddings"):
        mapper.derive_config("no_token_positional_embeddings", position_embedding="none")
    else:
        learned = [stack for stack in STACKS if options.get(f"{stack}_learned_pos")]
        tables = [f"{stack}.embed_positions.weight" if stack in learned else None for stack in STACKS]
        length = max(options["max_source_positions"], options["max_target_positions"])
        learn_positions(mapper, (tables[0], tables[1]), length, FIRST_POSITION, "fairseq")
    mapper.rename(NAMES)
    model = mapper.finish()
    # fairseq's search generates neither padding nor an end token at the first step.
    model.generation_config.suppress_tokens = [PAD]
    model.generation_config.min_new_tokens = 1
    mapper.report.notes.append("As in fairseq, generate() never returns <pad>, nor </s> as the first token.")
    return model, mapper.report


def map_vocabulary(mapper: StateDictMapper, options: Mapping[str, Any], ids: Rows | None) -> None:
    """Map the embeddings and the output layer. Weights that the options share may be stored once or repeatedly.

    Raises:
        ValueError: the dictionaries contradict the options.
    """
    shared = options.get("share_all_embeddings")
    if shared and ids and list(ids[0]) != list(ids[1]):
        raise ValueError("the two dictionaries must be equal if share_all_embeddings is on, but they differ.")
    old_output = "decoder.embed_out"  # which is a parameter, not a module
    output = old_output if old_output in mapper.remaining else "decoder.output_projection.weight"
    tied = shared or options.get("share_decoder_input_output_embed")
    target, stored_output = (
        None if may_miss and name not in mapper.remaining else name
        for name, may_miss in (("decoder.embed_tokens.weight", shared), (output, tied))
    )
    map_embeddings(mapper, "encoder.embed_tokens.weight", target, stored_output, rows=ids, unk_token_id=UNK)


def read_languages(content: Mapping[str, Any]) -> Languages | None:
    """The languages in a checkpoint; `None` if it does not store them."""
    config = as_mapping(content.get("cfg"))
    for part in (content.get("args"), config.get("task"), config.get("model")):
        source, target = (as_mapping(part).get(f"{side}_lang") for side in ("source", "target"))
        if isinstance(source, str) and isinstance(target, str):
            return source, target
    return None


def find_files(folder: Path, languages: Languages | None) -> dict[str, Any]:
    """The arguments of `fairseq_tokenizer` for the files in a folder; none if there is no dictionary.

    Raises:
        ValueError: it is ambiguous which dictionary or which codes to use.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not is_hidden(path)]
    dictionaries = {match["language"]: path for path in files if (match := DICTIONARY.fullmatch(path.name))}
    if not dictionaries:
        return {}
    source, target = choose(folder, DICTIONARIES, dictionaries, languages)
    found = {"dictionary": source, "target_dictionary": target}
    codes = {path.name: path for path in files if CODES.fullmatch(path.name)}
    if languages and len(codes) > 1:  # such as bpecodes.de, or de.codes
        parts = {path: re.split(r"[._-]", name) for name, path in codes.items()}
        codes = {language: path for language in languages for path in parts if language in parts[path]}
    elif not codes:
        return found
    source, target = choose(folder, "BPE codes", codes, languages)
    return {**found, "codes": source, "target_codes": target}


def choose(folder: Path, kind: str, files: Mapping[str, Path], languages: Languages | None) -> tuple[Path, Path]:
    """The source's and the target's file: one for both, or those of the languages."""
    if len(files) == 1:
        (file,) = files.values()
        return file, file
    if languages and all(language in files for language in languages):
        return files[languages[0]], files[languages[1]]
    expected = " and ".join(languages) if languages else "the source and the target, which the checkpoint must store"
    found = format_names(path.name for path in files.values()) or "none"
    raise ValueError(f"{folder} must contain one file of {kind}, or those of {expected}, got {found}.")


# The tokenizer


def fairseq_tokenizer(
    dictionary: str | Path,
    codes: str | Path | None = None,
    model_max_length: int = 1024,
    *,
    target_dictionary: str | Path | None = None,
    target_codes: str | Path | None = None,
) -> JoinedTokenizer:
    """Build a tokenizer that appends `</s>` to every text and joins the pieces of words when it decodes.

    Args:
        dictionary: fairseq's `dict.<source language>.txt`.
        codes: merges of subword-nmt (version 0.2) or fastBPE; without them, texts must already be segmented, with `@@`
            after each piece except a word's last.
        model_max_length: length that texts are truncated to on request.
        target_dictionary: `dict.<target language>.txt`; `None` for the source's dictionary.
        target_codes: merges of the target; `None` for the source's merges.

    Raises:
        ValueError: a file has an invalid line, which the message names; or only the target has codes.
        OSError: a file cannot be read.
    """
    if codes is None and target_codes is not None:
        raise ValueError(f"target_codes must be given together with source codes, got only {target_codes}.")
    merges = [read_codes(Path(file)) for file in (codes, target_codes) if file is not None]
    source = read_dictionary(Path(dictionary), bool(merges))
    target = source if target_dictionary is None else read_dictionary(Path(target_dictionary), bool(merges))
    return join_bpe(source, target, merges, model_max_length=model_max_length)


def read_dictionary(path: Path, as_pieces: bool) -> dict[str, int]:
    """Read a dictionary's tokens and ids: the special tokens, then one token and its count per line.

    A token with `#fairseq:overwrite` replaces an earlier one, whose id and embedding remain without a use. A special
    token remains itself.

    Args:
        path: the dictionary.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a line has a wrong format, or a token or piece is repeated.
    """
    tokens = [*FIRST_TOKENS]
    for number, line in numbered_lines(path):
        token, _, count = line.removesuffix(OVERWRITES).rpartition(" ")
        if not token or not count.lstrip("-").isdecimal():
            raise ValueError(f"line {number} of {path} must be a token and its count, got {format_value(line)}.")
        tokens.append(token)
        if line.endswith(OVERWRITES) and token in tokens[:-1]:
            earlier = tokens.index(token)
            unused = len(tokens) - 1 if earlier < len(FIRST_TOKENS) else earlier
            tokens[unused] = f"{token} {unused}"  # no piece of a text has a space
    return name_tokens(str(path), tokens, {}, as_pieces)

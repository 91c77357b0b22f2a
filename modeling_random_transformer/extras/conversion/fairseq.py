"""Converts fairseq's `transformer` checkpoints, with their dictionaries and BPE codes."""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import format_names, format_value
from ...base.files import StrPath
from .embeddings import is_equal, learn_positions, map_embeddings
from .files import PathPair, Vocabulary, choose_pair, list_files
from .joined_tokenizer import JoinedTokenizer, join_vocabularies, name_tokens, numbered_lines
from .options import Kind, Options, read_format, read_options
from .untrusted import read_checkpoint, state_dict_in
from .weights import STACKS, ConversionReport, Converted, StateDictMapper, save_conversion

FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
PAD_ID, EOS_ID = 1, 2
FIRST_POSITION = PAD_ID + 1
# fairseq's architectures with the same computation. Others, such as transformer_unidirectional, may have equal weights.
ARCHITECTURES = (
    "transformer",
    "transformer_tiny",
    "transformer_iwslt_de_en",
    "transformer_align",
    "transformer_wmt_en_de",
    "transformer_wmt_en_de_big",
    "transformer_wmt_en_de_big_t2t",
    "transformer_vaswani_wmt_en_de_big",
    "transformer_vaswani_wmt_en_fr_big",
    "transformer_wmt_en_de_big_align",
)
ARCH = Kind(
    f"one of {', '.join(ARCHITECTURES)} (store 'transformer' if it only sets options of fairseq's transformer)",
    lambda name: name in ARCHITECTURES,
)
FORMAT = read_format(__file__, arch=ARCH)
DICTIONARY = re.compile(r"dict\..+\.txt")
CODES = re.compile(r"(.*[._-])?(bpe)?codes?([._-].+)?")
# Weights that fairseq 0.12 overwrites when it loads a checkpoint, by copies for PyTorch's fused encoder layer.
FUSED_COPIES = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
FAIRSEQ_FILES = re.compile(f"{DICTIONARY.pattern}|{CODES.pattern}")  # files that `convert_fairseq` finds

LanguagePair = tuple[str, str]  # source and target language


def from_fairseq(checkpoint: StrPath | Options) -> Converted:
    """Convert the weights of a fairseq `transformer`.

    fairseq's sinusoids use other frequencies (their logarithms are spaced by `d_model / 2 - 1`), so their values become
    a table of learned positions. Token ids are those of fairseq. Dictionaries of different sizes are padded to one
    size; `convert_fairseq` joins them.

    Args:
        checkpoint: a `.pt` file or its content: `"model"`, and `"args"` or `"cfg"`.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: the file is damaged, is not a fairseq checkpoint or requires executing code; or an option or a
            weight has no counterpart in this model, or a dictionary and its embedding differ in size. The message
            names it.
    """
    if isinstance(checkpoint, StrPath):
        origin = checkpoint
        content = read_checkpoint(checkpoint)
    else:
        origin = "the fairseq checkpoint"
        content = checkpoint
    return convert_weights(content, read_stored(content, origin), origin, None)


def convert_fairseq(
    checkpoint: StrPath,
    output: StrPath,
    *,
    source_dict: StrPath | None = None,
    target_dict: StrPath | None = None,
    source_codes: StrPath | None = None,
    target_codes: StrPath | None = None,
    overwrite: bool = False,
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
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_fairseq` and `fairseq_tokenizer`; or it is ambiguous which files to use. In this case,
            nothing is written.
    """
    path = Path(checkpoint)
    content = read_checkpoint(path)
    options = read_stored(content, path)
    if source_dict is None:
        if target_dict or source_codes or target_codes:
            raise ValueError("source_dict must be given with target_dict, source_codes or target_codes, got None.")
        languages = read_languages(content)
        dictionaries = find_files(path.parent, "dict.<language>.txt", DICTIONARY, languages)
        if dictionaries:
            source_dict, target_dict = dictionaries
            source_codes, target_codes = find_files(path.parent, "BPE codes", CODES, languages) or (None, None)
    joined = None
    if source_dict is not None:
        joined = fairseq_tokenizer(
            source_dict,
            source_codes,
            options["max_source_positions"],
            target_dictionary=target_dict,
            target_codes=target_codes,
        )
    return save_conversion(output, convert_weights(content, options, path, joined), overwrite)


def read_stored(checkpoint: Any, origin: StrPath) -> Options:
    """Read and check the options of a checkpoint, in any of the three layouts that fairseq has used.

    Raises:
        ValueError: the file is not a fairseq checkpoint, or an option has a value that this model does not support.
    """
    state_dict_in(checkpoint, origin, "model")
    options = as_mapping(checkpoint.get("args")) or as_mapping(as_mapping(checkpoint.get("cfg")).get("model"))
    if not options:
        raise ValueError(f"{origin} must contain the model's options as 'args' or in 'cfg', got neither.")
    options = dict(options)
    for part in (*STACKS, "quant_noise"):  # nested, in the newest layout
        for name, value in as_mapping(options.pop(part, None)).items():
            options[f"{part}_{name}"] = value
    if options.get("arch") is None:
        options["arch"] = options.get("_name")
    options = read_options(options, FORMAT)
    options["activation_dropout"] = options["activation_dropout"] or options["relu_dropout"]
    return options


def as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, Mapping) else {}


def convert_weights(content: Options, options: Options, origin: StrPath, joined: JoinedTokenizer | None) -> Converted:
    """Convert a state dict with these options. Arguments and errors are those of `from_fairseq`."""
    mapper = StateDictMapper(origin, content["model"])
    mapper.derive_sizes("fc1", "layer_norm")
    mapper.derive_options(FORMAT, options)
    if mapper.config_fields["final_layer_norm"] and options["encoder_normalize_before"] == "post":
        raise ValueError("encoder_normalize_before must be on for a model with encoder.layer_norm.weight, got off.")
    mapper.derive_config("fairseq", layer_norm_eps=1e-5)
    mapper.derive_config(
        "fairseq's dictionary; its decoder starts from </s>",
        pad_token_id=PAD_ID,
        bos_token_id=0,
        eos_token_id=EOS_ID,
        decoder_start_token_id=EOS_ID,
    )
    for stack in STACKS:
        buffers = [f"{stack}.embed_positions._float_tensor", f"{stack}.embed_positions.weights"]
        mapper.ignore(buffers, "buffers of sinusoids, which are computed")
        mapper.ignore([f"{stack}.version"], "format version")
    mapper.ignore(filter(FUSED_COPIES.fullmatch, mapper.remaining), "overwritten by copies of the layer's weights")
    map_vocabulary(mapper, options, joined)
    map_positions(mapper, options)
    mapper.rename(FORMAT.names)
    model = mapper.finish()
    # fairseq's search generates neither padding nor an end token at the first step.
    model.generation_config.suppress_tokens = [PAD_ID]
    model.generation_config.min_new_tokens = 1
    mapper.report.notes.append("As in fairseq, generate() never returns <pad>, nor </s> as the first token.")
    return model, mapper.report


def map_positions(mapper: StateDictMapper, options: Options) -> None:
    """Map the tables of learned positions, or compute tables of sinusoids."""
    if options.get("no_token_positional_embeddings"):
        mapper.derive_config("no_token_positional_embeddings", position_embedding="none")
        return
    source, target = (
        f"{stack}.embed_positions.weight" if options.get(f"{stack}_learned_pos") else None for stack in STACKS
    )
    length = max(options["max_source_positions"], options["max_target_positions"])
    learn_positions(mapper, (source, target), length, FIRST_POSITION, "fairseq")


def map_vocabulary(mapper: StateDictMapper, options: Options, joined: JoinedTokenizer | None) -> None:
    """Map the embeddings and the output layer. Weights that the options share may be stored once or repeatedly.

    Raises:
        ValueError: the dictionaries or the weights contradict the options.
    """
    source, target = (f"{stack}.embed_tokens.weight" for stack in STACKS)
    output = "decoder.embed_out"  # a parameter in old checkpoints, not a module
    if output not in mapper.remaining:
        output = "decoder.output_projection.weight"
    shared = options.get("share_all_embeddings")
    if shared and joined and joined.source_ids != joined.target_ids:
        raise ValueError("the two dictionaries must be equal if share_all_embeddings is on, but they differ.")
    others: list[str | None] = [target, output]
    if shared:
        others = [stored_again(mapper, "share_all_embeddings", source, name) for name in (target, output)]
    elif options.get("share_decoder_input_output_embed"):
        others = [target, stored_again(mapper, "share_decoder_input_output_embed", target, output)]
    map_embeddings(mapper, source, *others, joined=joined)


def stored_again(mapper: StateDictMapper, option: str, first: str, second: str) -> str | None:
    """The name of the second one of two weights that an option shares, or `None` if only the first one is stored.

    Raises:
        ValueError: they differ. fairseq would use the second one for both.
    """
    if second not in mapper.remaining:
        return None
    if not is_equal(mapper.peek(first), mapper.peek(second)):
        raise ValueError(f"{option} must be off if {first} and {second} differ, got on.")
    return second


def read_languages(content: Options) -> LanguagePair:
    """The languages in a checkpoint, or descriptions if it does not store them."""
    config = as_mapping(content.get("cfg"))
    for part in (content.get("args"), config.get("task"), config.get("model")):
        source = as_mapping(part).get("source_lang")
        target = as_mapping(part).get("target_lang")
        if isinstance(source, str) and isinstance(target, str):
            return source, target
    return "the source", "the target, which the checkpoint must store"


def find_files(folder: Path, kind: str, pattern: re.Pattern[str], languages: LanguagePair) -> PathPair | None:
    """The source's and the target's file of a kind, if there are any.

    Raises:
        ValueError: it is ambiguous which files to use.
    """
    files = list_files(folder, pattern)
    if not files:
        return None
    # Such as dict.de.txt, bpecodes.de or de.codes.
    source, target = (re.compile(rf"(?<![^._-]){re.escape(language)}(?![^._-])") for language in languages)
    pair = choose_pair(files, source, target)
    if pair is None:
        raise ValueError(
            f"{folder} must contain one file of {kind}, or those of {' and '.join(languages)}, "
            f"got {format_names(path.name for path in files)}: give source_dict, target_dict and their codes."
        )
    return pair


# The tokenizer


def fairseq_tokenizer(
    dictionary: StrPath,
    codes: StrPath | None = None,
    model_max_length: int = 1024,
    *,
    target_dictionary: StrPath | None = None,
    target_codes: StrPath | None = None,
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
    files = [Path(file) for file in (codes, target_codes) if file is not None]
    as_pieces = bool(files)
    source = target = read_dictionary(Path(dictionary), as_pieces)
    if target_dictionary is not None:
        target = read_dictionary(Path(target_dictionary), as_pieces)
    return join_vocabularies(source, target, files, model_max_length=model_max_length)


def read_dictionary(path: Path, as_pieces: bool) -> Vocabulary:
    """Read a dictionary's tokens and ids: the special tokens, then one token and its count per line.

    Args:
        path: the dictionary.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a line has a wrong format, or a token or piece is repeated.
    """
    tokens = [*FIRST_TOKENS]
    for number, line in numbered_lines(path):
        token, _, count = line.rpartition(" ")
        if not token or not count.lstrip("-").isdecimal():
            raise ValueError(f"line {number} of {path} must be a token and its count, got {format_value(line)}.")
        tokens.append(token)
    return name_tokens(path, tokens, {}, as_pieces)

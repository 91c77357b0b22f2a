"""Converts MarianMT models, such as those of OPUS-MT: the model, and a folder with the tokenizer's files.

Pegasus and Blenderbot are the same architecture with pre-norm. `export/transformers.py` uses these tables for the
opposite direction.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel

from ...base.errors import format_names, format_value, reraise_as_value_error
from ...base.files import StrPath, read_json, write_json
from ...configuration_random_transformer import RULES, RandomTransformerConfig
from ...inference.loading import check_report, check_tokenizer
from ...tokenization_random_transformer import RandomTransformerTokenizer
from .embeddings import SOURCE, TARGET, check_ids, map_embeddings, map_position_tables
from .options import OPTION_KINDS, Kind, Option, read_format, read_options
from .untrusted import read_checkpoint, state_dict_in
from .weights import ConversionReport, Converted, StateDictMapper, save_conversion


class NativeClass(NamedTuple):
    """A class of transformers that computes this architecture with one order of norms and one kind of positions."""

    model: type[PreTrainedModel]
    norm_order: str
    position_embedding: str


# model_type → class. All models have biases in attention, a bias on the logits, and nn.LayerNorm's epsilon.
CLASSES = {
    "marian": NativeClass(transformers.MarianMTModel, "post", "sinusoidal"),
    "pegasus": NativeClass(transformers.PegasusForConditionalGeneration, "pre", "sinusoidal"),
    "blenderbot": NativeClass(transformers.BlenderbotForConditionalGeneration, "pre", "learned"),
}
LAYER_NORM_EPS = 1e-5
FORMAT = read_format(__file__, activation=Kind(*RULES["activation_function"]))
# Fields with the same name in both configs.
COMMON_FIELDS = (
    "d_model",
    "scale_embedding",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
FAST_TOKENIZER = "tokenizer.json"  # the file of every other kind of tokenizer
# MarianTokenizer's files, including one that transformers 4 wrote.
TOKENIZER_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "added_tokens.json")
# The files of its settings, and the settings that are copied. Others, such as auto_map, may name code or files.
SETTINGS_FILES = ("special_tokens_map.json", "tokenizer_config.json")
TOKENIZER_SETTINGS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "additional_special_tokens",
    "extra_special_tokens",
    "source_lang",
    "target_lang",
    "separate_vocabs",
    "model_max_length",
    "added_tokens_decoder",
    "padding_side",
    "truncation_side",
    "clean_up_tokenization_spaces",
    "split_special_tokens",
    "languages",
    "src_lang",
    "tgt_lang",
    # Settings of RandomTransformerTokenizer
    "keep_line_breaks",
    "keep_without_letters",
    "target_merges",
)
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def from_marian(marian: StrPath | PreTrainedModel) -> Converted:
    """Convert the weights of a Marian model, or of a Pegasus or Blenderbot model.

    Args:
        marian: the model, or the folder that it was saved to. Names on the Hub are not supported.

    Returns:
        The model, in evaluation mode, with the generation config of the original; and the report. If that config does
        not limit the length of outputs, the limit is `max_position_embeddings`.

    Raises:
        ValueError: the folder does not contain a complete model of these classes, or an option or a weight has no
            counterpart in this model. The message names it.
    """
    if isinstance(marian, StrPath):
        marian = load_marian(Path(marian))
    natives = [native for native in CLASSES.values() if isinstance(marian, native.model)]
    if not natives:
        names = format_names(native.model.__name__ for native in CLASSES.values())
        raise ValueError(f"marian must be a folder or one of {names}, got {type(marian).__name__}.")
    [native] = natives
    config = marian.config
    mapper = StateDictMapper(f"the {config.model_type.capitalize()} model", marian.state_dict())
    norms = OPTION_KINDS["on" if native.norm_order == "pre" else "off"]
    # Options of related models. These classes ignore them, but a config.json may contain them.
    related = [Option(name, norms, None) for name in ("normalize_before", "add_final_layer_norm")]
    table = FORMAT._replace(options=[*related, *FORMAT.options])
    mapper.derive_options(table, read_options(config.to_dict(), table))
    for name in COMMON_FIELDS:
        mapper.derive_config(name, **{name: getattr(config, name, None)})  # Pegasus may have no <s>
    mapper.derive_config(type(marian).__name__, norm_order=native.norm_order, layer_norm_eps=LAYER_NORM_EPS)
    map_embeddings(mapper, SOURCE, TARGET, "lm_head.weight", "final_logits_bias")
    mapper.ignore(["model.shared.weight"], "not used by the stacks, which refer to it or have separate embeddings")
    map_position_tables(mapper, "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    mapper.rename(FORMAT.names)
    model = mapper.finish()
    known = GenerationConfig().to_dict()
    saved = marian.generation_config.to_dict()  # a file may contain entries with any name
    search = GenerationConfig.from_dict({name: value for name, value in saved.items() if name in known})
    if search.max_length is None and search.max_new_tokens is None:
        search.max_length = model.generation_config.max_length
    model.generation_config = search
    mapper.report.notes.append("The generation config was copied, including suppressed tokens and num_beams.")
    return model, mapper.report


def convert_marian(folder: StrPath, output: StrPath, *, overwrite: bool = False) -> ConversionReport:
    """Convert a folder with a model that `from_marian` converts, and its tokenizer's files.

    `AutoTokenizer` loads a `MarianTokenizer` from the new folder, which requires the package sentencepiece, or a
    `RandomTransformerTokenizer` if there is a tokenizer.json.

    Args:
        folder: config.json, weights, and the tokenizer's files if there are any.
        output: a new or empty folder.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_marian`; or the vocabulary does not match the model, or `output` is not empty. In this
            case, nothing is written.
    """
    converted = from_marian(folder)
    _, report = converted
    report.save_tokenizer = partial(copy_tokenizer, Path(folder))
    return save_conversion(output, converted, overwrite)


def load_marian(folder: Path) -> PreTrainedModel:
    """Load the model in a folder, in evaluation mode. References to files outside of the folder are not followed.

    Raises:
        ValueError: the folder contains a different model, or weights are missing, additional or have wrong shapes.
    """
    if folder.suffix == ".npz" or (not (folder / "config.json").exists() and any(folder.glob("*.npz"))):
        raise ValueError(f"folder must contain a MarianMT model, got a .npz file for convert_marian_npz in {folder}.")
    stored = read_json(folder / "config.json")
    model_type = str(stored.get("model_type"))
    if model_type not in CLASSES:
        raise ValueError(
            f"folder must contain a Marian model (model_type {', '.join(CLASSES)}), "
            f"got {format_value(model_type)} in {folder}."
        )
    files = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not files:
        raise ValueError(f"{folder} must contain the weights as {' or '.join(WEIGHTS)}, got neither.")
    weights = state_dict_in(read_checkpoint(files[0]), files[0])
    # Old folders have the options of the search in config.json.
    search = "generation_config.json" if (folder / "generation_config.json").is_file() else "config.json"
    native = CLASSES[model_type].model
    with reraise_as_value_error(f"folder must contain a complete Marian model, got {folder}"):
        config = native.config_class.from_dict(stored)
        read_options(config.to_dict(), FORMAT)  # checked before a model of any size is built
        model, loading = native.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=reduce(torch.promote_types, {weight.dtype for weight in weights.values()}),
            attn_implementation=None,  # the value in the file may be the name of remote code
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        model.generation_config = GenerationConfig.from_pretrained(folder, search)
    check_report(files[0], loading)
    return model.eval()


def copy_tokenizer(folder: Path, output: Path, config: RandomTransformerConfig) -> list[str]:
    """Copy the tokenizer's files and set its class, which AutoTokenizer cannot derive from this model's config.

    Only known settings are copied, since others may refer to code, which would run for users who trust this package.

    Returns:
        Notes for the report of the conversion.

    Raises:
        ValueError: a file is missing or damaged, or the vocabulary does not match the model's embedding.
    """
    stored: dict[str, Any] = {}
    for name in SETTINGS_FILES:
        if (folder / name).is_file():
            stored |= read_json(folder / name)
    settings = {name: value for name, value in stored.items() if name in TOKENIZER_SETTINGS}
    present = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if "vocab.json" in present:
        tokenizer_class = "MarianTokenizer"
        notes = ["MarianTokenizer requires sentencepiece."]
        check_marian_tokenizer(folder, present, settings, config)
    elif not present and (folder / FAST_TOKENIZER).is_file():
        tokenizer_class = RandomTransformerTokenizer.__name__
        notes = []
        present = [FAST_TOKENIZER]
    else:
        return [f"The folder has no vocab.json or {FAST_TOKENIZER}, so no tokenizer was copied."]
    for name in present:
        shutil.copyfile(folder / name, output / name)
    write_json(output / "tokenizer_config.json", {**settings, "tokenizer_class": tokenizer_class})
    if present == [FAST_TOKENIZER]:
        with reraise_as_value_error(f"folder must contain a tokenizer of the tokenizers library, got {folder}"):
            tokenizer = RandomTransformerTokenizer.from_pretrained(output)
        check_tokenizer(tokenizer, config)
        tokenizer.save_pretrained(output)  # copies the tokenizer's code
    dropped = stored.keys() - settings.keys() - {"tokenizer_class"}
    if dropped:
        notes.append(f"Not copied, as {tokenizer_class} does not require it: {format_names(sorted(dropped))}.")
    return [*notes, f"Copied for {tokenizer_class}: {', '.join(present)}."]


def check_marian_tokenizer(folder: Path, present: Sequence[str], settings: Mapping[str, Any], config: Any) -> None:
    """Raise a `ValueError` unless all files of a `MarianTokenizer` exist and its ids match the model."""
    vocabularies = ["vocab.json"]
    if settings.get("separate_vocabs"):
        vocabularies.append("target_vocab.json")
    missing = {*vocabularies, "source.spm", "target.spm"}.difference(present)
    if missing:
        raise ValueError(
            f"{folder} must contain all files of its tokenizer, but lacks {format_names(sorted(missing))}."
        )
    for name in vocabularies:
        vocabulary = read_json(folder / name)
        check_ids(folder / name, vocabulary.values(), config.vocab_size)
        for token, field in (("<pad>", "pad_token_id"), ("</s>", "eos_token_id")):
            expected = getattr(config, field)
            if vocabulary.get(token) != expected:
                raise ValueError(
                    f"{folder / name} must map {token} to {field} of config.json, {expected}, "
                    f"got {vocabulary.get(token)}."
                )

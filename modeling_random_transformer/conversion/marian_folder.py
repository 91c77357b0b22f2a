"""Folders of MarianMT models: loading without executing code, and copying the tokenizer's files."""

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from transformers import MarianConfig, MarianMTModel

from ..utils.errors import first_line, format_names, format_value
from ..utils.vocabulary import fits_embedding
from .report import ConversionReport
from .safe_loading import pickle_error

# MarianTokenizer's files, including one that transformers 4 wrote.
TOKENIZER_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "added_tokens.json")
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# Keys copied from tokenizer_config.json. Other keys, such as auto_map, may name code or files.
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "additional_special_tokens",
    "extra_special_tokens",
)
SETTINGS = (
    *SPECIAL_TOKENS,
    *("source_lang", "target_lang", "separate_vocabs", "model_max_length"),
    *("padding_side", "truncation_side", "clean_up_tokenization_spaces", "split_special_tokens"),
    *("added_tokens_decoder", "sp_model_kwargs"),
)
SENTENCEPIECE_OPTIONS = ("enable_sampling", "nbest_size", "alpha")
SHARD_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def load_marian(folder: Path) -> MarianMTModel:
    """Load the model in a folder, in evaluation mode.

    Raises:
        ValueError: the folder contains a different model, or weights are missing or have wrong shapes.
    """
    check_files(folder)
    try:
        model, loading = MarianMTModel.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=True
        )
    except pickle.UnpicklingError as error:
        raise ValueError(f"the weights in {folder} were not read: {pickle_error(str(error))}") from error
    except Exception as error:  # the exception type depends on where a file is damaged
        raise ValueError(f"folder must contain a complete Marian model, got {folder}: {first_line(error)}") from error
    check_loaded(folder, loading)
    return model.eval()


def check_files(folder: Path) -> None:
    """Raise a `ValueError` unless a folder contains a Marian model and refers to no file outside the folder.

    Called before weights are read.
    """
    if folder.suffix == ".npz" or (not (folder / "config.json").exists() and any(folder.glob("*.npz"))):
        raise ValueError(
            f"folder must contain a MarianMT model, got a .npz file of Marian in {folder}, which requires "
            "convert_marian_npz or `random-transformer convert marian-npz`."
        )
    config = read_json(folder / "config.json")
    model_type = config.get("model_type")
    if model_type != MarianConfig.model_type:
        raise ValueError(
            f"folder must contain a Marian model (model_type 'marian'), got {format_value(model_type)} in {folder}."
        )
    if config.get("transformers_weights") is not None:
        found = config["transformers_weights"]
        raise ValueError(f"transformers_weights in {folder / 'config.json'} must be null, got {format_value(found)}.")
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"folder must contain a full model, got {folder} with an adapter, which must be merged first.")
    for path in (folder / name for name in SHARD_INDICES):
        if path.is_file():
            check_shards(path)


def check_shards(index: Path) -> None:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"weight_map in {index} must be an object, got {type(shards).__name__}.")
    for name in shards.values():
        if not isinstance(name, str) or name in ("", ".", "..") or PureWindowsPath(name).name != name:
            raise ValueError(f"weight_map in {index} must name files in the same folder, got {format_value(name)}.")


def check_loaded(folder: Path, loading: dict[str, Any]) -> None:
    mismatched = [
        f"{name!r} of shape {list(shape)}, not {list(expected)}" for name, shape, expected in loading["mismatched_keys"]
    ]
    if mismatched:
        raise ValueError(f"the weights in {folder} must have the shapes of config.json, got {mismatched[0]}.")
    if loading["unexpected_keys"]:
        names = format_names(sorted(loading["unexpected_keys"]))
        raise ValueError(f"the weights in {folder} must be those of a Marian model only, got {names}.")
    if loading["missing_keys"]:
        raise ValueError(
            f"the weights in {folder} must be complete, but lack {format_names(sorted(loading['missing_keys']))}."
        )


def copy_tokenizer(folder: Path, output: Path, config: Any, report: ConversionReport) -> None:
    """Copy the tokenizer's files and set its class, which AutoTokenizer cannot derive from this model's config.

    Only known settings are copied, since others may refer to code, which would run for users who trust this package.

    Raises:
        ValueError: a file is missing or damaged, or the vocabulary does not match the model's embedding.
    """
    present = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if "vocab.json" not in present:
        report.notes.append("The folder has no vocab.json, so no tokenizer was copied.")
        return
    settings_file = folder / "tokenizer_config.json"
    saved_settings = read_json(settings_file) if settings_file.is_file() else {}
    vocabularies = ["vocab.json", *(["target_vocab.json"] if saved_settings.get("separate_vocabs") else [])]
    missing = [name for name in (*vocabularies, "source.spm", "target.spm") if name not in present]
    if missing:
        raise ValueError(f"{folder} must contain all files of its tokenizer, but lacks {format_names(missing)}.")
    for name in vocabularies:
        check_vocabulary(folder / name, config)
    for name in present:
        shutil.copyfile(folder / name, output / name)
    settings = {name: value for name, value in saved_settings.items() if name in SETTINGS}
    if isinstance(settings.get("sp_model_kwargs"), dict):
        options = settings["sp_model_kwargs"].items()
        settings["sp_model_kwargs"] = {name: value for name, value in options if name in SENTENCEPIECE_OPTIONS}
    write_json(output / "tokenizer_config.json", {**settings, "tokenizer_class": "MarianTokenizer"})
    if (folder / SPECIAL_TOKENS_MAP).is_file():
        tokens = read_json(folder / SPECIAL_TOKENS_MAP)
        write_json(output / SPECIAL_TOKENS_MAP, {name: tokens[name] for name in tokens if name in SPECIAL_TOKENS})
    dropped = saved_settings.keys() - settings.keys() - {"tokenizer_class"}
    if dropped:
        report.notes.append(f"Not copied, as MarianTokenizer does not use it: {format_names(sorted(dropped))}.")
    report.notes.append(f"Copied for MarianTokenizer, which requires sentencepiece: {', '.join(present)}.")


def check_vocabulary(path: Path, config: Any) -> None:
    vocabulary = read_json(path)
    if not fits_embedding(len(vocabulary), config.vocab_size):
        rows = config.vocab_size
        raise ValueError(
            f"{path.name} must have a token for each of {rows} rows of the embedding, got {len(vocabulary)}."
        )
    if not all(isinstance(i, int) and 0 <= i < config.vocab_size for i in vocabulary.values()):
        largest = max((i for i in vocabulary.values() if isinstance(i, int)), default=None)
        raise ValueError(
            f"{path.name} must have ids from 0 to {config.vocab_size - 1}, one for each row of the embedding, "
            f"got ids up to {largest}."
        )
    for token, name in (("<pad>", "pad_token_id"), ("</s>", "eos_token_id")):
        if vocabulary.get(token) != getattr(config, name):
            raise ValueError(
                f"{path.name} must map {token} to {name} of config.json, {getattr(config, name)}, "
                f"got {vocabulary.get(token)}."
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        ValueError: the file is missing or damaged, or does not contain an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but it is missing or damaged.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")

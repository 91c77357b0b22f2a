"""MarianMT models (OPUS-MT and others) as Random Transformers: the same numbers, the same translations."""

import copy
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from torch import equal
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers.activations import ACT2FN

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.checks import fits
from ..utils.errors import first_line
from ..utils.files import new_folder
from .files import refusal
from .report import Report
from .state_dict_mapper import Transfer, some
from .vocabularies import move_vocabularies

# MarianTokenizer's files, and what transformers 4 wrote beside them.
TOKENIZER_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "added_tokens.json")
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# The keys that are taken over from the tokenizer's settings. Any other one, such as auto_map, may name code or files.
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
EQUAL = {"encoder_attention_heads": "decoder_attention_heads", "encoder_ffn_dim": "decoder_ffn_dim"}
# Options of Marian's relatives that MarianMTModel does not compute either, though a config.json may name them.
REFUSED = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
# Fields of both configs.
SAME = (
    *("d_model", "encoder_layers", "decoder_layers", "activation_function", "scale_embedding"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def from_marian(marian: str | Path | MarianMTModel) -> tuple[RandomTransformerForConditionalGeneration, Report]:
    """A Marian model's weights in a model of ours.

    Args:
        marian: the model, or a folder that holds one; never a name on the Hub.

    Returns:
        The model, in evaluation mode, with Marian's generation config; and what was mapped.

    Raises:
        ValueError: the folder holds no complete Marian model, or the model is one that ours cannot equal; the message
            names the option or the weight.
    """
    if isinstance(marian, str | Path):
        marian = load_marian(Path(marian))
    if not isinstance(marian, MarianMTModel):
        raise ValueError(f"marian must be a folder or a MarianMTModel, got {type(marian).__name__}.")
    check_options(marian.config)
    transfer = Transfer("the Marian model", marian.state_dict(), kind="MarianMTModel")
    derive_fields(transfer, marian.config)
    move_embeddings(transfer, marian.config)
    transfer.move_positions("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    for name in list(transfer.left):
        if name.startswith(("model.encoder.layers.", "model.decoder.layers.")):
            transfer.move(name, name)
    model = transfer.finish()
    model.generation_config = known_options(marian.generation_config)
    transfer.report.notes.append("The generation config is Marian's, forbidden tokens and number of beams included.")
    return model, transfer.report


def convert_marian(folder: str | Path, output: str | Path) -> Report:
    """Write a folder with the model of another that holds a Marian model, and with its tokenizer's files.

    `AutoTokenizer` loads `MarianTokenizer` from it, which needs the package sentencepiece.

    Args:
        folder: config.json, weights, and the tokenizer's files if there are any.
        output: a new or an empty folder.

    Raises:
        ValueError: as of `from_marian`, the tokenizer's vocabulary is not the model's, or `output` is taken. Then
            nothing is written.
    """
    folder = Path(folder)
    with new_folder(output) as temporary:
        model, report = from_marian(folder)
        model.save_pretrained(temporary)
        copy_tokenizer(folder, temporary, model.config, report)
    return report


def known_options(config: GenerationConfig) -> GenerationConfig:
    """A copy without entries that `GenerationConfig` does not define, which a file may add under any name."""
    known = GenerationConfig().to_dict()
    kept = {name: value for name, value in copy.deepcopy(config).to_dict().items() if name in known}
    return GenerationConfig.from_dict(kept)


def load_marian(folder: Path) -> MarianMTModel:
    """The model in a folder, in evaluation mode.

    Raises:
        ValueError: it is another model, or not all of its weights are there and fit.
    """
    check_files(folder)
    try:
        model, loading = MarianMTModel.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=True
        )
    except pickle.UnpicklingError as error:
        raise ValueError(f"the weights in {folder} were not read: {refusal(str(error))}") from error
    except Exception as error:  # what damaged files lead to depends on where they are damaged
        raise ValueError(f"folder must hold a complete Marian model, got {folder}: {first_line(error)}") from error
    check_loaded(folder, loading)
    return model.eval()


def check_files(folder: Path) -> None:
    """Check, before weights are read, that a folder holds a Marian model and names no file outside of it.

    Raises:
        ValueError: it does not.
    """
    config = read_json(folder / "config.json")
    model_type = config.get("model_type")
    if model_type != MarianConfig.model_type:
        raise ValueError(f"folder must hold a Marian model (model_type 'marian'), got {model_type!r} in {folder}.")
    if config.get("transformers_weights") is not None:
        found = config["transformers_weights"]
        raise ValueError(f"transformers_weights in {folder / 'config.json'} must be null, got {found!r}.")
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"folder must hold a whole model, got {folder} with an adapter: merge it first.")
    for path in (folder / name for name in SHARD_INDICES):
        if path.is_file():
            check_shards(path)


def check_shards(index: Path) -> None:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"weight_map in {index} must be an object, got {type(shards).__name__}.")
    for name in shards.values():
        if not isinstance(name, str) or name in ("", ".", "..") or PureWindowsPath(name).name != name:
            raise ValueError(f"weight_map in {index} must name files in the same folder, got {name!r}.")


def check_loaded(folder: Path, loading: dict[str, Any]) -> None:
    wrong = [
        f"{name!r} of shape {list(shape)}, not {list(wanted)}" for name, shape, wanted in loading["mismatched_keys"]
    ]
    if wrong:
        raise ValueError(f"the weights in {folder} must have the shapes that config.json says, got {wrong[0]}.")
    if loading["unexpected_keys"]:
        names = some(loading["unexpected_keys"])
        raise ValueError(f"the weights in {folder} must be a Marian model's and no others, got {names}.")
    if loading["missing_keys"]:
        raise ValueError(f"the weights in {folder} must be complete, but lack {some(loading['missing_keys'])}.")


def check_options(config: MarianConfig) -> None:
    """Refuse by name what our model has not.

    Raises:
        ValueError: an option has a value that cannot be represented.
    """
    for name in REFUSED:
        if getattr(config, name, False):
            raise ValueError(f"{name} must be False, got {getattr(config, name)!r}: this model has nothing like it.")
    for ours, other in EQUAL.items():
        if getattr(config, ours) != getattr(config, other):
            values = f"{getattr(config, ours)} and {getattr(config, other)}"
            raise ValueError(f"{ours} and {other} must be the same number, got {values}.")
    if config.decoder_vocab_size not in (None, config.vocab_size):
        raise ValueError(
            "decoder_vocab_size must be vocab_size (or None), as one config field says both, "
            f"got {config.decoder_vocab_size} and {config.vocab_size}."
        )
    if config.activation_function not in ACT2FN:
        raise ValueError(f"activation_function must be a name in ACT2FN, got {config.activation_function!r}.")


def derive_fields(transfer: Transfer, config: MarianConfig) -> None:
    """Every config field but those that follow from embeddings and positions."""
    for name in SAME:
        transfer.derive(name, **{name: getattr(config, name)})
    transfer.derive("encoder_attention_heads, decoder_attention_heads", num_heads=config.encoder_attention_heads)
    transfer.derive("encoder_ffn_dim, decoder_ffn_dim", d_ff=config.encoder_ffn_dim)
    transfer.derive("MarianMTModel", norm_order="post", layer_norm_eps=1e-5)
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            transfer.report.notes.append(f"{name}={getattr(config, name)} concerns training only and is left out.")


def move_embeddings(transfer: Transfer, config: MarianConfig) -> None:
    """Share and tie what Marian shares and ties, by its config and in fact."""
    weights = transfer.left
    encoder, decoder = EMBEDDINGS
    shared = config.share_encoder_decoder_embeddings and equal(weights[encoder], weights[decoder])
    tied = config.tie_word_embeddings and equal(weights["lm_head.weight"], weights[decoder])
    if shared and equal(weights[encoder], weights["model.shared.weight"]):
        encoder = "model.shared.weight"
    target, output = None if shared else decoder, None if tied else "lm_head.weight"
    move_vocabularies(transfer, encoder, target, output, "final_logits_bias")
    transfer.leave(EMBEDDINGS, "shared")
    transfer.leave(["model.shared.weight"], "the stacks look up embeddings of their own")
    transfer.leave(["lm_head.weight"], "tied to the embedding")


def copy_tokenizer(folder: Path, output: Path, config: Any, report: Report) -> None:
    """Copy the tokenizer's files, and name its class, which AutoTokenizer cannot know from our config.

    Of settings only known keys are taken over, since code that they name would be run by users who trust this package.

    Raises:
        ValueError: a file is missing or damaged, or the vocabulary is not the one that the model's embedding has a row
            for each token of.
    """
    found = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if "vocab.json" not in found:
        report.notes.append("The folder has no vocab.json, so no tokenizer was carried along.")
        return
    settings = folder / "tokenizer_config.json"
    known = read_json(settings) if settings.is_file() else {}
    vocabularies = ["vocab.json", *(["target_vocab.json"] if known.get("separate_vocabs") else [])]
    missing = [name for name in (*vocabularies, "source.spm", "target.spm") if name not in found]
    if missing:
        raise ValueError(f"{folder} must hold all files of its tokenizer, but lacks {some(missing)}.")
    for name in vocabularies:
        check_vocabulary(folder / name, config)
    for name in found:
        shutil.copyfile(folder / name, output / name)
    kept = {name: value for name, value in known.items() if name in SETTINGS}
    if isinstance(kept.get("sp_model_kwargs"), dict):
        options = kept["sp_model_kwargs"].items()
        kept["sp_model_kwargs"] = {name: value for name, value in options if name in SENTENCEPIECE_OPTIONS}
    write_json(output / "tokenizer_config.json", {**kept, "tokenizer_class": "MarianTokenizer"})
    if (folder / SPECIAL_TOKENS_MAP).is_file():
        tokens = read_json(folder / SPECIAL_TOKENS_MAP)
        write_json(output / SPECIAL_TOKENS_MAP, {name: tokens[name] for name in tokens if name in SPECIAL_TOKENS})
    dropped = known.keys() - kept.keys() - {"tokenizer_class"}
    if dropped:
        report.notes.append(f"Left out of tokenizer_config.json, as MarianTokenizer does not need it: {some(dropped)}.")
    report.notes.append(f"Copied for MarianTokenizer, which needs sentencepiece: {', '.join(found)}.")


def check_vocabulary(path: Path, config: Any) -> None:
    vocabulary = read_json(path)
    if not fits(len(vocabulary), config.vocab_size):
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
                f"{path.name} must give {token} the id that config.json calls {name}, {getattr(config, name)}, "
                f"got {vocabulary.get(token)}."
            )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object.

    Raises:
        ValueError: there is no such file, or nothing like it in it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but it is missing or damaged.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")

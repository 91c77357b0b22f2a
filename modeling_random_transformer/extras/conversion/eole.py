"""Converts models of eole, the successor of OpenNMT-py: the folder with weights, options, vocabulary and tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...base.errors import format_value
from ...base.files import StrPath, read_json
from .embeddings import learn_positions, map_embeddings
from .files import find_file
from .joined_tokenizer import JoinedTokenizer, join_vocabularies, name_tokens
from .options import OPTION_KINDS, Kind, Options, flatten, invalid, read_format, read_options
from .untrusted import read_checkpoint
from .weights import STACKS, ConversionReport, Converted, StateDictMapper, save_conversion

SIDE_NAMES = ("src", "tgt")
EMBEDDINGS = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight", "generator.bias")
SPECIAL = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # the defaults
INTERLEAVED, CONCATENATED, LEARNED = "SinusoidalInterleaved", "SinusoidalConcat", "Learned"
POSITION = "model.embeddings.position_encoding_type"
OFFSET = Kind("an integer", lambda value: value == 0 or OPTION_KINDS["length"].accepts(value))


def last(rates: Any) -> Any:
    """The last rate of a list, which has one for each phase of the training."""
    return rates[-1] if isinstance(rates, list) and rates else None


RATES = Kind(
    "a list of rates", lambda value: OPTION_KINDS["rate"].accepts(last(value)), lambda value: float(last(value))
)
FORMAT = read_format(__file__, rates=RATES, offset=OFFSET)


def from_eole(folder: StrPath) -> Converted:
    """Convert the weights of a Transformer of eole. Token ids are those of the joined vocabulary (`convert_eole`).

    Args:
        folder: `config.json`, `vocab.json` and the weights, `model.00.safetensors`.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: a file is missing or damaged; or an option or a weight has no counterpart in this model. The message
            names it.
    """
    path = Path(folder)
    options = read_config(path)
    model, report = convert_weights(path, options, make_tokenizer(path, options))
    report.notes.append(f"Transforms of the model: {format_value(options.get('transforms'))}.")
    return model, report


def convert_eole(folder: StrPath, output: StrPath, *, overwrite: bool = False) -> ConversionReport:
    """Convert a model of eole to a folder with a tokenizer.

    Two vocabularies become one, so that one `RandomTransformerTokenizer` encodes sources and targets. As in eole, no
    end token is appended to sources.

    Args:
        folder: the folder of the model or of one of its steps, with `config.json`, `vocab.json`, the weights, and the
            SentencePiece model or the BPE codes.
        output: a new or empty folder.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_eole`; or a vocabulary does not match the segmentation. In this case, nothing is written.
    """
    return save_conversion(output, from_eole(folder), overwrite)


def read_config(folder: Path) -> Options:
    """The options in `config.json` by their paths, such as `model.encoder.heads`, with converted values.

    An option of the model applies to the embeddings and to both stacks, unless they have this option.

    Raises:
        ValueError: an option has a value that this model does not support, or it differs between the stacks.
    """
    options = flatten(read_json(folder / "config.json"))
    for option in FORMAT.options:
        _, part, *rest = option.name.split(".")
        name = ".".join(["model", *rest])
        if part in STACKS and options.get(option.name) is None:
            options[option.name] = options.get(name)
        elif part == "embeddings" and name in options:
            options.setdefault(option.name, options[name])
    if options.get(POSITION, "") is None:  # no positions; a missing option has a default
        options[POSITION] = "null"
    return read_options(options, FORMAT)


def convert_weights(folder: Path, options: Options, joined: JoinedTokenizer) -> Converted:
    """Convert the weights in a folder with these options. Errors are those of `from_eole`."""
    mapper = StateDictMapper(folder, read_weights(folder))
    mapper.derive_sizes("mlp.gate_up_proj", "layer_norm", ("transformer_layers", "transformer_layers"))
    mapper.derive_options(FORMAT, options)
    scalars = [name for name in mapper.remaining if name.endswith(".layer_scalar")]
    mapper.ignore(scalars, "not used by layers that attend to a source")
    mapper.rename(FORMAT.names)
    mapper.complete_biases()
    mapper.ignore(("src_emb.pe.pe", "tgt_emb.pe.pe"), "sinusoids, which are computed")
    map_positions(mapper, "eole", options[POSITION], options["model.embeddings.position_shift"])
    return finish(mapper, EMBEDDINGS, joined, options, "model.")


def finish(
    mapper: StateDictMapper, embeddings: Sequence[str], joined: JoinedTokenizer, options: Options, prefix: str = ""
) -> Converted:
    """Map the embeddings, of which those that the options share need not be stored, and build the model."""
    mapper.derive_config("the original's layers", norm_order="pre")
    mapper.derive_config("the vocabulary", **joined.special_ids())
    source, *others = embeddings
    optional = (options.get(f"{prefix}share_embeddings"), options.get(f"{prefix}share_decoder_embeddings"), True)
    target, output, bias = (
        None if is_optional and name not in mapper.remaining else name
        for name, is_optional in zip(others, optional, strict=True)
    )
    map_embeddings(mapper, source, target, output, bias, joined=joined)
    return mapper.finish(), mapper.report


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in all files of a folder.

    Raises:
        ValueError: there is no file.
    """
    files = sorted(folder.glob("model.*.safetensors"))
    if not files:
        raise ValueError(f"{folder} must contain the weights as model.00.safetensors, got none.")
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= read_checkpoint(file)
    return weights


def map_positions(mapper: StateDictMapper, origin: str, kind: str | None, offset: int = 0) -> None:
    """Map positions of this kind. With sinusoids, embeddings are scaled."""
    mapper.derive_config("the kind of positions", scale_embedding=kind in (INTERLEAVED, CONCATENATED))
    if kind == INTERLEAVED:
        mapper.derive_config(kind, position_embedding="sinusoidal", sinusoid_layout="interleaved")
    elif kind == CONCATENATED:
        learn_positions(mapper, (None, None), origin=origin)
    elif kind == LEARNED:
        learn_positions(mapper, ("src_emb.pe.weight", "tgt_emb.pe.weight"), offset=offset)
    else:
        mapper.derive_config("the kind of positions", position_embedding="none")


def make_tokenizer(folder: Path, options: Options) -> JoinedTokenizer:
    """The tokenizer of the vocabularies. Errors are those of `join_sides`."""
    path = folder / "vocab.json"
    kind = find_segmentation(options.get("transforms"))
    models = [options.get(f"transforms_configs.{kind}.{side}_subword_model") for side in SIDE_NAMES]
    return join_sides(folder, kind, models, read_json(path), path)


def find_segmentation(transforms: Any) -> str | None:
    """The transform that segments words, if there is one among the names."""
    for kind in ("sentencepiece", "bpe"):
        if isinstance(transforms, list) and kind in transforms:
            return kind
    return None


def join_sides(folder: Path, kind: str | None, models: Sequence[Any], stored: Options, origin: Path) -> JoinedTokenizer:
    """The tokenizer of two vocabularies, with the SentencePiece model or the BPE codes. Sources have no end token.

    Args:
        folder: contains the files of `models`, which are those of source and target.
        kind: sentencepiece, bpe or `None`.
        models: the stored paths, of any folder.
        stored: the tokens of source and target as `src` and `tgt`, and names of special tokens.
        origin: their file, for errors.

    Raises:
        ValueError: a file is missing or damaged, the two languages have different SentencePiece models, or the decoder
            does not start from `<s>`.
    """
    stored = {"specials": {}, **stored}
    for name, kind_of_value in {"src": list, "tgt": list, "specials": dict}.items():
        if not isinstance(stored.get(name), kind_of_value):
            raise invalid(f"{name} of {origin}", f"a {kind_of_value.__name__}", stored.get(name))
    special_tokens = {name: str(stored["specials"].get(name, token)) for name, token in SPECIAL.items()}
    start = special_tokens["bos_token"]
    if stored.get("decoder_start_token", start) != start:
        raise invalid("decoder_start_token", format_value(start), stored["decoder_start_token"])
    # Sources may have no start and end token.
    source_special_tokens = {
        name: token
        for name, token in special_tokens.items()
        if name in ("pad_token", "unk_token") or token in stored["src"]
    }
    is_bpe = kind == "bpe"
    return join_vocabularies(
        name_tokens(f"src of {origin}", stored["src"], source_special_tokens, is_bpe),
        name_tokens(f"tgt of {origin}", stored["tgt"], special_tokens, is_bpe),
        files=[find_file(folder, path) for path in models if kind],
        is_sentencepiece=kind == "sentencepiece",
        source_eos=False,
    )

"""Converts checkpoints of OpenNMT-py 2 and 3, the predecessor of eole: weights, options and vocabularies in a file."""

from argparse import Namespace
from pathlib import Path

from ...base.errors import format_value, reraise_as_value_error
from ...base.files import StrPath
from . import eole
from .joined_tokenizer import JoinedTokenizer
from .options import Kind, Options, read_format, read_options
from .untrusted import PlainObject, read_checkpoint, state_dict_in
from .weights import STACKS, ConversionReport, Converted, StateDictMapper, save_conversion

PREFIXES = [f"{stack}.embeddings.make_embedding" for stack in STACKS]
EMBEDDINGS = (*(f"{prefix}.emb_luts.0.weight" for prefix in PREFIXES), "generator.weight", "generator.bias")
TRANSFORMS = Kind(
    "a set of names",
    lambda value: isinstance(value, set) and all(isinstance(name, str) for name in value),
    sorted,
)
FORMAT = read_format(__file__, rates=eole.RATES, transforms=TRANSFORMS)


def from_opennmt(checkpoint: StrPath) -> Converted:
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
    path = Path(checkpoint)
    content, options = read_stored(path)
    model, report = convert_weights(path, content, options, make_tokenizer(path, content, options))
    report.notes.append(f"Transforms of the model: {format_value(options['_all_transform'])}.")
    return model, report


def convert_opennmt(checkpoint: StrPath, output: StrPath, *, overwrite: bool = False) -> ConversionReport:
    """Convert a checkpoint of OpenNMT-py 2 or 3 to a folder with a tokenizer.

    Two vocabularies become one, so that one `RandomTransformerTokenizer` encodes sources and targets. As in
    OpenNMT-py, no end token is appended to sources.

    Args:
        checkpoint: a `.pt` file, and the SentencePiece model or the BPE codes next to it.
        output: a new or empty folder.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_opennmt`; or a vocabulary does not match the segmentation. In this case, nothing is
            written.
    """
    return save_conversion(output, from_opennmt(checkpoint), overwrite)


def read_stored(path: Path) -> tuple[Options, Options]:
    """The content of a checkpoint, and its checked options.

    Raises:
        ValueError: the file is not a checkpoint of OpenNMT-py, or an option has a value that this model does not
            support.
    """
    content = read_checkpoint(path)
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("opt"), Namespace)
        or not isinstance(content.get("vocab"), dict)
    ):
        raise ValueError(f"{path} must be a checkpoint of OpenNMT-py 2 or 3 with 'opt' and 'vocab', got none.")
    stored = dict(vars(content["opt"]))
    layers = stored.get("layers")
    if isinstance(layers, int) and layers > 0:  # as in OpenNMT-py, it replaces the numbers of both stacks
        stored |= {"enc_layers": layers, "dec_layers": layers}
    with reraise_as_value_error(f"'opt' of {path} must have options that this model supports"):
        return content, read_options(stored, FORMAT)


def convert_weights(path: Path, content: Options, options: Options, joined: JoinedTokenizer) -> Converted:
    """Convert the weights of a checkpoint with these options. Errors are those of `from_opennmt`."""
    weights = dict(state_dict_in(content, path, "model"))
    for name, weight in state_dict_in(content, path, "generator").items():
        weights[f"generator.{name.removeprefix('0.')}"] = weight
    mapper = StateDictMapper(path, weights)
    mapper.derive_sizes("feed_forward.w_1", "layer_norm", ("transformer", "transformer_layers"))
    mapper.derive_options(FORMAT, options)
    mapper.rename(FORMAT.names)
    mapper.complete_biases()
    mapper.ignore([f"{prefix}.pe.pe" for prefix in PREFIXES], "sinusoids, which are computed")
    has_positions = options["position_encoding"]
    eole.map_positions(mapper, "OpenNMT-py", options["position_encoding_type"] if has_positions else None)
    return eole.finish(mapper, EMBEDDINGS, joined, options)


def make_tokenizer(path: Path, content: Options, options: Options) -> JoinedTokenizer:
    """The tokenizer of the vocabularies. Errors are those of `join_sides`."""
    stored = dict(content["vocab"])
    for side in eole.SIDE_NAMES:
        if isinstance(stored.get(side), PlainObject):  # a TextMultiField of OpenNMT-py 2
            with reraise_as_value_error(f"{side} of {path} must be a field with a vocabulary, got an error"):
                stored[side] = stored[side].fields[0][1].vocab.itos
    source = options["src_subword_model"]
    target = options["tgt_subword_model"] or source
    segmentation = eole.find_segmentation(options["_all_transform"])
    return eole.join_sides(path.parent, segmentation, (source, target), stored, path)

"""Converts models of JoeyNMT 2: a checkpoint, and the configuration, vocabularies and tokenizer model next to it."""

from pathlib import Path

from tokenizers import normalizers
from transformers import GenerationConfig

from ...base.errors import format_value
from ...base.files import StrPath
from ...configuration_random_transformer import is_number
from ...inputs_random_transformer import MAX_HYPOTHESES
from ...tokenization_random_transformer import lines_of_files
from .embeddings import map_embeddings
from .files import find_file
from .joined_tokenizer import JoinedTokenizer, join_vocabularies, name_tokens
from .options import Kind, Options, flatten, invalid, is_size, read_format, read_options
from .untrusted import read_checkpoint, read_yaml, state_dict_in
from .weights import STACKS, ConversionReport, Converted, StateDictMapper, save_conversion

CHECKPOINTS = ("best.ckpt", "latest.ckpt")  # files in a model's folder, JoeyNMT's model_dir
SIDE_NAMES = ("src", "trg")
SEGMENTATIONS = {"sentencepiece": "model_file", "subword-nmt": "codes"}  # option with the file of each segmentation
SPECIAL_TOKEN_NAMES = ("unk_token", "pad_token", "bos_token", "eos_token")
OTHER_FORMULA = "JoeyNMT divides scores by ((5 + length) / 6)^alpha, generate() by length^length_penalty (default: 1)"
OTHER_TOKENS = "generate() has an option of this name"  # which may count other tokens
# Options of the search that are not copied → the value without effect, and the reason.
DROPPED = {
    "beam_alpha": (0, OTHER_FORMULA),
    "repetition_penalty": (1, OTHER_TOKENS),
    "no_repeat_ngram_size": (0, OTHER_TOKENS),
}
# `xavier_normal` of JoeyNMT turns on the factors of DeepNet, whatever the stored factors are.
INITIALIZER = Kind("another one than 'xavier_normal'", lambda value: value != "xavier_normal")
FORMAT = read_format(__file__, initializer=INITIALIZER)


def from_joeynmt(checkpoint: StrPath) -> Converted:
    """Convert the weights of a Transformer of JoeyNMT 2. Token ids are those of the joined vocabulary.

    Args:
        checkpoint: a `.ckpt` file with `config.yaml` and the files of the tokenizer next to it (`convert_joeynmt`); or
            their folder, whose best checkpoint is converted.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: a file is missing, is damaged or requires executing code; or an option or a weight has no
            counterpart in this model. The message names it.
    """
    path = find_checkpoint(Path(checkpoint))
    options = read_config(path)
    return convert_weights(path, options, make_tokenizer(path.parent, options))


def convert_joeynmt(checkpoint: StrPath, output: StrPath, *, overwrite: bool = False) -> ConversionReport:
    """Convert a model of JoeyNMT to a folder with a tokenizer.

    JoeyNMT writes all files to one folder: `config.yaml`, `src_vocab.txt`, `trg_vocab.txt`, and the SentencePiece model
    or the BPE codes.

    Args:
        checkpoint: a `.ckpt` file in this folder; or the folder, whose best checkpoint is converted.
        output: a new or empty folder.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_joeynmt`; or a vocabulary does not match the model or the segmentation. In this case,
            nothing is written.
    """
    return save_conversion(output, from_joeynmt(checkpoint), overwrite)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path, or the best one in a folder. If no best one is stored, the latest one."""
    for file in (*(path / name for name in CHECKPOINTS), path):
        if file.is_file():
            return file
    raise ValueError(f"checkpoint must be a file, or a folder with {' or '.join(CHECKPOINTS)}, got {str(path)!r}.")


def read_config(checkpoint: Path) -> Options:
    """The options in `config.yaml` by their paths, such as `model.encoder.num_heads`, with converted values.

    Raises:
        ValueError: an option has a value that this model does not support, or it differs between the stacks.
    """
    stored = flatten(read_yaml(checkpoint.parent / "config.yaml"))
    same = dict(FORMAT.same)
    if stored.get("model.tied_embeddings"):  # the decoder has the embeddings of the encoder, with their scale
        del same["model.decoder.embeddings.scale"]
    return read_options(stored, FORMAT._replace(same=same))


def convert_weights(path: Path, options: Options, joined: JoinedTokenizer) -> Converted:
    """Convert a checkpoint with these options. Arguments and errors are those of `from_joeynmt`."""
    mapper = StateDictMapper(path, state_dict_in(read_checkpoint(path), path, "model_state"))
    mapper.derive_sizes("feed_forward.pwff_layer.0", "layer_norm")
    mapper.derive_options(FORMAT, options)
    mapper.derive_config("JoeyNMT", layer_norm_eps=1e-6, position_embedding="sinusoidal", sinusoid_layout="interleaved")
    mapper.ignore([f"{stack}.pe.pe" for stack in STACKS], "sinusoids, which are computed")
    mapper.derive_config("special_symbols", **joined.special_ids())
    embeddings = ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
    map_embeddings(mapper, *embeddings, joined=joined)
    mapper.rename(FORMAT.names)
    model = mapper.finish()
    # JoeyNMT never generates <pad> and <s>, and never </s> as the first token.
    tokenizer = joined.tokenizer
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id, tokenizer.bos_token_id]
    model.generation_config.min_new_tokens = 1
    if options.get("testing.generate_unk") is False:
        model.generation_config.suppress_tokens.append(tokenizer.unk_token_id)
    set_beams(model.generation_config, options, mapper.report)
    return model, mapper.report


def set_beams(config: GenerationConfig, options: Options, report: ConversionReport) -> None:
    """Copy the beam size, and report the other options of the search."""
    beams = options.get("testing.beam_size")
    if is_size(beams, MAX_HYPOTHESES):
        config.num_beams = beams
        report.notes.append(f"testing.beam_size={beams} was copied.")
    for name, (disabled, reason) in DROPPED.items():
        value = options.get(f"testing.{name}")
        if is_number(value) and value > disabled:
            report.notes.append(f"testing.{name}={format_value(value)} was dropped: {reason}.")


def make_tokenizer(folder: Path, options: Options) -> JoinedTokenizer:
    """The tokenizer of the vocabularies in a folder.

    Raises:
        ValueError: a file is missing or damaged, or the two languages are segmented differently.
    """
    segmentation, target_segmentation = (read_segmentation(options, side) for side in SIDE_NAMES)
    if segmentation != target_segmentation:
        raise invalid("data.trg.tokenizer_type", f"that of data.src, {segmentation}", target_segmentation)
    special_tokens = {name: options[f"data.special_symbols.{name}"] for name in SPECIAL_TOKEN_NAMES}
    vocabularies = []
    files = []
    for side in SIDE_NAMES:
        path = find_file(folder, f"{side}_vocab.txt")
        tokens = list(lines_of_files([path]))
        vocabularies.append(name_tokens(path, tokens, special_tokens, segmentation == "subword-nmt"))
        if segmentation in SEGMENTATIONS:
            files.append(find_file(folder, options[f"data.{side}.tokenizer_cfg.{SEGMENTATIONS[segmentation]}"]))
    source, target = vocabularies
    joined = join_vocabularies(source, target, files, is_sentencepiece=segmentation == "sentencepiece")
    if options["data.src.lowercase"]:
        backend = joined.tokenizer.backend_tokenizer
        steps = [normalizers.Lowercase()]
        if backend.normalizer:
            steps.append(backend.normalizer)
        backend.normalizer = normalizers.Sequence(steps)
    return joined


def read_segmentation(options: Options, side: str) -> str:
    return options[f"data.{side}.tokenizer_type"] if options[f"data.{side}.level"] == "bpe" else "word"

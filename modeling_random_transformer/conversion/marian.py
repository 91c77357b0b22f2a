"""Converts MarianMT models, such as those of OPUS-MT."""

import copy
from pathlib import Path

from torch import equal
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers.activations import ACT2FN

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.atomic_files import new_folder
from .embeddings import map_embeddings
from .marian_folder import copy_tokenizer, load_marian
from .positions import map_position_tables
from .report import ConversionReport
from .state_dict_mapper import NameTable, StateDictMapper

NAMES: NameTable = {"model.{stack}.layers.{i}.{module}.{p}": "model.{stack}.layers.{i}.{module}.{p}"}
EQUAL_IN_STACKS = {"encoder_attention_heads": "decoder_attention_heads", "encoder_ffn_dim": "decoder_ffn_dim"}
# Options of related models. MarianMTModel does not compute them, but a config.json may contain them.
UNSUPPORTED = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
# Fields with the same name in both configs.
COMMON_FIELDS = (
    *("d_model", "encoder_layers", "decoder_layers", "activation_function", "scale_embedding"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def from_marian(
    marian: str | Path | MarianMTModel,
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert the weights of a Marian model.

    Args:
        marian: the model, or the folder that it was saved to. Names on the Hub are not supported.

    Returns:
        The model, in evaluation mode, with Marian's generation config; and the report. If that config does not limit
        the length of outputs, the limit is `max_position_embeddings`.

    Raises:
        ValueError: the folder does not contain a complete Marian model, or an option or a weight has no counterpart in
            this model. The message names it.
    """
    if isinstance(marian, str | Path):
        marian = load_marian(Path(marian))
    if not isinstance(marian, MarianMTModel):
        raise ValueError(f"marian must be a folder or a MarianMTModel, got {type(marian).__name__}.")
    check_options(marian.config)
    mapper = StateDictMapper("the Marian model", marian.state_dict(), title="MarianMTModel")
    derive_config(mapper, marian.config)
    map_shared_embeddings(mapper, marian.config)
    map_position_tables(mapper, "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    mapper.rename(NAMES)
    model = mapper.finish()
    options = known_options(marian.generation_config)
    if options.max_length is None and options.max_new_tokens is None:
        options.max_length = model.generation_config.max_length
    model.generation_config = options
    mapper.report.notes.append("The generation config of Marian was copied, including suppressed tokens and num_beams.")
    return model, mapper.report


def convert_marian(folder: str | Path, output: str | Path) -> ConversionReport:
    """Convert a folder with a Marian model and its tokenizer's files.

    `AutoTokenizer` loads a `MarianTokenizer` from the new folder, which requires the package sentencepiece.

    Args:
        folder: config.json, weights, and the tokenizer's files if there are any.
        output: a new or empty folder.

    Raises:
        ValueError: see `from_marian`; or the vocabulary does not match the model, or `output` is not empty. In this
            case, nothing is written.
    """
    folder = Path(folder)
    with new_folder(output) as temporary:
        model, report = from_marian(folder)
        model.save_pretrained(temporary)
        copy_tokenizer(folder, temporary, model.config, report)
    return report


def known_options(config: GenerationConfig) -> GenerationConfig:
    """A copy without entries that `GenerationConfig` does not define. A file may contain entries with any name."""
    known = GenerationConfig().to_dict()
    options = {name: value for name, value in copy.deepcopy(config).to_dict().items() if name in known}
    return GenerationConfig.from_dict(options)


def check_options(config: MarianConfig) -> None:
    """Raise a `ValueError` that names the first unsupported option."""
    for name in UNSUPPORTED:
        if getattr(config, name, False):
            raise ValueError(f"{name} must be False, got {getattr(config, name)!r}.")
    for encoder, decoder in EQUAL_IN_STACKS.items():
        if getattr(config, encoder) != getattr(config, decoder):
            values = f"{getattr(config, encoder)} and {getattr(config, decoder)}"
            raise ValueError(f"{encoder} and {decoder} must be equal, got {values}.")
    if config.decoder_vocab_size not in (None, config.vocab_size):
        raise ValueError(
            f"decoder_vocab_size must be None or vocab_size={config.vocab_size}, got {config.decoder_vocab_size}."
        )
    if config.activation_function not in ACT2FN:
        raise ValueError(f"activation_function must be a name in ACT2FN, got {config.activation_function!r}.")


def derive_config(mapper: StateDictMapper, config: MarianConfig) -> None:
    """Derive all config fields except those of embeddings and positions."""
    for name in COMMON_FIELDS:
        mapper.derive_config(name, **{name: getattr(config, name)})
    mapper.derive_config("encoder_attention_heads, decoder_attention_heads", num_heads=config.encoder_attention_heads)
    mapper.derive_config("encoder_ffn_dim, decoder_ffn_dim", d_ff=config.encoder_ffn_dim)
    mapper.derive_config("MarianMTModel", norm_order="post", layer_norm_eps=1e-5)
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            mapper.report.notes.append(f"{name}={getattr(config, name)} affects training only and was dropped.")


def map_shared_embeddings(mapper: StateDictMapper, config: MarianConfig) -> None:
    """Share and tie embeddings that are shared and tied both in Marian's config and in value."""
    weights = mapper.remaining
    encoder, decoder = EMBEDDINGS
    shared = config.share_encoder_decoder_embeddings and equal(weights[encoder], weights[decoder])
    tied = config.tie_word_embeddings and equal(weights["lm_head.weight"], weights[decoder])
    if shared and equal(weights[encoder], weights["model.shared.weight"]):
        encoder = "model.shared.weight"
    target, output = None if shared else decoder, None if tied else "lm_head.weight"
    map_embeddings(mapper, encoder, target, output, "final_logits_bias")
    mapper.ignore(EMBEDDINGS, "shared")
    mapper.ignore(["model.shared.weight"], "not used by the stacks, which have separate embeddings")
    mapper.ignore(["lm_head.weight"], "tied to the embedding")

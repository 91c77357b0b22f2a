"""Converts fairseq's `transformer` checkpoints, with their dictionaries and BPE codes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.atomic_files import new_folder
from .embeddings import Rows, map_embeddings
from .fairseq_options import ACTIVATIONS, EOS, PAD, UNK, FairseqOptions, read_options
from .fairseq_tokenizer import FairseqTokenizer, fairseq_tokenizer
from .positions import tensor2tensor_sinusoids
from .report import ConversionReport
from .safe_loading import read_checkpoint
from .state_dict_mapper import NameTable, StateDictMapper

STACKS = ("encoder", "decoder")
FIRST_POSITION = PAD + 1
NAMES: NameTable = {
    "{stack}.layers.{i}.{module}.{p}": "model.{stack}.layers.{i}.{module}.{p}",
    "{stack}.layer_norm.{p}": "model.{stack}.layer_norm.{p}",
    # Old checkpoints: one matrix for queries, keys and values, and numbered norms.
    "{stack}.layers.{i}.{attention}.in_proj_{p}": (
        "model.{stack}.layers.{i}.{attention}.q_proj.{p}",
        "model.{stack}.layers.{i}.{attention}.k_proj.{p}",
        "model.{stack}.layers.{i}.{attention}.v_proj.{p}",
    ),
    "{stack}.layers.{i}.layer_norms.0.{p}": "model.{stack}.layers.{i}.self_attn_layer_norm.{p}",
    "encoder.layers.{i}.layer_norms.1.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
    "decoder.layers.{i}.layer_norms.1.{p}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "decoder.layers.{i}.layer_norms.2.{p}": "model.decoder.layers.{i}.final_layer_norm.{p}",
}


def from_fairseq(
    checkpoint: str | Path | Mapping[str, Any],
    *,
    num_heads: int | None = None,
    fairseq_ids: Rows | None = None,
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert the weights of a fairseq `transformer`.

    fairseq's sinusoids use other frequencies (their logarithms are spaced by `d_model / 2 - 1`), so their values become
    a table of learned positions. Dictionaries of different sizes are padded to one size, unless `fairseq_ids`
    specifies their common tokens.

    Args:
        checkpoint: a `.pt` file or its content: `"model"`, and `"args"` or `"cfg"`.
        num_heads: number of attention heads, if the checkpoint does not store it.
        fairseq_ids: for each token id of this model, fairseq's id in the source and in the target dictionary:
            `source_ids` and `target_ids` of a `FairseqTokenizer`. When `None`, the ids of fairseq are used.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: the file is damaged, is not a fairseq checkpoint or requires executing code; or an option or a
            weight has no counterpart in this model. The message names it.
    """
    origin = "the fairseq checkpoint" if isinstance(checkpoint, Mapping) else str(checkpoint)
    content = checkpoint if isinstance(checkpoint, Mapping) else read_checkpoint(checkpoint)
    options = read_options(content, origin)
    return convert_weights(content["model"], options, origin, num_heads, fairseq_ids)


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
    """Convert a fairseq checkpoint to a folder, with a tokenizer if a dictionary is given.

    Two dictionaries become one vocabulary, so that one tokenizer encodes sources and targets. If the target has
    separate codes, it is a `RandomTransformerTokenizer` with both.

    Args:
        checkpoint: a `.pt` file.
        output: a new or empty folder.
        source_dict: `dict.<source language>.txt`.
        target_dict: `dict.<target language>.txt`; `None` for the source's dictionary.
        source_codes: codes of subword-nmt or fastBPE; without them, texts must already be segmented.
        target_codes: the target's codes; `None` for the source's codes.
        num_heads: number of attention heads, if the checkpoint does not store it.

    Raises:
        ValueError: see `from_fairseq` and `fairseq_tokenizer`; or a dictionary and its embedding differ in size.
            In this case, nothing is written.
    """
    if source_dict is None and (target_dict or source_codes or target_codes):
        raise ValueError("source_dict must be given with target_dict, source_codes or target_codes, got None.")
    return convert_content(
        read_checkpoint(checkpoint),
        str(checkpoint),
        output,
        source_dict=source_dict,
        target_dict=target_dict,
        source_codes=source_codes,
        target_codes=target_codes,
        num_heads=num_heads,
    )


def convert_content(
    content: Any,
    origin: str,
    output: str | Path,
    *,
    source_dict: str | Path | None = None,
    target_dict: str | Path | None = None,
    source_codes: str | Path | None = None,
    target_codes: str | Path | None = None,
    num_heads: int | None = None,
) -> ConversionReport:
    """Convert the content of a checkpoint; `origin` is its name in errors. The rest is as in `convert_fairseq`."""
    options = read_options(content, origin)
    tokenizer, ids = None, None
    if source_dict is not None:
        tokenizer = fairseq_tokenizer(
            source_dict,
            source_codes,
            options.max_positions[0],
            target_dictionary=target_dict,
            target_codes=target_codes,
        )
        ids = tokenizer.source_ids, tokenizer.target_ids
        dictionaries = (source_dict, target_dict or source_dict)
        for stack, dictionary, tokens in zip(STACKS, dictionaries, tokenizer.sizes, strict=True):
            check_dictionary(content["model"], stack, dictionary, tokens)
    with new_folder(output) as temporary:
        model, report = convert_weights(content["model"], options, origin, num_heads, ids)
        model.save_pretrained(temporary)
        if tokenizer is None:
            report.notes.append("No dictionary was given, so the folder has no tokenizer.")
        else:
            save_tokenizer(tokenizer, temporary, report)
    return report


def convert_weights(
    weights: Mapping[str, Tensor], options: FairseqOptions, origin: str, num_heads: int | None, ids: Rows | None
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert a state dict with these options. Arguments and errors are those of `from_fairseq`."""
    mapper = StateDictMapper(origin, weights, title="fairseq transformer")
    derive_config(mapper, options, num_heads)
    map_shared_embeddings(mapper, options, ids)
    map_positions(mapper, options)
    mapper.ignore([f"{stack}.version" for stack in STACKS], "format version")
    mapper.rename(NAMES)
    model = mapper.finish()
    # fairseq's search generates neither padding nor an end token at the first step.
    model.generation_config.suppress_tokens = [PAD]
    model.generation_config.min_new_tokens = 1
    mapper.report.notes.append("As in fairseq, generate() never returns <pad>, nor </s> as the first token.")
    return model, mapper.report


def derive_config(mapper: StateDictMapper, options: FairseqOptions, num_heads: int | None) -> None:
    """Derive all config fields except those of embeddings and positions.

    Raises:
        ValueError: the number of heads is neither stored nor given, the given one is different, or a weight is missing.
    """
    stored = options.num_heads
    if None not in (stored, num_heads) and stored != num_heads:
        raise ValueError(f"num_heads must be encoder_attention_heads={stored}, got {num_heads}.")
    if stored is None and num_heads is None:
        raise ValueError("num_heads must be given if encoder_attention_heads is not stored, got None.")
    mapper.derive_config("encoder_attention_heads" if stored else "argument", num_heads=stored or num_heads)
    for stack in STACKS:
        layers = mapper.count_layers(stack)
        mapper.derive_config(f"the layers under {stack}.layers", **{f"{stack}_layers": layers})
    inner, width = mapper.peek("encoder.layers.0.fc1.weight", dims=2).shape
    mapper.derive_config("the shape of encoder.layers.0.fc1.weight", d_ff=inner, d_model=width)
    mapper.derive_config(f"activation_fn={options.activation}", activation_function=ACTIVATIONS[options.activation])
    norm_order = "pre" if options.pre_norm else "post"
    mapper.derive_config(f"encoder_normalize_before={options.pre_norm}", norm_order=norm_order, layer_norm_eps=1e-5)
    # Only pre-norm models have final norms, except old ones.
    final = options.pre_norm and mapper.has_final_norms("encoder.layer_norm", "decoder.layer_norm")
    mapper.derive_config("encoder.layer_norm and decoder.layer_norm", final_layer_norm=final)
    mapper.derive_config("no_scale_embedding", scale_embedding=options.scale_embedding)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        mapper.derive_config(name, **{name: getattr(options, name)})
    ids = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    mapper.derive_config("fairseq's dictionary; its decoder starts from </s>", **ids)
    for name, value in options.layerdrop.items():
        mapper.report.notes.append(f"{name}={value} affects training only and was dropped.")


def map_shared_embeddings(mapper: StateDictMapper, options: FairseqOptions, ids: Rows | None) -> None:
    """Share and tie the embeddings according to the options.

    Raises:
        ValueError: the weights or dictionaries contradict the options.
    """
    source, target = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    old_output = "decoder.embed_out"  # which is a parameter, not a module
    output = old_output if old_output in mapper.remaining else "decoder.output_projection.weight"
    if options.share_all_embeddings:
        check_equal(mapper, "share_all_embeddings", source, target)
        mapper.ignore([target], "shared with the encoder's")
        if ids and list(ids[0]) != list(ids[1]):
            raise ValueError("the two dictionaries must be equal if share_all_embeddings is on, but they differ.")
    if options.tie_output and output in mapper.remaining:
        embedding = source if options.share_all_embeddings else target
        check_equal(mapper, "share_decoder_input_output_embed", embedding, output)
        mapper.ignore([output], "tied to the decoder's embedding")
    names = (source, None if options.share_all_embeddings else target, None if options.tie_output else output)
    map_embeddings(mapper, *names, rows=ids, unk_token_id=UNK)


def check_equal(mapper: StateDictMapper, option: str, first: str, second: str) -> None:
    if second in mapper.remaining and not torch.equal(mapper.peek(first), mapper.peek(second)):
        raise ValueError(f"{first} and {second} must be equal if {option} is on, but they differ.")


def map_positions(mapper: StateDictMapper, options: FairseqOptions) -> None:
    """Map positions to tables of learned or sinusoidal positions. The first `FIRST_POSITION` rows are never used."""
    for stack in STACKS:
        buffers = [f"{stack}.embed_positions._float_tensor", f"{stack}.embed_positions.weights"]
        mapper.ignore(buffers, "buffers of sinusoids, which are computed")
    if not options.positions:
        return mapper.derive_config("no_token_positional_embeddings", position_embedding="none")
    length = table_length(mapper, options)
    for stack, learned in zip(STACKS, options.learned_positions, strict=True):
        name, rows = f"{stack}.embed_positions.weight", length + FIRST_POSITION
        if learned:
            mapper.set(f"model.{name}", mapper.pop(name)[:rows], name)
        else:
            table = tensor2tensor_sinusoids(rows, mapper.config_fields["d_model"], "encoder_embed_dim")
            mapper.default(f"model.{name}", table, "fairseq's sinusoids")
    mapper.derive_config(
        f"positions start after <pad>={PAD}", position_embedding="learned", position_offset=FIRST_POSITION
    )
    mapper.derive_config("the positions of both stacks", max_position_embeddings=length)
    notes = mapper.report.notes
    if not all(options.learned_positions):
        notes.append(
            "fairseq's sinusoids differ from this model's (their frequencies are spaced by d_model / 2 - 1). Their "
            "values became a table of learned positions, which training updates."
        )
    notes.append(f"Texts can have at most {length} tokens, the number of positions.")
    return None


def table_length(mapper: StateDictMapper, options: FairseqOptions) -> int:
    """The number of positions: the length of the shorter learned table or, without one, the larger option.

    Sinusoids can be computed to the length of the other stack's learned table.
    """
    learned = [
        len(mapper.peek(f"{stack}.embed_positions.weight", dims=2)) - FIRST_POSITION
        for stack, is_learned in zip(STACKS, options.learned_positions, strict=True)
        if is_learned
    ]
    return min(learned) if learned else max(options.max_positions)


def check_dictionary(weights: Mapping[str, Tensor], stack: str, dictionary: str | Path, tokens: int) -> None:
    """Raise a `ValueError` unless a dictionary has a token for each row of its embedding."""
    table = weights.get(f"{stack}.embed_tokens.weight")
    if table is not None and table.dim() and len(table) != tokens:
        raise ValueError(
            f"{dictionary} must have a token for each row of the {stack}'s embedding, {len(table)}, "
            f"got {tokens} with the 4 special tokens."
        )


def save_tokenizer(tokenizers: FairseqTokenizer, folder: Path, report: ConversionReport) -> None:
    """Save the tokenizer."""
    tokenizers.tokenizer.save_pretrained(folder)
    if "target_merges" in tokenizers.tokenizer.init_kwargs:
        report.notes.append("The tokenizer splits sources and targets (`text_target=`) by their own codes.")
    source, target = tokenizers.sizes
    report.notes.append(
        f"The vocabulary of {len(tokenizers.source_ids)} ids contains {source} tokens of the source dictionary, "
        f"{target} of the target dictionary and intermediate BPE pieces. A token that is missing from a dictionary has "
        "the embedding of <unk> there, and a lower logit than <unk>."
    )
    report.notes.append("The tokenizer splits at spaces: separate punctuation as in the training data.")
    if not tokenizers.segments:
        report.notes.append("Without codes, texts must already be segmented (hel@@ lo).")

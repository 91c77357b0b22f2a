"""fairseq's `transformer` checkpoints, and their dictionaries and BPE codes, as a Random Transformer."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.files import new_folder
from .fairseq_options import PAD, UNK, check_options, derive_fields, position_count, read_options
from .fairseq_tokenizer import FairseqTokenizer, fairseq_tokenizer
from .files import read_checkpoint
from .report import Report
from .state_dict_mapper import Transfer, count_layers
from .vocabularies import Rows, move_vocabularies

STACKS = ("encoder", "decoder")
TARGET_TOKENIZER = "target_tokenizer"  # the folder in the folder, where the target has codes of its own
FIRST_POSITION = PAD + 1
# The norms of a layer, in the order of the numbers that old checkpoints give them.
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def from_fairseq(
    checkpoint: str | Path | Mapping[str, Any],
    *,
    num_heads: int | None = None,
    fairseq_ids: Rows | None = None,
) -> tuple[RandomTransformerForConditionalGeneration, Report]:
    """The weights of a fairseq `transformer` in a model of ours.

    fairseq's sinusoids divide the logarithm of the frequencies by `d_model / 2 - 1`, which ours do not, so its values
    become a table of positions, as for learned ones. Dictionaries of two sizes become one size, the smaller filled up,
    unless `fairseq_ids` says which tokens of the two are the same.

    Args:
        checkpoint: a `.pt` file, or what it holds: `"model"`, and `"args"` or `"cfg"`.
        num_heads: where the checkpoint does not say it.
        fairseq_ids: for each token id of the model, fairseq's in the source's and in the target's dictionary:
            `source_ids` and `target_ids` of a `FairseqTokenizer`. When `None` the ids are fairseq's.

    Returns:
        The model, in evaluation mode, and what was mapped.

    Raises:
        ValueError: the file is damaged, not fairseq's or asks for code to be run; or the model is one that ours cannot
            equal; the message names the option or the weight.
    """
    origin = "the fairseq checkpoint" if isinstance(checkpoint, Mapping) else str(checkpoint)
    content = checkpoint if isinstance(checkpoint, Mapping) else read_checkpoint(checkpoint)
    options = read_options(content, origin)
    check_options(options)
    transfer = Transfer(origin, modern_names(content["model"]), kind="fairseq transformer")
    derive_fields(transfer, options, num_heads)
    move_embeddings(transfer, options, fairseq_ids)
    for stack in STACKS:
        move_stack(transfer, stack)
    move_final_norms(transfer, bool(options.get("encoder_normalize_before")))
    move_positions(transfer, options)
    transfer.leave([f"{stack}.version" for stack in STACKS], "the format's version, not a weight")
    model = transfer.finish()
    search_as_fairseq(model, transfer.report)
    return model, transfer.report


def convert_fairseq(
    checkpoint: str | Path,
    output: str | Path,
    *,
    source_dict: str | Path | None = None,
    target_dict: str | Path | None = None,
    source_codes: str | Path | None = None,
    target_codes: str | Path | None = None,
    num_heads: int | None = None,
) -> Report:
    """Write a folder with the model of a fairseq checkpoint, and with its tokenizer where a dictionary is given.

    Two dictionaries become one vocabulary, so that one tokenizer encodes sources and decodes what is generated. Where
    the target has codes of its own, `target_tokenizer` in `output` holds the tokenizer that splits targets by them.

    Args:
        checkpoint: a `.pt` file.
        output: a new or an empty folder.
        source_dict: `dict.<source language>.txt`.
        target_dict: `dict.<target language>.txt`; `None` where it is the source's.
        source_codes: the codes of subword-nmt or fastBPE; without them texts are expected to be segmented already.
        target_codes: those of the target; `None` where they are the source's.
        num_heads: where the checkpoint does not say it.

    Raises:
        ValueError: as of `from_fairseq` and `fairseq_tokenizer`, or a dictionary has not the length of its embedding.
            Then nothing is written.
    """
    if source_dict is None and (target_dict or source_codes or target_codes):
        raise ValueError("source_dict must be given with target_dict, source_codes or target_codes, got None.")
    content = read_checkpoint(checkpoint)
    options = read_options(content, str(checkpoint))
    tokenizer, ids = None, None
    if source_dict is not None:
        length = position_count(options, "source")
        tokenizer = fairseq_tokenizer(
            source_dict, source_codes, length, target_dictionary=target_dict, target_codes=target_codes
        )
        ids = tokenizer.source_ids, tokenizer.target_ids
        dictionaries = (source_dict, target_dict or source_dict)
        for stack, dictionary, tokens in zip(STACKS, dictionaries, tokenizer.sizes, strict=True):
            check_dictionary(content["model"], stack, dictionary, tokens)
    with new_folder(output) as temporary:
        model, report = from_fairseq(content, num_heads=num_heads, fairseq_ids=ids)
        model.save_pretrained(temporary)
        if tokenizer is None:
            report.notes.append("No dictionary was given, so the folder has no tokenizer.")
        else:
            save_tokenizer(tokenizer, temporary, report)
    return report


def check_dictionary(weights: Mapping[str, Tensor], stack: str, dictionary: str | Path, tokens: int) -> None:
    """Refuse a dictionary that has not one token for each row of its embedding.

    Raises:
        ValueError: it has not.
    """
    table = weights.get(f"{stack}.embed_tokens.weight")
    if table is not None and table.dim() and len(table) != tokens:
        raise ValueError(
            f"{dictionary} must have a token for each row of the {stack}'s embedding, {len(table)}, "
            f"got {tokens} with the 4 special ones."
        )


def save_tokenizer(made: FairseqTokenizer, folder: Path, report: Report) -> None:
    """The tokenizer into the folder, a target's of its own into one within."""
    made.tokenizer.save_pretrained(folder)
    if made.target_tokenizer.backend_tokenizer.to_str() != made.tokenizer.backend_tokenizer.to_str():
        made.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
        report.notes.append(f"The folder's tokenizer splits sources; the one in {TARGET_TOKENIZER} splits targets.")
    source, target = made.sizes
    report.notes.append(
        f"{len(made.source_ids)} ids stand for {source} tokens of the source's dictionary, {target} of the "
        "target's and what merging passes through. What a dictionary has not is its <unk>, and never preferred to it."
    )
    report.notes.append("The tokenizer splits at spaces: punctuation is to be separated as it was for training.")
    if not made.segments:
        report.notes.append("Without codes, texts are to be segmented already (hel@@ lo).")


def modern_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of today: in old checkpoints norms have numbers, and the output layer is no module."""
    renamed = {}
    for name, weight in weights.items():
        old = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(weight|bias)", name)
        if old is not None and int(old[3]) < len(NORMS[old[2]]):
            name = f"{old[1]}.{NORMS[old[2]][int(old[3])]}.{old[4]}"
        renamed["decoder.output_projection.weight" if name == "decoder.embed_out" else name] = weight
    return renamed


def move_embeddings(transfer: Transfer, options: Mapping[str, Any], ids: Rows | None) -> None:
    """Share and tie what the options say, which the weights must bear out.

    Raises:
        ValueError: they do not.
    """
    source, target, output = (
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
    )
    width = transfer.look(source, dims=2).shape[1]
    transfer.derive(f"the width of {source}", d_model=width)
    shared = bool(options.get("share_all_embeddings"))
    tied = shared or bool(options.get("share_decoder_input_output_embed"))
    if shared:
        check_equal(transfer, "share_all_embeddings", source, target)
        transfer.leave([target], "shared with the encoder's")
        if ids and list(ids[0]) != list(ids[1]):
            raise ValueError("the two dictionaries must be the same, as share_all_embeddings is on, but they differ.")
    if tied and output in transfer.left:
        check_equal(transfer, "share_decoder_input_output_embed", source if shared else target, output)
        transfer.leave([output], "tied to the decoder's embedding")
    names = (source, None if shared else target, None if tied else output)
    move_vocabularies(transfer, *names, rows=ids, unk_token_id=UNK)


def check_equal(transfer: Transfer, option: str, one: str, other: str) -> None:
    if other in transfer.left and not torch.equal(transfer.look(one), transfer.look(other)):
        raise ValueError(f"{one} and {other} must be the same, as {option} is on, but they differ.")


def move_stack(transfer: Transfer, stack: str) -> None:
    """The layers of the encoder or of the decoder."""
    layers = count_layers(transfer, stack)
    transfer.derive(f"the layers under {stack}.layers", **{f"{stack}_layers": layers})
    if stack == "encoder":
        inner = len(transfer.look("encoder.layers.0.fc1.weight", dims=2))
        transfer.derive("the rows of encoder.layers.0.fc1.weight", d_ff=inner)
    for i in range(layers):
        theirs, ours = f"{stack}.layers.{i}", f"model.{stack}.layers.{i}"
        for attention in ("self_attn", "encoder_attn")[: STACKS.index(stack) + 1]:
            move_attention(transfer, f"{theirs}.{attention}", f"{ours}.{attention}")
        for part in (*NORMS[stack], "fc1", "fc2"):
            move_weight_and_bias(transfer, f"{theirs}.{part}", f"{ours}.{part}")


def move_attention(transfer: Transfer, theirs: str, ours: str) -> None:
    """Projections, which old checkpoints have in one matrix."""
    move_weight_and_bias(transfer, f"{theirs}.out_proj", f"{ours}.out_proj")
    if f"{theirs}.in_proj_weight" in transfer.left:
        for kind in ("weight", "bias"):
            transfer.move(f"{theirs}.in_proj_{kind}", *(f"{ours}.{part}_proj.{kind}" for part in "qkv"))
        return
    for part in "qkv":
        move_weight_and_bias(transfer, f"{theirs}.{part}_proj", f"{ours}.{part}_proj")


def move_weight_and_bias(transfer: Transfer, theirs: str, ours: str) -> None:
    for kind in ("weight", "bias"):
        transfer.move(f"{theirs}.{kind}", f"{ours}.{kind}")


def move_final_norms(transfer: Transfer, before: bool) -> None:
    """The norms at the end of the stacks, which only `normalize_before` has, and not in old checkpoints.

    Raises:
        ValueError: one stack has a norm there and the other has not.
    """
    present = [f"{stack}.layer_norm.weight" in transfer.left for stack in STACKS]
    if before and any(present) and not all(present):
        raise ValueError("encoder.layer_norm and decoder.layer_norm must both be there or neither, got one of them.")
    transfer.derive("encoder.layer_norm and decoder.layer_norm", final_layer_norm=before and all(present))
    for stack in STACKS if before and all(present) else ():
        move_weight_and_bias(transfer, f"{stack}.layer_norm", f"model.{stack}.layer_norm")


def move_positions(transfer: Transfer, options: Mapping[str, Any]) -> None:
    """Positions as tables, learned or of fairseq's sinusoids, whose first `FIRST_POSITION` rows are never looked up."""
    names = [f"{stack}.embed_positions" for stack in STACKS]
    sizes = [position_count(options, end) for end in ("source", "target")]
    for name in names:
        stored = [f"{name}._float_tensor", f"{name}.weights"]
        transfer.leave(stored, "of sinusoids, which are computed")
    if options.get("no_token_positional_embeddings"):
        return transfer.derive("no_token_positional_embeddings", position_embedding="none")
    learned = [bool(options.get(f"{stack}_learned_pos")) for stack in STACKS]
    lengths = [
        len(transfer.look(f"{name}.weight", dims=2)) - FIRST_POSITION if is_learned else size
        for name, is_learned, size in zip(names, learned, sizes, strict=True)
    ]
    # A sinusoid can be made as long as the other stack's table, which cannot.
    limits = [length for length, is_learned in zip(lengths, learned, strict=True) if is_learned]
    length = min(limits) if limits else max(lengths)
    for name, is_learned in zip(names, learned, strict=True):
        move_table(transfer, name, length + FIRST_POSITION, is_learned)
    transfer.derive(f"positions start behind <pad>={PAD}", position_embedding="learned", position_offset=FIRST_POSITION)
    transfer.derive("the positions of both stacks", max_position_embeddings=length)
    return tell_positions(transfer, learned, length)


def move_table(transfer: Transfer, name: str, rows: int, learned: bool) -> None:
    ours = f"model.{name}.weight"
    if learned:
        transfer.put(f"{name}.weight", ours, transfer.take(f"{name}.weight")[:rows], "as it is")
    else:
        transfer.fill(ours, fairseq_sinusoids(rows, transfer.fields["d_model"]), "fairseq's sinusoids")


def tell_positions(transfer: Transfer, learned: list[bool], length: int) -> None:
    notes = transfer.report.notes
    if not all(learned):
        notes.append(
            "fairseq's sinusoids are not ours (their frequencies are spaced by d_model / 2 - 1), so its values stand "
            "in a table as learned positions do, and training would change them."
        )
    notes.append(f"Positions reach to {length} tokens; longer texts are refused.")


def fairseq_sinusoids(rows: int, d_model: int) -> Tensor:
    """sin(p · 10000^(-i / (d_model / 2 - 1))), then the cosines, `[rows, d_model]`, in float32 as fairseq computes.

    Raises:
        ValueError: there are fewer than two frequencies.
    """
    frequencies = d_model // 2
    if frequencies < 2:
        raise ValueError(f"encoder_embed_dim must be at least 4 for fairseq's sinusoids, got {d_model}.")
    step = -math.log(10000) / (frequencies - 1)
    angles = torch.arange(rows, dtype=torch.float)[:, None] * torch.exp(torch.arange(frequencies).float() * step)
    odd = torch.zeros(rows, d_model % 2)
    return torch.cat([angles.sin(), angles.cos(), odd], dim=1)


def search_as_fairseq(model: RandomTransformerForConditionalGeneration, report: Report) -> None:
    """What fairseq's search does whatever it is asked: no padding in a target, and no end before the first token."""
    model.generation_config.suppress_tokens = [PAD]
    model.generation_config.min_new_tokens = 1
    report.notes.append("As in fairseq's search, generate() never chooses <pad>, nor </s> as the first token.")

"""`torch.nn.Transformer`, and the embeddings and output layer around it, as a Random Transformer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.files import new_folder
from .files import is_state_dict, read_checkpoint
from .report import Report
from .state_dict_mapper import Transfer, count_layers, some
from .torch_options import Options, find_options
from .vocabularies import move_vocabularies

Positions = str | Tensor | tuple[Tensor, Tensor]
POSITIONS = ("none", "sinusoidal", "concatenated")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
ATTENTIONS = {
    "encoder": {"self_attn": "self_attn"},
    "decoder": {"self_attn": "self_attn", "multihead_attn": "encoder_attn"},
}
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def from_torch_transformer(
    transformer: nn.Transformer | Mapping[str, Tensor],
    embedding: nn.Embedding | Tensor | tuple[nn.Embedding | Tensor, nn.Embedding | Tensor],
    output: nn.Linear | Tensor | None = None,
    *,
    positions: Positions = "none",
    scale_embedding: bool = False,
    num_heads: int | None = None,
    norm_first: bool | None = None,
    activation: str | None = None,
    layer_norm_eps: float | None = None,
    dropout: float | None = None,
    **token_ids: int | None,
) -> tuple[RandomTransformerForConditionalGeneration, Report]:
    """The weights of an `nn.Transformer`, and of what its user put before and behind it, in a model of ours.

    Args:
        transformer: the module, or its state dict.
        embedding: the embedding matrix, `[vocabulary, d_model]`; or the source's and the target's.
        output: the output layer, `[target_vocabulary, d_model]`; `None` where it is the target's embedding, transposed.
        positions: what is added to embeddings: `"none"`, the paper's sinusoids (`"sinusoidal"`), all sines before all
            cosines (`"concatenated"`), or a table `[length, d_model]`, or one for the source and one for the target.
        scale_embedding: embeddings are multiplied by `sqrt(d_model)` before positions are added.
        num_heads: of the attention; needed for a state dict. A module says this and the next four itself.
        norm_first: as of `nn.Transformer`, False when `None`.
        activation: `"relu"` or `"gelu"`; relu when `None`.
        layer_norm_eps: 1e-5 when `None`.
        dropout: 0.1 when `None`.
        **token_ids: `pad_token_id`, `bos_token_id`, `eos_token_id` and `decoder_start_token_id`, where they differ
            from our config's defaults.

    Returns:
        The model, in evaluation mode, and what was mapped.

    Raises:
        ValueError: an argument or a weight is missing, contradicts the others or has no place in our model; the
            message names it.
    """
    given: dict[str, Any] = {"num_heads": num_heads, "norm_first": norm_first, "activation": activation}
    given |= {"layer_norm_eps": layer_norm_eps, "dropout": dropout}
    options = find_options(transformer, {name: value for name, value in given.items() if value is not None})
    check_token_ids(token_ids)
    weights = transformer.state_dict() if isinstance(transformer, nn.Transformer) else transformer
    if not is_state_dict(weights):
        raise ValueError("transformer must be an nn.Transformer or a state dict, tensors by their names.")
    transfer = Transfer("nn.Transformer", weights)
    transfer.left.update(surroundings(embedding, output, positions))
    derive_fields(transfer, options, scale_embedding)
    for stack in NORMS:
        move_stack(transfer, stack, biased=any(name.endswith("bias") for name in weights))
    move_final_norms(transfer)
    move_embeddings(transfer)
    move_positions(transfer, positions)
    transfer.derive("given", **token_ids)
    return transfer.finish(), transfer.report


def convert_torch_transformer(
    checkpoint: str | Path,
    output: str | Path,
    *,
    embedding: Sequence[str],
    output_layer: str | None = None,
    positions: Sequence[str] = ("none",),
    prefix: str = "",
    key: str | None = None,
    ignore: Sequence[str] = (),
    **options: Any,
) -> Report:
    """Write a folder with the model of a checkpoint that holds an `nn.Transformer` among its weights.

    Args:
        checkpoint: a `.pt` or `.safetensors` file with a state dict.
        output: a new or an empty folder.
        embedding: the name of the embedding matrix; or those of the source's and the target's.
        output_layer: the name of the output layer, without `.weight`; `None` where it is the target's embedding.
        positions: `"none"`, `"sinusoidal"` or `"concatenated"`; or the name of a table, or of two.
        prefix: what the names of the `nn.Transformer` start with, such as `"transformer."`.
        key: where the state dict lies in the file, if it is not all of it.
        ignore: names of weights that are not to be taken over.
        **options: the other arguments of `from_torch_transformer`.

    Raises:
        ValueError: as of `from_torch_transformer`, or the file is not what is described. Then nothing is written.
    """
    with new_folder(output) as temporary:
        pieces = read_pieces(checkpoint, key, prefix, embedding, output_layer, positions, ignore)
        model, report = from_torch_transformer(**pieces, **options)
        report.unused.update(dict.fromkeys(ignore, "to be ignored"))
        report.notes.append(f"From {Path(checkpoint).name}: {', '.join((*embedding, *filter(None, [output_layer])))}.")
        model.save_pretrained(temporary)
    return report


def read_pieces(
    checkpoint: str | Path,
    key: str | None,
    prefix: str,
    embedding: Sequence[str],
    output_layer: str | None,
    positions: Sequence[str],
    ignore: Sequence[str],
) -> dict[str, Any]:
    """The first arguments of `from_torch_transformer`, from a file in which they have these names.

    Raises:
        ValueError: the file cannot be read, or a name is missing in it or left over.
    """
    content = read_checkpoint(checkpoint)
    weights: Any = content.get(key) if key and isinstance(content, dict) else content
    if not is_state_dict(weights):
        found = some(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"key must name the state dict in {checkpoint}, got {key!r}; the file holds {found}.")
    transfer = Transfer(str(checkpoint), weights)
    transfer.leave(ignore, "to be ignored")
    pieces: dict[str, Any] = {"embedding": one_or_two([transfer.look(name, dims=2) for name in embedding])}
    named = positions[0] in POSITIONS
    pieces["positions"] = positions[0] if named else one_or_two([transfer.look(name) for name in positions])
    taken = {*embedding, *(() if named else positions)}
    if output_layer:
        pieces["output"] = read_linear(transfer, output_layer)
        taken |= {f"{output_layer}.weight", f"{output_layer}.bias"}
    rest = {name: weight for name, weight in transfer.left.items() if name not in taken}
    strangers = [name for name in rest if not name.startswith(prefix)]
    if strangers:
        raise ValueError(
            f"{checkpoint} must hold weights under {prefix!r} and those that are named, got {some(strangers)} too."
        )
    return {"transformer": {name.removeprefix(prefix): weight for name, weight in rest.items()}, **pieces}


def read_linear(transfer: Transfer, name: str) -> nn.Linear:
    weight = transfer.look(f"{name}.weight", dims=2)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in transfer.left, device="meta")
    linear.weight = nn.Parameter(weight)
    if linear.bias is not None:
        linear.bias = nn.Parameter(transfer.look(f"{name}.bias", dims=1))
    return linear


def one_or_two(values: list[Tensor]) -> Tensor | tuple[Tensor, Tensor]:
    if len(values) not in (1, 2):
        raise ValueError(f"embedding and positions must have one name or two (source, target), got {len(values)}.")
    return values[0] if len(values) == 1 else (values[0], values[1])


def check_token_ids(token_ids: Mapping[str, Any]) -> None:
    for name in token_ids:
        if name not in TOKENS:
            raise ValueError(
                f"arguments must be those of from_torch_transformer or among {some(TOKENS)}, got {name!r}."
            )


def surroundings(embedding: Any, output: Any, positions: Any) -> dict[str, Tensor]:
    """What is not in the `nn.Transformer`, under names of our choice."""
    found = named_pair("embedding", embedding)
    if type(output) is nn.Linear:
        found |= {f"output.{name}": weight for name, weight in output.state_dict().items()}
    elif output is not None:
        found["output.weight"] = weight_of("output", output)
    if positions is None or (isinstance(positions, str) and positions not in POSITIONS):
        raise ValueError(f"positions must be a table or one of {some(POSITIONS)}, got {positions!r}.")
    if not isinstance(positions, str):
        tables = named_pair("positions", positions)
        found |= {name: table.squeeze() for name, table in tables.items()}  # often [length, 1, d_model]
    return found


def named_pair(name: str, value: Any) -> dict[str, Tensor]:
    """One weight, or one for the source and one for the target."""
    if not isinstance(value, tuple | list):
        return {name: weight_of(name, value)}
    if len(value) != 2:
        raise ValueError(f"{name} must be one weight or two (source, target), got {len(value)}.")
    if value[0] is value[1]:
        return {name: weight_of(name, value[0])}
    return {f"source_{name}": weight_of(name, value[0]), f"target_{name}": weight_of(name, value[1])}


def weight_of(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) not in (nn.Embedding, nn.Linear) or getattr(value, "bias", None) is not None:
        allowed = "a tensor, an nn.Embedding or an nn.Linear" + ("" if name == "output" else " without a bias")
        raise ValueError(f"{name} must be {allowed}, and no class of its own, got {type(value).__name__}.")
    if getattr(value, "max_norm", None) is not None:
        raise ValueError(f"max_norm of {name} must be None, got {value.max_norm}: this model has nothing like it.")
    return value.weight.detach()


def derive_fields(transfer: Transfer, options: Options, scale_embedding: bool) -> None:
    """Every config field but those that follow from embeddings and positions."""
    for stack in NORMS:
        transfer.derive(f"the layers under {stack}.layers", **{f"{stack}_layers": count_layers(transfer, stack)})
    inner, width = transfer.look("encoder.layers.0.linear1.weight", dims=2).shape
    transfer.derive("the shape of encoder.layers.0.linear1.weight", d_ff=inner, d_model=width)
    transfer.derive("num_heads", num_heads=options.num_heads)
    transfer.derive(f"norm_first={options.norm_first}", norm_order="pre" if options.norm_first else "post")
    transfer.derive("activation", activation_function=options.activation)
    transfer.derive("layer_norm_eps", layer_norm_eps=options.layer_norm_eps)
    rates = ("dropout", "attention_dropout", "activation_dropout")
    transfer.derive("dropout, which is for all three", **dict.fromkeys(rates, options.dropout))
    transfer.derive("given", scale_embedding=scale_embedding)


def move_stack(transfer: Transfer, stack: str, biased: bool) -> None:
    """The layers of the encoder or of the decoder."""
    transfer.derive("in_proj_bias" if biased else "bias=False", attention_bias=biased)
    for i in range(count_layers(transfer, stack)):
        theirs, ours = f"{stack}.layers.{i}", f"model.{stack}.layers.{i}"
        for attention, our_attention in ATTENTIONS[stack].items():
            move_attention(transfer, f"{theirs}.{attention}", f"{ours}.{our_attention}", biased)
        for number in (1, 2):
            move_with_bias(transfer, f"{theirs}.linear{number}", f"{ours}.fc{number}", biased)
        for number, norm in enumerate(NORMS[stack], start=1):
            move_with_bias(transfer, f"{theirs}.norm{number}", f"{ours}.{norm}", biased)


def move_attention(transfer: Transfer, theirs: str, ours: str, biased: bool) -> None:
    for kind in ("weight", "bias") if biased else ("weight",):
        transfer.move(f"{theirs}.in_proj_{kind}", *(f"{ours}.{part}_proj.{kind}" for part in "qkv"))
        transfer.move(f"{theirs}.out_proj.{kind}", f"{ours}.out_proj.{kind}")


def move_with_bias(transfer: Transfer, theirs: str, ours: str, biased: bool) -> None:
    """A linear layer or a norm; ours always has a bias, which is zero where theirs has none."""
    transfer.move(f"{theirs}.weight", f"{ours}.weight")
    if biased:
        transfer.move(f"{theirs}.bias", f"{ours}.bias")
    else:
        weight = transfer.state[f"{ours}.weight"]
        transfer.fill(f"{ours}.bias", weight.new_zeros(len(weight)), "zeros, as bias=False")


def move_final_norms(transfer: Transfer) -> None:
    """The norms that `nn.Transformer` has at the end of both stacks, and custom ones may have left out."""
    present = [f"{stack}.norm.weight" in transfer.left for stack in NORMS]
    if any(present) and not all(present):
        raise ValueError("encoder.norm and decoder.norm must both be there or neither, got one of them.")
    transfer.derive("encoder.norm and decoder.norm", final_layer_norm=all(present))
    for stack in NORMS if all(present) else ():
        biased = transfer.fields["attention_bias"]
        move_with_bias(transfer, f"{stack}.norm", f"model.{stack}.layer_norm", biased)


def move_embeddings(transfer: Transfer) -> None:
    shared = "embedding" in transfer.left
    source, target = ("embedding", None) if shared else ("source_embedding", "target_embedding")
    output = "output.weight" if "output.weight" in transfer.left else None
    bias = "output.bias" if "output.bias" in transfer.left else None
    move_vocabularies(transfer, source, target, output, bias)


def move_positions(transfer: Transfer, positions: Any) -> None:
    if not isinstance(positions, str):
        one = "positions" in transfer.left
        transfer.move_positions(*(["positions"] * 2 if one else ["source_positions", "target_positions"]))
    elif positions == "none":
        transfer.derive("positions='none'", position_embedding="none")
    else:
        layout = "interleaved" if positions == "sinusoidal" else positions
        transfer.derive(f"positions={positions!r}", position_embedding="sinusoidal", sinusoid_layout=layout)

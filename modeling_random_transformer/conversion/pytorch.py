"""Converts `torch.nn.Transformer` with its embeddings and output layer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.atomic_files import new_folder
from ..utils.errors import format_names
from .embeddings import map_embeddings
from .positions import map_position_tables
from .pytorch_checkpoint import POSITIONS, OneOrTwo, TorchCheckpoint, read_torch_checkpoint
from .pytorch_options import TorchOptions, find_options
from .report import ConversionReport
from .safe_loading import is_state_dict
from .state_dict_mapper import NameTable, StateDictMapper

STACKS = ("encoder", "decoder")
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
NAMES: NameTable = {
    "{stack}.layers.{i}.self_attn.in_proj_{p}": (
        "model.{stack}.layers.{i}.self_attn.q_proj.{p}",
        "model.{stack}.layers.{i}.self_attn.k_proj.{p}",
        "model.{stack}.layers.{i}.self_attn.v_proj.{p}",
    ),
    "{stack}.layers.{i}.self_attn.out_proj.{p}": "model.{stack}.layers.{i}.self_attn.out_proj.{p}",
    "{stack}.layers.{i}.norm1.{p}": "model.{stack}.layers.{i}.self_attn_layer_norm.{p}",
    "{stack}.layers.{i}.linear1.{p}": "model.{stack}.layers.{i}.fc1.{p}",
    "{stack}.layers.{i}.linear2.{p}": "model.{stack}.layers.{i}.fc2.{p}",
    "encoder.layers.{i}.norm2.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
    "decoder.layers.{i}.multihead_attn.in_proj_{p}": (
        "model.decoder.layers.{i}.encoder_attn.q_proj.{p}",
        "model.decoder.layers.{i}.encoder_attn.k_proj.{p}",
        "model.decoder.layers.{i}.encoder_attn.v_proj.{p}",
    ),
    "decoder.layers.{i}.multihead_attn.out_proj.{p}": "model.decoder.layers.{i}.encoder_attn.out_proj.{p}",
    "decoder.layers.{i}.norm2.{p}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "decoder.layers.{i}.norm3.{p}": "model.decoder.layers.{i}.final_layer_norm.{p}",
    "{stack}.norm.{p}": "model.{stack}.layer_norm.{p}",
}


def from_torch_transformer(
    transformer: nn.Transformer | Mapping[str, Tensor],
    embedding: nn.Embedding | Tensor | tuple[nn.Embedding | Tensor, nn.Embedding | Tensor],
    output: nn.Linear | Tensor | None = None,
    *,
    positions: str | OneOrTwo = "none",
    scale_embedding: bool = False,
    num_heads: int | None = None,
    norm_first: bool | None = None,
    activation: str | None = None,
    layer_norm_eps: float | None = None,
    dropout: float | None = None,
    **token_ids: int | None,
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert the weights of an `nn.Transformer`, its embeddings and its output layer.

    Args:
        transformer: the module, or its state dict.
        embedding: the embedding matrix, `[vocabulary, d_model]`; or a source and a target matrix.
        output: the output layer, `[target_vocabulary, d_model]`; `None` if it is tied to the target's embedding.
        positions: added to the embeddings: `"none"`, the paper's sinusoids (`"sinusoidal"`), all sines before all
            cosines (`"concatenated"`), or a table `[length, d_model]`, or one for the source and one for the target.
        scale_embedding: multiply embeddings by `sqrt(d_model)` before positions are added.
        num_heads: number of attention heads, required for a state dict. This and the next four arguments are read from
            a module.
        norm_first: see `nn.Transformer`; False when `None`.
        activation: `"relu"` or `"gelu"`; relu when `None`.
        layer_norm_eps: 1e-5 when `None`.
        dropout: 0.1 when `None`.
        **token_ids: `pad_token_id`, `bos_token_id`, `eos_token_id` and `decoder_start_token_id`, if they differ from
            the defaults of `RandomTransformerConfig`.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: an argument or a weight is missing, contradicts the others or has no counterpart in this model. The
            message names it.
    """
    arguments: dict[str, Any] = {"num_heads": num_heads, "norm_first": norm_first, "activation": activation}
    arguments |= {"layer_norm_eps": layer_norm_eps, "dropout": dropout}
    options = find_options(transformer, {name: value for name, value in arguments.items() if value is not None})
    check_token_ids(token_ids)
    weights = transformer.state_dict() if isinstance(transformer, nn.Transformer) else transformer
    if not is_state_dict(weights):
        raise ValueError("transformer must be an nn.Transformer or a state dict of named tensors.")
    mapper = StateDictMapper("nn.Transformer", {**weights, **outer_weights(embedding, output, positions)})
    derive_config(mapper, options, has_biases=any(name.endswith("bias") for name in weights))
    mapper.derive_config("argument", scale_embedding=scale_embedding, **token_ids)
    mapper.rename(NAMES)
    if not mapper.config_fields["attention_bias"]:
        set_zero_biases(mapper)
    map_outer_embeddings(mapper)
    map_positions(mapper, positions)
    return mapper.finish(), mapper.report


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
) -> ConversionReport:
    """Convert a checkpoint that contains an `nn.Transformer` among its weights to a folder.

    Args:
        checkpoint: a `.pt` or `.safetensors` file with a state dict.
        output: a new or empty folder.
        embedding: name of the embedding matrix; or names of a source and a target matrix.
        output_layer: name of the output layer, without `.weight`; `None` if it is tied to the target's embedding.
        positions: `"none"`, `"sinusoidal"` or `"concatenated"`; or the name of a table, or of two.
        prefix: prefix of the names of the `nn.Transformer`, such as `"transformer."`.
        key: key of the state dict, if the file contains other objects too.
        ignore: names of weights that are not converted.
        **options: the other arguments of `from_torch_transformer`.

    Raises:
        ValueError: see `from_torch_transformer`; or the file does not match the description. In this case, nothing is
            written.
    """
    with new_folder(output) as temporary:
        loaded = read_torch_checkpoint(
            checkpoint,
            embedding=embedding,
            output_layer=output_layer,
            positions=positions,
            prefix=prefix,
            key=key,
            ignore=ignore,
        )
        model, report = from_checkpoint(loaded, **options)
        report.unused.update(dict.fromkeys(ignore, "ignored on request"))
        report.notes.append(f"From {Path(checkpoint).name}: {', '.join((*embedding, *filter(None, [output_layer])))}.")
        model.save_pretrained(temporary)
    return report


def from_checkpoint(
    checkpoint: TorchCheckpoint, **options: Any
) -> tuple[RandomTransformerForConditionalGeneration, ConversionReport]:
    """Convert the weights of a checkpoint. Options, result and errors are those of `from_torch_transformer`."""
    return from_torch_transformer(
        checkpoint.transformer, checkpoint.embedding, checkpoint.output, positions=checkpoint.positions, **options
    )


def check_token_ids(token_ids: Mapping[str, Any]) -> None:
    for name in token_ids:
        if name not in TOKEN_IDS:
            raise ValueError(
                f"arguments must be those of from_torch_transformer or one of {format_names(TOKEN_IDS)}, got {name!r}."
            )


def outer_weights(embedding: Any, output: Any, positions: Any) -> dict[str, Tensor]:
    """The weights of embeddings, positions and output layer, by argument name."""
    weights = name_weights("embedding", embedding)
    if type(output) is nn.Linear:
        weights |= {f"output.{name}": weight for name, weight in output.state_dict().items()}
    elif output is not None:
        weights["output.weight"] = weight_of("output", output)
    if positions is None or (isinstance(positions, str) and positions not in POSITIONS):
        raise ValueError(f"positions must be a table or one of {format_names(POSITIONS)}, got {positions!r}.")
    if not isinstance(positions, str):
        tables = name_weights("positions", positions)
        weights |= {name: table.squeeze() for name, table in tables.items()}  # often [length, 1, d_model]
    return weights


def name_weights(name: str, value: Any) -> dict[str, Tensor]:
    """Name a weight, or one for the source and one for the target."""
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
        raise ValueError(f"{name} must be {allowed}, not a subclass, got {type(value).__name__}.")
    if getattr(value, "max_norm", None) is not None:
        raise ValueError(f"max_norm of {name} must be None, got {value.max_norm}.")
    return value.weight.detach()


def derive_config(mapper: StateDictMapper, options: TorchOptions, has_biases: bool) -> None:
    """Derive all config fields except those of embeddings and positions."""
    for stack in STACKS:
        layers = mapper.count_layers(stack)
        mapper.derive_config(f"the layers under {stack}.layers", **{f"{stack}_layers": layers})
    d_ff, d_model = mapper.peek("encoder.layers.0.linear1.weight", dims=2).shape
    mapper.derive_config("the shape of encoder.layers.0.linear1.weight", d_ff=d_ff, d_model=d_model)
    mapper.derive_config("in_proj_bias" if has_biases else "bias=False", attention_bias=has_biases)
    final = mapper.has_final_norms("encoder.norm", "decoder.norm")
    mapper.derive_config("encoder.norm and decoder.norm", final_layer_norm=final)
    mapper.derive_config("num_heads", num_heads=options.num_heads)
    mapper.derive_config(f"norm_first={options.norm_first}", norm_order="pre" if options.norm_first else "post")
    mapper.derive_config("activation", activation_function=options.activation)
    mapper.derive_config("layer_norm_eps", layer_norm_eps=options.layer_norm_eps)
    rates = ("dropout", "attention_dropout", "activation_dropout")
    mapper.derive_config("dropout, which applies to all three", **dict.fromkeys(rates, options.dropout))


def set_zero_biases(mapper: StateDictMapper) -> None:
    """Set missing biases of norms and feed-forward layers to zero, because this model always has them."""
    for name, weight in list(mapper.state_dict.items()):
        if "_attn." not in name:
            bias = weight.new_zeros(len(weight))
            mapper.default(name.removesuffix("weight") + "bias", bias, "zeros, as bias=False")


def map_outer_embeddings(mapper: StateDictMapper) -> None:
    shared = "embedding" in mapper.remaining
    source, target = ("embedding", None) if shared else ("source_embedding", "target_embedding")
    output = "output.weight" if "output.weight" in mapper.remaining else None
    bias = "output.bias" if "output.bias" in mapper.remaining else None
    map_embeddings(mapper, source, target, output, bias)


def map_positions(mapper: StateDictMapper, positions: Any) -> None:
    if not isinstance(positions, str):
        shared = "positions" in mapper.remaining
        map_position_tables(mapper, *(["positions"] * 2 if shared else ["source_positions", "target_positions"]))
    elif positions == "none":
        mapper.derive_config("positions='none'", position_embedding="none")
    else:
        layout = "interleaved" if positions == "sinusoidal" else positions
        mapper.derive_config(f"positions={positions!r}", position_embedding="sinusoidal", sinusoid_layout=layout)

"""Converts `torch.nn.Transformer` with its embeddings and output layer: modules, or a checkpoint with their weights."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # type of nn.MultiheadAttention.out_proj

from ...base.errors import format_names
from ...inputs_random_transformer import check_choice, drop_none
from .embeddings import map_embeddings, map_position_tables
from .options import OFF, PRE_NORM, RATE, SIZE, Kind, Option, is_number, read_options
from .untrusted import read_checkpoint, state_dict_in
from .weights import ConversionReport, Converted, NameTable, StateDictMapper, save_conversion

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Named positions, and the layout of their sinusoids.
POSITIONS = {"none": None, "sinusoidal": "interleaved", "concatenated": "concatenated"}
NAMES: NameTable = {
    "{stack}.layers.{i}.self_attn.in_proj_{p}": "model.{stack}.layers.{i}.self_attn.{qkv}_proj.{p}",
    "{stack}.layers.{i}.self_attn.out_proj.{p}": "model.{stack}.layers.{i}.self_attn.out_proj.{p}",
    "{stack}.layers.{i}.norm1.{p}": "model.{stack}.layers.{i}.self_attn_layer_norm.{p}",
    "{stack}.layers.{i}.linear1.{p}": "model.{stack}.layers.{i}.fc1.{p}",
    "{stack}.layers.{i}.linear2.{p}": "model.{stack}.layers.{i}.fc2.{p}",
    "encoder.layers.{i}.norm2.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
    "decoder.layers.{i}.multihead_attn.in_proj_{p}": "model.decoder.layers.{i}.encoder_attn.{qkv}_proj.{p}",
    "decoder.layers.{i}.multihead_attn.out_proj.{p}": "model.decoder.layers.{i}.encoder_attn.out_proj.{p}",
    "decoder.layers.{i}.norm2.{p}": "model.decoder.layers.{i}.encoder_attn_layer_norm.{p}",
    "decoder.layers.{i}.norm3.{p}": "model.decoder.layers.{i}.final_layer_norm.{p}",
    "{stack}.norm.{p}": "model.{stack}.layer_norm.{p}",
}
# Options that a state dict does not contain. The defaults are those of `nn.Transformer`.
OPTIONS = (
    Option("num_heads", SIZE, fields=("num_heads",)),
    Option("norm_first", PRE_NORM, False, ("norm_order",)),
    Option("activation", Kind("'relu' or 'gelu'", ("relu", "gelu").__contains__), "relu", ("activation_function",)),
    Option("layer_norm_eps", Kind("a number", is_number), 1e-5, ("layer_norm_eps",)),
    Option("add_zero_attn", OFF, False),
    Option("dropout", RATE, 0.1, ("dropout", "attention_dropout", "activation_dropout")),
)
# Subclasses are not supported, since they may use the same weights differently.
MODULES = (
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.MultiheadAttention, NonDynamicallyQuantizableLinear, nn.Linear, nn.LayerNorm),
    *(nn.ModuleList, nn.Dropout, nn.ReLU, nn.GELU),
)


def from_torch_transformer(
    transformer: nn.Transformer | Mapping[str, Tensor],
    embedding: nn.Embedding | Tensor | tuple[nn.Embedding | Tensor, nn.Embedding | Tensor],
    output: nn.Linear | Tensor | Mapping[str, Tensor] | None = None,
    *,
    positions: str | Tensor | tuple[Tensor, Tensor] = "none",
    scale_embedding: bool = False,
    num_heads: int | None = None,
    norm_first: bool | None = None,
    activation: str | None = None,
    layer_norm_eps: float | None = None,
    dropout: float | None = None,
    **token_ids: int | None,
) -> Converted:
    """Convert the weights of an `nn.Transformer`, its embeddings and its output layer.

    Args:
        transformer: the module, or its state dict.
        embedding: the embedding matrix, `[vocabulary, d_model]`; or a source and a target matrix.
        output: the output layer, `[target_vocabulary, d_model]`, or its state dict; `None` if it is tied to the
            target's embedding.
        positions: added to the embeddings: `"none"`, the paper's sinusoids (`"sinusoidal"`), all sines before all
            cosines (`"concatenated"`), or a table `[length, d_model]`, or one for the source and one for the target.
        scale_embedding: multiply embeddings by `sqrt(d_model)` before positions are added.
        num_heads: number of attention heads, for a state dict; a module has its own, as for the next four arguments.
        norm_first: whether the model uses pre-norm; False when `None`.
        activation: `"relu"` or `"gelu"`; relu when `None`.
        layer_norm_eps: epsilon of the layer norms; 1e-5 when `None`.
        dropout: rate of dropout; 0.1 when `None`.
        **token_ids: `pad_token_id`, `bos_token_id`, `eos_token_id` and `decoder_start_token_id`, if they differ from
            the defaults of `RandomTransformerConfig`.

    Returns:
        The model, in evaluation mode, and the report.

    Raises:
        ValueError: an argument or a weight is missing, contradicts the others or has no counterpart in this model. The
            message names it.
    """
    given: dict[str, Any] = {"num_heads": num_heads, "norm_first": norm_first, "activation": activation}
    given |= {"layer_norm_eps": layer_norm_eps, "dropout": dropout}
    options = find_options(transformer, drop_none(**given))
    for name in token_ids:
        check_choice(TOKEN_IDS, token_ids=name)
    weights = transformer.state_dict() if isinstance(transformer, nn.Transformer) else transformer
    weights = state_dict_in(weights, "transformer")
    mapper = StateDictMapper("nn.Transformer", {**weights, **outer_weights(embedding, output, positions)})
    mapper.derive_sizes("linear1", "norm")
    mapper.derive_options(OPTIONS, options)
    mapper.derive_config("argument", scale_embedding=scale_embedding, **token_ids)
    mapper.rename(NAMES)
    mapper.complete_biases()
    map_outer_weights(mapper, positions)
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

    The command, with the names of PyTorch's translation tutorial:

        random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
            --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
            --positions positional_encoding.pos_embedding --scale_embedding \\
            --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

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
    weights = state_dict_in(read_checkpoint(checkpoint), str(checkpoint), key)
    mapper = StateDictMapper(str(checkpoint), {name: weights[name] for name in weights if name not in ignore})
    tables = () if positions[0] in POSITIONS else positions
    outputs = () if output_layer is None else (f"{output_layer}.weight", f"{output_layer}.bias")
    named = {name: mapper.peek(name) for name in (*embedding, *tables, *outputs[:1])}
    inner = {name: weight for name, weight in mapper.remaining.items() if name not in {*named, *outputs}}
    others = [name for name in inner if not name.startswith(prefix)]
    if others:
        raise ValueError(f"{checkpoint} must have all other weights under {prefix!r}, got {format_names(others)}.")
    transformer = {name.removeprefix(prefix): weight for name, weight in inner.items()}
    matrices: Any = tuple(named[name] for name in embedding)
    added: Any = tuple(named[name] for name in tables) or positions[0]
    layer = {name.rpartition(".")[2]: mapper.peek(name) for name in outputs if name in mapper.remaining}
    convert = partial(from_torch_transformer, transformer, matrices, layer or None, positions=added, **options)
    report = save_conversion(output, convert, None)
    report.unused.update(dict.fromkeys(ignore, "ignored on request"))
    return report


def outer_weights(embedding: Any, output: Any, positions: Any) -> dict[str, Tensor]:
    """The weights of embeddings, positions and output layer, by argument name."""
    if isinstance(positions, str) and positions not in POSITIONS:
        raise ValueError(f"positions must be a table or one of {format_names(POSITIONS)}, got {positions!r}.")
    weights = name_weights("embedding", embedding)
    if not isinstance(positions, str):
        # Tables are often [length, 1, d_model].
        weights |= {name: table.squeeze() for name, table in name_weights("positions", positions).items()}
    if type(output) is nn.Linear:
        output = output.state_dict()
    if isinstance(output, Mapping):
        return weights | {f"output.{name}": weight for name, weight in output.items()}
    return weights if output is None else weights | {"output.weight": weight_of("output", output)}


def name_weights(name: str, value: Any) -> dict[str, Tensor]:
    """The weight of the source, which may be that of the target too, or of both."""
    pair = value if isinstance(value, tuple | list) else (value,)
    if len(pair) not in (1, 2):
        raise ValueError(f"{name} must be one weight or two (source, target), got {len(pair)}.")
    sides = ("source", "target")
    return {f"{side}_{name}": weight_of(name, weight) for side, weight in zip(sides, pair, strict=False)}


def weight_of(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) not in (nn.Embedding, nn.Linear) or getattr(value, "bias", None) is not None:
        allowed = "a tensor, an nn.Embedding or an nn.Linear" + ("" if name == "output" else " without a bias")
        raise ValueError(f"{name} must be {allowed}, not a subclass, got {type(value).__name__}.")
    if getattr(value, "max_norm", None) is not None:
        raise ValueError(f"max_norm of {name} must be None, got {value.max_norm}.")
    return value.weight.detach()


def map_outer_weights(mapper: StateDictMapper, positions: Any) -> None:
    """Map embeddings, output layer and positions."""
    names = ("target_embedding", "output.weight", "output.bias", "target_positions")
    target, output, bias, target_positions = (name if name in mapper.remaining else None for name in names)
    map_embeddings(mapper, "source_embedding", target, output, bias)
    if not isinstance(positions, str):
        map_position_tables(mapper, "source_positions", target_positions or "source_positions")
    elif layout := POSITIONS[positions]:
        mapper.derive_config(f"positions={positions!r}", position_embedding="sinusoidal", sinusoid_layout=layout)
    else:
        mapper.derive_config("positions='none'", position_embedding="none")


def find_options(transformer: nn.Transformer | Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a module, or use the arguments that are given with a state dict.

    Raises:
        ValueError: an argument is missing or differs from that of the module.
    """
    options = read_module(transformer) if isinstance(transformer, nn.Transformer) else {**given}
    for name, value in given.items():
        if options[name] != value:
            raise ValueError(f"{name} must equal that of the module, {options[name]!r}, got {value!r}.")
    return read_options(options, OPTIONS)


def read_module(transformer: nn.Transformer) -> dict[str, Any]:
    """Read the options that all layers of a module share.

    Raises:
        ValueError: layers differ, or a submodule is not an instance of PyTorch's own class.
    """
    modules = {name: module for name, module in transformer.named_modules() if name}
    for name, module in modules.items():
        if type(module) not in MODULES:
            allowed = "of a class of nn.Transformer's own, not a subclass"
            raise ValueError(f"transformer.{name} must be {allowed}, got {type(module).__name__}.")
    found: dict[str, Any] = {}
    for option, value in (pair for module in modules.values() for pair in options_of(module)):
        if found.setdefault(option, value) != value:
            raise ValueError(f"all layers must have the same {option}, got {found[option]} and {value}.")
    return found


def options_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The names and values of a module's own options."""
    if isinstance(module, nn.LayerNorm):
        yield "layer_norm_eps", module.eps
    elif isinstance(module, nn.MultiheadAttention):
        yield "num_heads", module.num_heads
        yield "add_zero_attn", module.add_zero_attn
    elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        yield "norm_first", module.norm_first
        yield "activation", activation_name(module.activation)
        yield "dropout", module.dropout1.p


def activation_name(activation: Any) -> str:
    if activation is functional.relu or type(activation) is nn.ReLU:
        return "relu"
    if activation is functional.gelu or (type(activation) is nn.GELU and activation.approximate == "none"):
        return "gelu"
    raise ValueError(f"activation must be relu or gelu, got {activation}.")

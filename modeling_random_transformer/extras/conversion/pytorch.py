"""Converts `torch.nn.Transformer` with its embeddings and output layer: modules, or a checkpoint with their weights."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # type of nn.MultiheadAttention.out_proj

from ...base.errors import format_names
from ...base.files import StrPath
from ...inputs_random_transformer import check_choice, drop_none
from ...ops_random_transformer import forward_hooks
from .embeddings import map_embeddings, map_position_tables
from .options import Options, read_format, read_options
from .untrusted import Weights, read_checkpoint, state_dict_in
from .weights import ConversionReport, Converted, StateDictMapper, save_conversion

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Named positions, and the fields of the configuration.
POSITION_KINDS = {
    "none": {"position_embedding": "none"},
    "sinusoidal": {"position_embedding": "sinusoidal", "sinusoid_layout": "interleaved"},
    "concatenated": {"position_embedding": "sinusoidal", "sinusoid_layout": "concatenated"},
}
FORMAT = read_format(__file__)
# Subclasses are not supported, since they may use the same weights differently.
MODULES = (
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.MultiheadAttention,
    NonDynamicallyQuantizableLinear,
    nn.Linear,
    nn.LayerNorm,
    nn.ModuleList,
    nn.Dropout,
    nn.ReLU,
    nn.GELU,
)
Matrix = nn.Embedding | nn.Linear | Tensor


def from_torch_transformer(
    transformer: nn.Transformer | Weights,
    embedding: Matrix | Sequence[Matrix],
    output: Matrix | Weights | None = None,
    *,
    positions: str | Tensor | Sequence[Tensor] = "none",
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
        positions: the positions that are added to the embeddings: `"none"`, `"sinusoidal"` (the paper's sinusoids),
            `"concatenated"` (all sines before all cosines), or a table `[length, d_model]`, or one table for the source
            and one for the target.
        scale_embedding: multiply embeddings by `sqrt(d_model)` before positions are added.
        num_heads: number of attention heads. It is required for a state dict. A module contains this option and those
            of the next four arguments.
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
    for name in token_ids:
        check_choice(TOKEN_IDS, token_ids=name)
    options = drop_none(
        num_heads=num_heads,
        norm_first=norm_first,
        activation=activation,
        layer_norm_eps=layer_norm_eps,
        dropout=dropout,
    )
    if isinstance(transformer, nn.Transformer):
        options = module_options(transformer, options)
        transformer = transformer.state_dict()
    mapper = map_weights(transformer, embedding, output, positions)
    mapper.derive_options(FORMAT, read_options(options, FORMAT))
    mapper.derive_config("argument", scale_embedding=scale_embedding, **token_ids)
    return mapper.finish(), mapper.report


def convert_torch_transformer(
    checkpoint: StrPath,
    output: StrPath,
    *,
    embedding: Sequence[str],
    output_layer: str | None = None,
    positions: Sequence[str] = ("none",),
    prefix: str = "",
    key: str | None = None,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
    **options: Any,
) -> ConversionReport:
    """Convert a checkpoint that contains an `nn.Transformer` among its weights to a folder.

    This is the command with the names of weights in PyTorch's translation tutorial:

        random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
            --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
            --positions positional_encoding.pos_embedding --scale_embedding \\
            --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

    Args:
        checkpoint: a `.pt` or `.safetensors` file with a state dict.
        output: a new or empty folder.
        embedding: name of the embedding matrix; or names of a source and a target matrix.
        output_layer: name of the output layer, without `.weight`; `None` if it is tied to the target's embedding.
        positions: `"none"`, `"sinusoidal"` or `"concatenated"`; or the name of one table, or the names of two.
        prefix: prefix of the names of the `nn.Transformer`, such as `"transformer."`.
        key: key of the state dict, if the file contains other objects too.
        ignore: names of weights that are not converted.
        **options: the other arguments of `from_torch_transformer`.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: see `from_torch_transformer`; or the file does not match the arguments. In this case, nothing is
            written.
    """
    weights = state_dict_in(read_checkpoint(checkpoint), checkpoint, key)
    kept = {name: weights[name] for name in weights if name not in ignore}
    mapper = StateDictMapper(checkpoint, kept)
    matrices = [mapper.pop(name) for name in embedding]
    layer: dict[str, Tensor] = {}
    if output_layer is not None:
        layer["weight"] = mapper.pop(f"{output_layer}.weight")
        if f"{output_layer}.bias" in mapper.remaining:
            layer["bias"] = mapper.pop(f"{output_layer}.bias")
    tables: Any = positions[0]
    if tables not in POSITION_KINDS:
        tables = [mapper.pop(name) for name in positions]
    outside = [name for name in mapper.remaining if not name.startswith(prefix)]
    if outside:
        raise ValueError(f"{checkpoint} must have all other weights under {prefix!r}, got {format_names(outside)}.")
    transformer = {name.removeprefix(prefix): weight for name, weight in mapper.remaining.items()}
    converted = from_torch_transformer(transformer, matrices, layer or None, positions=tables, **options)
    _, report = converted
    for name in ignore:
        report.unused[name] = "ignored on request"
    return save_conversion(output, converted, overwrite)


def map_weights(transformer: Any, embedding: Any, output: Any, positions: Any) -> StateDictMapper:
    """The mapped weights of a state dict and of the other arguments of `from_torch_transformer`."""
    weights = {
        **state_dict_in(transformer, "transformer"),
        **read_matrices("embedding", embedding),
        **read_output(output),
    }
    if not isinstance(positions, str):
        weights |= read_matrices("positions", positions)
    mapper = StateDictMapper("nn.Transformer", weights)
    mapper.derive_sizes("linear1", "norm")
    mapper.rename(FORMAT.names)
    mapper.complete_biases()
    target, layer, bias = (
        name if name in weights else None for name in ("target_embedding", "output.weight", "output.bias")
    )
    map_embeddings(mapper, "source_embedding", target, layer, bias)
    map_positions(mapper, positions)
    return mapper


def read_output(output: Matrix | Weights | None) -> dict[str, Tensor]:
    """The weights of the output layer, by their names in the conversion; none if it is tied to the embedding."""
    if output is None:
        return {}
    if type(output) is nn.Linear:
        output = output.state_dict()
    if isinstance(output, Mapping):
        return {f"output.{name}": weight for name, weight in output.items()}
    return {"output.weight": weight_of("output", output)}


def read_matrices(name: str, value: Any) -> dict[str, Tensor]:
    """The matrix of the source, which may also be that of the target, or both, by their names in the conversion."""
    pair = value if isinstance(value, tuple | list) else [value]
    if len(pair) not in (1, 2):
        raise ValueError(f"{name} must be one weight or two (source, target), got {len(pair)}.")
    matrices = {}
    for side, weight in zip(("source", "target"), pair, strict=False):
        matrix = weight_of(name, weight)
        matrices[f"{side}_{name}"] = matrix.squeeze()  # tables of positions are often [length, 1, d_model]
    return matrices


def weight_of(name: str, value: Matrix) -> Tensor:
    """The weight of a module of PyTorch's own classes, or a tensor itself."""
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) not in (nn.Embedding, nn.Linear) or getattr(value, "bias", None) is not None:
        raise ValueError(
            f"{name} must be a tensor, an nn.Embedding or an nn.Linear (of an embedding, without a bias), "
            f"not a subclass, got {type(value).__name__}."
        )
    if getattr(value, "max_norm", None) is not None:
        raise ValueError(f"max_norm of {name} must be None, got {value.max_norm}.")
    return value.weight.detach()


def map_positions(mapper: StateDictMapper, positions: Any) -> None:
    """Map the tables of positions, or set the kind of positions."""
    if not isinstance(positions, str):
        source = "source_positions"
        map_position_tables(mapper, source, "target_positions" if "target_positions" in mapper.remaining else source)
        return
    if positions not in POSITION_KINDS:
        raise ValueError(f"positions must be a table or one of {format_names(POSITION_KINDS)}, got {positions!r}.")
    mapper.derive_config(f"positions={positions!r}", **POSITION_KINDS[positions])


def module_options(transformer: nn.Transformer, user_options: Options) -> Options:
    """The options that all layers of a module share.

    Raises:
        ValueError: layers differ, a submodule is not an instance of PyTorch's own class, a module has forward hooks or
            a replaced method, or a given option differs.
    """
    options: Options = {}
    for name, module in transformer.named_modules():
        hooks = forward_hooks(module)
        if hooks:
            raise ValueError(f"{name or 'transformer'} must have no forward hooks, got {len(hooks)}.")
        for attribute in vars(module):
            if callable(getattr(type(module), attribute, None)):
                raise ValueError(
                    f"{name or 'transformer'} must have the methods of its class, got another {attribute}."
                )
        if module is transformer:
            continue
        if type(module) not in MODULES:
            raise ValueError(
                f"transformer.{name} must be of a class of nn.Transformer's own, not a subclass, "
                f"got {type(module).__name__}."
            )
        for option, value in options_of(module):
            if options.setdefault(option, value) != value:
                raise ValueError(f"all layers must have the same {option}, got {options[option]} and {value}.")
    for name, value in user_options.items():
        if options[name] != value:
            raise ValueError(f"{name} must equal that of the module, {options[name]!r}, got {value!r}.")
    return options


def options_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The names and values of a module's own options."""
    if isinstance(module, nn.LayerNorm):
        yield "layer_norm_eps", module.eps
        yield "elementwise_affine", module.elementwise_affine
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

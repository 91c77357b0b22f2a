"""Converts `torch.nn.Transformer` with its embeddings and output layer: modules, or a checkpoint with their weights."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # type of nn.MultiheadAttention.out_proj

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration, sinusoids
from ..utils.atomic_files import new_folder
from ..utils.errors import format_names
from .embeddings import map_embeddings, map_position_tables
from .options import PRE_NORM, RATE, SIZE, Kind, Option, is_number, read_options
from .report import ConversionReport
from .untrusted import is_state_dict, read_checkpoint
from .weights import NameTable, StateDictMapper, projections

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
SINUSOIDS = {"sinusoidal": "interleaved", "concatenated": "concatenated"}  # layouts by the name of the positions
POSITIONS = ("none", *SINUSOIDS)
NAMES: NameTable = {
    "{stack}.layers.{i}.self_attn.in_proj_{p}": projections("model.{stack}.layers.{i}.self_attn"),
    "{stack}.layers.{i}.self_attn.out_proj.{p}": "model.{stack}.layers.{i}.self_attn.out_proj.{p}",
    "{stack}.layers.{i}.norm1.{p}": "model.{stack}.layers.{i}.self_attn_layer_norm.{p}",
    "{stack}.layers.{i}.linear1.{p}": "model.{stack}.layers.{i}.fc1.{p}",
    "{stack}.layers.{i}.linear2.{p}": "model.{stack}.layers.{i}.fc2.{p}",
    "encoder.layers.{i}.norm2.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
    "decoder.layers.{i}.multihead_attn.in_proj_{p}": projections("model.decoder.layers.{i}.encoder_attn"),
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
    Option("dropout", RATE, 0.1, ("dropout", "attention_dropout", "activation_dropout")),
)
# Modules of a layer. Subclasses are not supported, since they may use the same weights differently.
MODULES: dict[str, type[nn.Module]] = {
    **dict.fromkeys(("self_attn", "multihead_attn"), nn.MultiheadAttention),
    **dict.fromkeys(("linear1", "linear2"), nn.Linear),
    **dict.fromkeys(("norm1", "norm2", "norm3"), nn.LayerNorm),
}

# One weight, or two: for the source and for the target.
OneOrTwo = Tensor | tuple[Tensor, Tensor]


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
    given: dict[str, Any] = {"num_heads": num_heads, "norm_first": norm_first, "activation": activation}
    given |= {"layer_norm_eps": layer_norm_eps, "dropout": dropout}
    options = find_options(transformer, {name: value for name, value in given.items() if value is not None})
    for name in token_ids:
        if name not in TOKEN_IDS:
            allowed = f"those of from_torch_transformer or one of {format_names(TOKEN_IDS)}"
            raise ValueError(f"arguments must be {allowed}, got {name!r}.")
    weights = transformer.state_dict() if isinstance(transformer, nn.Transformer) else transformer
    if not is_state_dict(weights):
        raise ValueError("transformer must be an nn.Transformer or a state dict of named tensors.")
    mapper = StateDictMapper("nn.Transformer", {**weights, **outer_weights(embedding, output, positions)})
    has_biases = any(name.endswith("bias") for name in weights)
    mapper.derive_sizes("linear1", "norm")
    mapper.derive_config("in_proj_bias" if has_biases else "bias=False", attention_bias=has_biases)
    mapper.derive_options(OPTIONS, options)
    mapper.derive_config("argument", scale_embedding=scale_embedding, **token_ids)
    mapper.rename(NAMES)
    if not has_biases:  # this model always has them in norms and feed-forward layers
        for name, weight in list(mapper.state_dict.items()):
            if "_attn." not in name:
                zeros = weight.new_zeros(len(weight))
                mapper.default(name.removesuffix("weight") + "bias", zeros, "zeros, as bias=False")
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
        weights = read_torch_checkpoint(checkpoint, embedding, output_layer, positions, prefix, key, ignore)
        model, report = from_torch_transformer(**weights, **options)
        report.unused.update(dict.fromkeys(ignore, "ignored on request"))
        report.notes.append(f"From {Path(checkpoint).name}: {', '.join((*embedding, *filter(None, [output_layer])))}.")
        model.save_pretrained(temporary)
    return report


def read_torch_checkpoint(
    checkpoint: str | Path,
    embedding: Sequence[str],
    output_layer: str | None = None,
    positions: Sequence[str] = ("none",),
    prefix: str = "",
    key: str | None = None,
    ignore: Sequence[str] = (),
) -> dict[str, Any]:
    """The first arguments of `from_torch_transformer`, from a checkpoint whose weights have these names.

    Arguments are those of `convert_torch_transformer`.

    Raises:
        ValueError: the file cannot be read, a name is missing, or a weight in the file is not named.
    """
    content = read_checkpoint(checkpoint)
    weights: Any = content.get(key) if key and isinstance(content, dict) else content
    if not is_state_dict(weights):
        found = format_names(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"key must name the state dict in {checkpoint}, got {key!r}; the file contains {found}.")
    mapper = StateDictMapper(str(checkpoint), weights)
    mapper.ignore(ignore, "ignored on request")
    tables = () if positions[0] in POSITIONS else positions
    arguments: dict[str, Any] = {"embedding": one_or_two([mapper.peek(name, dims=2) for name in embedding])}
    arguments["positions"] = one_or_two([mapper.peek(name) for name in tables]) if tables else positions[0]
    arguments["output"] = read_linear(mapper, output_layer) if output_layer else None
    named = {*embedding, *tables, f"{output_layer}.weight", f"{output_layer}.bias"}
    others = {name: weight for name, weight in mapper.remaining.items() if name not in named}
    unexpected = [name for name in others if not name.startswith(prefix)]
    if unexpected:
        raise ValueError(
            f"{checkpoint} must contain only weights under {prefix!r} and named ones, got {format_names(unexpected)}."
        )
    return {"transformer": {name.removeprefix(prefix): weight for name, weight in others.items()}, **arguments}


def read_linear(mapper: StateDictMapper, name: str) -> nn.Linear:
    weights = {"weight": mapper.peek(f"{name}.weight", dims=2)}
    if f"{name}.bias" in mapper.remaining:
        weights["bias"] = mapper.peek(f"{name}.bias", dims=1)
    rows, columns = weights["weight"].shape
    linear = nn.Linear(columns, rows, bias="bias" in weights, device="meta")
    linear.load_state_dict(weights, assign=True)
    return linear


def one_or_two(values: list[Tensor]) -> OneOrTwo:
    if len(values) not in (1, 2):
        raise ValueError(f"embedding and positions must have one name or two (source, target), got {len(values)}.")
    return values[0] if len(values) == 1 else (values[0], values[1])


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


def map_outer_weights(mapper: StateDictMapper, positions: Any) -> None:
    """Map embeddings, output layer and positions."""
    source, target = (
        ("embedding", None) if "embedding" in mapper.remaining else ("source_embedding", "target_embedding")
    )
    output, bias = (name if name in mapper.remaining else None for name in ("output.weight", "output.bias"))
    map_embeddings(mapper, source, target, output, bias)
    if not isinstance(positions, str):
        shared = "positions" in mapper.remaining
        map_position_tables(mapper, *(["positions"] * 2 if shared else ["source_positions", "target_positions"]))
    elif positions == "none":
        mapper.derive_config("positions='none'", position_embedding="none")
    else:
        layout = SINUSOIDS[positions]
        mapper.derive_config(f"positions={positions!r}", position_embedding="sinusoidal", sinusoid_layout=layout)


def find_options(transformer: nn.Transformer | Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a module, or use the arguments that are given with a state dict.

    Raises:
        ValueError: an argument differs from that of the module, or `num_heads` is missing.
    """
    if isinstance(transformer, nn.Transformer):
        options = read_module(transformer)
        for name, value in given.items():
            if options[name] != value:
                raise ValueError(f"{name} must equal that of the module, {options[name]!r}, got {value!r}.")
        return read_options(options, OPTIONS)
    if "num_heads" not in given:
        raise ValueError("num_heads must be given with a state dict, got None.")
    return read_options(given, OPTIONS)


def read_module(transformer: nn.Transformer) -> dict[str, Any]:
    """Read the options that all layers of a module share.

    Raises:
        ValueError: layers differ, or a submodule is not an instance of PyTorch's own class.
    """
    found: dict[str, Any] = {}
    for name, stack_class, layer_class in (
        ("encoder", nn.TransformerEncoder, nn.TransformerEncoderLayer),
        ("decoder", nn.TransformerDecoder, nn.TransformerDecoderLayer),
    ):
        stack: Any = getattr(transformer, name)
        check_type(f"transformer.{name}", stack, stack_class)
        if not len(stack.layers):
            raise ValueError(f"transformer.{name} must have at least one layer, got none.")
        options = [option for layer in stack.layers for option in read_layer(layer, name, layer_class)]
        if stack.norm is not None:
            check_type(f"transformer.{name}.norm", stack.norm, nn.LayerNorm)
            options.append(("layer_norm_eps", stack.norm.eps))
        for option, value in options:
            if found.setdefault(option, value) != value:
                raise ValueError(f"all layers must have the same {option}, got {found[option]} and {value}.")
    return found


def read_layer(layer: Any, stack: str, layer_class: type[nn.Module]) -> Iterator[tuple[str, Any]]:
    """The names and values of the options of a layer. A name may occur several times."""
    check_type(f"each layer of transformer.{stack}", layer, layer_class)
    for name, module_class in MODULES.items():
        module = getattr(layer, name, None)
        if module is not None:
            check_type(f"{name} of each layer", module, module_class)
        if isinstance(module, nn.LayerNorm):
            yield "layer_norm_eps", module.eps
        elif isinstance(module, nn.MultiheadAttention):
            check_type("out_proj of each attention", module.out_proj, NonDynamicallyQuantizableLinear)
            if module.add_zero_attn:
                raise ValueError("add_zero_attn must be False in every attention, got True.")
            yield "num_heads", module.num_heads
    yield "norm_first", layer.norm_first
    yield "activation", activation_name(layer.activation)
    yield "dropout", getattr(layer.dropout1, "p", 0.0)  # 0 if the module was replaced, for example by nn.Identity


def activation_name(activation: Any) -> str:
    if activation is functional.relu or type(activation) is nn.ReLU:
        return "relu"
    if activation is functional.gelu or (type(activation) is nn.GELU and activation.approximate == "none"):
        return "gelu"
    raise ValueError(f"activation must be relu or gelu, got {activation}.")


def check_type(name: str, module: nn.Module, expected: type[nn.Module]) -> None:
    if type(module) is not expected:
        raise ValueError(f"{name} must be an nn.{expected.__name__}, got {type(module).__name__}.")


class TorchReference:
    """The model of a checkpoint: an `nn.Transformer`, embeddings, positions and an output layer.

    Computes the reference logits for a conversion.

    Args:
        weights: the result of `read_torch_checkpoint`.
        options: `num_heads`, `norm_first`, `activation` and `layer_norm_eps`.
        scale_embedding: multiply embeddings by `sqrt(d_model)`.
    """

    def __init__(self, weights: Mapping[str, Any], options: Mapping[str, Any], scale_embedding: bool):
        self.tables, self.output, self.positions = (
            as_pair(weights["embedding"]),
            weights["output"],
            weights["positions"],
        )
        self.d_model = self.tables[0].shape[1]
        self.scale = math.sqrt(self.d_model) if scale_embedding else 1.0
        inner = weights["transformer"]
        mapper = StateDictMapper("nn.Transformer", inner)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor")  # warnings about an unused fast path
            self.transformer = nn.Transformer(
                d_model=self.d_model,
                nhead=options["num_heads"],
                num_encoder_layers=mapper.count_layers("encoder"),
                num_decoder_layers=mapper.count_layers("decoder"),
                dim_feedforward=len(inner["encoder.layers.0.linear1.weight"]),
                activation=options["activation"],
                layer_norm_eps=options["layer_norm_eps"],
                batch_first=True,
                norm_first=options["norm_first"],
                bias="encoder.layers.0.linear1.bias" in inner,
            ).eval()
        if "encoder.norm.weight" not in inner:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.transformer.load_state_dict(inner)

    @property
    def vocabularies(self) -> tuple[int, int]:
        """The sizes of the source and the target vocabulary."""
        return len(self.tables[0]), len(self.tables[1])

    def embed(self, ids: Tensor, stack: int) -> Tensor:
        """Embed ids, `[batch, length]` → `[batch, length, d_model]`, for the encoder (stack 0) or the decoder (1)."""
        states, length = self.tables[stack][ids] * self.scale, ids.shape[1]
        if not isinstance(self.positions, str):
            return states + as_pair(self.positions)[stack].squeeze()[:length]
        if self.positions == "none":
            return states
        return states + sinusoids(torch.arange(length), self.d_model, SINUSOIDS[self.positions])

    def __call__(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Ids and padding mask, `[batch, source_len]`, and target ids → logits, `[batch, target_len, vocabulary]`."""
        states = self.transformer(
            self.embed(ids, 0),
            self.embed(target, 1),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0,
            src_key_padding_mask=mask == 0,
            memory_key_padding_mask=mask == 0,
        )
        return states @ self.tables[1].T if self.output is None else self.output(states)


def as_pair(value: OneOrTwo) -> tuple[Tensor, Tensor]:
    return value if isinstance(value, tuple) else (value, value)

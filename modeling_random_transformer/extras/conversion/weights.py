"""Maps a state dict of another implementation to this model, and reports the use of each weight.

Every source weight is mapped or explicitly ignored.

transformers' `WeightRenaming` and `WeightConverter` are not used: they run inside `from_pretrained`, which does not
record the use of each weight and does not name the source weight in errors.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.errors import MAX_NAME, format_names, format_value, printable
from ...base.files import StrPath
from ...configuration_random_transformer import RandomTransformerConfig
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..new_folder import new_folder
from .options import Format
from .untrusted import Weights

STACKS = ("encoder", "decoder")
# Placeholders of name patterns: `i` is the index of a layer, `number` its number from 1, `p` a parameter of a module,
# `qkv` a projection, `linear` a layer of the feed-forward network, and `module` a module of a layer by the name that
# this model, MarianMT and fairseq share.
NAME_PLACEHOLDERS = {
    "stack": "encoder|decoder",
    "i": r"\d+",
    "number": r"[1-9]\d*",
    "linear": "[12]",
    "module": r"(?:self_attn|encoder_attn)\.(?:[qkv]_proj|out_proj)|fc[12]|"
    r"(?:self_attn|encoder_attn|final)_layer_norm",
    "attention": "self_attn|encoder_attn",
    "qkv": "[qkv]",
    "p": "weight|bias",
}
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Patterns of source names and the parameters that they map to. If only the parameter has the placeholder `qkv`, the
# source weight has the rows of queries, keys and values.
NameTable = Mapping[str, str]


class MappedWeight(NamedTuple):
    """A source weight and the parameter that it was mapped to. A split source weight has several entries."""

    source: str
    target: str
    shape: tuple[int, ...]
    how: str


class DerivedField(NamedTuple):
    """A field of `RandomTransformerConfig` and what it was derived from."""

    value: Any
    source: str


@dataclass
class ConversionReport:
    """The result of a conversion, weight by weight and field by field.

    Attributes:
        origin: the converted model.
        mapped: converted weights, in the order of the source's state dict.
        defaults: parameters without a source weight, and how their values were chosen.
        unused: source weights that were dropped, and why the outputs do not depend on them.
        config: the derived config fields.
        notes: additional remarks.
        save_tokenizer: saves the tokenizer of a converted model in a folder, and returns notes about it; `None` without
            a vocabulary.
    """

    origin: str
    mapped: list[MappedWeight] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    config: dict[str, DerivedField] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    save_tokenizer: Callable[[Path, RandomTransformerConfig], list[str]] | None = None

    def __str__(self) -> str:
        """One line for each weight, field and note."""
        lines = [f"{self.origin}: {len(self.mapped)} weights"]
        lines += [f"  {source} -> {target} {list(shape)} ({how})" for source, target, shape, how in self.mapped]
        lines += [f"  default -> {name} ({reason})" for name, reason in self.defaults.items()]
        lines += [f"  {name} -> unused ({reason})" for name, reason in self.unused.items()]
        lines += [f"  config.{name} = {value!r} ({source})" for name, (value, source) in self.config.items()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


Converted = tuple[RandomTransformerForConditionalGeneration, ConversionReport]


def save_conversion(output: StrPath, converted: Converted, overwrite: bool) -> ConversionReport:
    """Save a converted model in a folder, and its tokenizer, if there is one.

    Raises:
        ValueError: see `new_folder`, or the errors of `save_tokenizer`; nothing is written.
    """
    model, report = converted
    with new_folder(output, overwrite) as folder:
        model.save_pretrained(folder)
        if report.save_tokenizer is None:
            report.notes.append("There is no vocabulary, so the folder has no tokenizer.")
        else:
            report.notes += report.save_tokenizer(folder, model.config)
    return report


class StateDictMapper:
    """Builds this model's state dict and config from those of another implementation.

    Args:
        origin: how error messages and the report refer to the source.
        weights: the source's weights by their names.

    Attributes:
        remaining: source weights that are not yet mapped.
        state_dict: the weights of this model that were already mapped.
        config_fields: the fields of `RandomTransformerConfig` that were already derived.
        report: the conversion's report.
    """

    def __init__(self, origin: StrPath, weights: Weights):
        self.origin = origin
        self.remaining = dict(weights)
        for name in weights:  # names occur in messages and reports
            if printable(name, MAX_NAME) != name:
                raise ValueError(f"weights of {origin} must have printable names, got {format_value(name)}.")
        self.state_dict: dict[str, Tensor] = {}
        self.config_fields: dict[str, Any] = {}
        self.report = ConversionReport(str(origin))
        self.names: NameTable = {}

    def peek(self, name: str, dims: int | None = None) -> Tensor:
        """Return a source weight without removing it from `remaining`.

        Raises:
            ValueError: the weight is missing, is not a dense floating-point tensor, or does not have `dims` dimensions.
        """
        if name not in self.remaining:
            raise self.missing_weight(name)
        weight = self.remaining[name].detach()
        if problem := problem_of(weight):
            raise ValueError(
                f"{name} of {self.origin} must be a dense tensor of finite float16, bfloat16, float32, float64, "
                f"got {problem}."
            )
        if dims is not None and weight.dim() != dims:
            raise ValueError(f"{name} of {self.origin} must have {dims} dimensions, got {list(weight.shape)}.")
        return weight

    def pop(self, name: str, dims: int | None = None) -> Tensor:
        """Return a source weight and remove it from `remaining`. Errors are those of `peek`."""
        weight = self.peek(name, dims)
        del self.remaining[name]
        return weight

    def set(self, target: str, weight: Tensor, source: str, how: str = "copied") -> None:
        """Set the parameter `target` to a weight made from the source weight `source`."""
        # Cloned, so that training the converted model does not change the original.
        self.state_dict[target] = weight.clone(memory_format=torch.contiguous_format)
        self.report.mapped.append(MappedWeight(source, target, tuple(weight.shape), how))

    def default(self, target: str, weight: Tensor, reason: str) -> None:
        """Set the parameter `target` to a value that the source implies but does not store."""
        self.state_dict[target] = weight
        self.report.defaults[target] = reason

    def ignore(self, names: Iterable[str], reason: str) -> None:
        """Drop these source weights if they exist."""
        for name in list(names):
            if self.remaining.pop(name, None) is not None:
                self.report.unused[name] = reason

    def derive_config(self, source: str, **fields: Any) -> None:
        """Set config fields that follow from `source`."""
        self.config_fields.update(fields)
        self.report.config.update({name: DerivedField(value, source) for name, value in fields.items()})

    def derive_options(self, table: Format, options: Mapping[str, Any]) -> None:
        """Set the config fields of the options in a table. Those without a value are skipped."""
        for option in table.options:
            value = options[option.name]
            if value is not None:
                self.derive_config(option.name, **dict.fromkeys(option.fields, value))

    def derive_sizes(self, linear: str, norm: str, layers: Sequence[str] = ("layers", "layers")) -> None:
        """Set the numbers of layers, the widths, and whether there are final norms.

        It counts the weights that are not mapped yet, so it is called before `rename`.

        Args:
            linear: the name of a layer's first linear module.
            norm: the name of the final norm in each stack.
            layers: the names of the lists of layers in the encoder and the decoder.

        Raises:
            ValueError: there are no layers, or only one stack has a final norm.
        """
        for stack, name in zip(STACKS, layers, strict=True):
            prefix = f"{stack}.{name}."
            self.derive_config(f"the layers under {prefix}", **{f"{stack}_layers": self.count_layers(prefix)})
        name = f"encoder.{layers[0]}.0.{linear}.weight"
        d_ff, d_model = self.peek(name, dims=2).shape
        self.derive_config(f"the shape of {name}", d_ff=d_ff, d_model=d_model)
        norms = [f"{stack}.{norm}" for stack in STACKS]
        present = {f"{name}.weight" in self.remaining for name in norms}
        if len(present) > 1:
            raise ValueError(
                f"{' and '.join(norms)} of {self.origin} must be both present or both absent, got one of them."
            )
        self.derive_config(" and ".join(norms), final_layer_norm=present.pop())

    def rename(self, names: NameTable) -> None:
        """Map all remaining weights that match a pattern of the table. The first matching pattern applies.

        Raises:
            ValueError: see `peek`; or the rows of a weight cannot be split evenly.
        """
        self.names = names
        for source in list(self.remaining):
            for pattern, target in names.items():
                match = compile_pattern(pattern).fullmatch(source)
                if match is None:
                    continue
                placeholders = match.groupdict()
                if "number" in placeholders:
                    placeholders["i"] = int(placeholders["number"]) - 1
                self.map_weight(source, target, placeholders)
                break

    def map_weight(self, source: str, target: str, placeholders: Mapping[str, Any]) -> None:
        """Map a source weight to the parameter with these placeholders, or to three if `qkv` is not among them."""
        weight = self.pop(source)
        if "{qkv}" not in target or "qkv" in placeholders:
            self.set(target.format(**placeholders), weight, source)
            return
        if not weight.dim() or len(weight) % 3:
            raise ValueError(f"{source} of {self.origin} must have a multiple of 3 rows, got {list(weight.shape)}.")
        for qkv, rows in zip("qkv", weight.chunk(3), strict=True):
            parameter = target.format(**placeholders, qkv=qkv)
            self.set(parameter, rows, source, "split")

    def complete_biases(self) -> None:
        """Set the biases that the source does not have to zero.

        The projections of attention have biases if one of them has. The other layers of this model always have them.
        It reads the mapped weights, so it is called after `rename`.
        """
        attention = any(name.endswith("_proj.bias") for name in self.state_dict)
        self.derive_config("the biases of attention", attention_bias=attention)
        for name, weight in list(self.state_dict.items()):
            bias = f"{name.removesuffix('.weight')}.bias"
            has_biases = attention or "_attn." not in name
            if name.endswith(".weight") and bias not in self.state_dict and has_biases:
                self.default(bias, weight.new_zeros(len(weight)), "zeros, as there is none")

    def finish(self) -> RandomTransformerForConditionalGeneration:
        """Build the model, in evaluation mode. Its dtype is the widest of all weights, so that none is rounded.

        `generate()` returns at most `max_position_embeddings` tokens by default.

        Raises:
            ValueError: a source weight has no counterpart in this model, a parameter has no source weight, or the
                shapes differ.
        """
        config = RandomTransformerConfig(**self.config_fields)
        self.check_parameters(config)
        dtypes = dict.fromkeys(weight.dtype for weight in self.state_dict.values())
        dtype = reduce(torch.promote_types, dtypes)
        if len(dtypes) > 1:
            self.report.notes.append(f"Weights of {format_names(map(str, dtypes))} became {dtype}, without rounding.")
        model = RandomTransformerForConditionalGeneration.from_pretrained(
            None,
            config=config,
            state_dict={name: weight.to(dtype) for name, weight in self.state_dict.items()},
            dtype=dtype,
        )
        # The limit of trained models. By default, generate() stops after 20 tokens.
        model.generation_config.max_length = config.max_position_embeddings
        return model

    def check_parameters(self, config: RandomTransformerConfig) -> None:
        """Check that the weights are those of a model with this config. Errors are those of `finish`."""
        layers = config.encoder_layers + config.decoder_layers
        if layers > len(self.state_dict):  # an index or an option may be any number
            raise ValueError(f"{self.origin} must contain {layers} layers, got only {len(self.state_dict)} weights.")
        with torch.device("meta"):
            parameters = dict(RandomTransformerForConditionalGeneration(config).named_parameters())
        sources = {mapped.target: mapped.source for mapped in self.report.mapped}
        unknown = [sources.get(name, name) for name in self.state_dict if name not in parameters]
        unknown += self.remaining
        if unknown:
            raise ValueError(
                f"{self.origin} must contain no weights without a counterpart in this model, "
                f"got {format_names(unknown)}."
            )
        for name, parameter in parameters.items():
            if name not in self.state_dict:
                raise self.missing_weight(self.source_name(name))
            shape = list(self.state_dict[name].shape)
            if shape != list(parameter.shape):
                raise ValueError(
                    f"{sources.get(name, name)} of {self.origin} must have the shape of {name}, "
                    f"{list(parameter.shape)}, got {shape}."
                )

    def missing_weight(self, name: str) -> ValueError:
        return ValueError(f"{self.origin} must contain the weight {name!r}, which is missing.")

    def source_name(self, parameter: str) -> str:
        """The source's name of a parameter according to the name table, or the parameter's name if it is not listed."""
        for pattern, target in self.names.items():
            match = compile_pattern(target).fullmatch(parameter)
            if match:
                placeholders = match.groupdict()
                return pattern.format(**placeholders, number=int(placeholders.get("i", 0)) + 1)
        return parameter

    def count_layers(self, prefix: str) -> int:
        """The number of layers whose weights have names with this prefix and their index.

        Raises:
            ValueError: there are none.
        """
        count = 0
        for name in self.remaining:
            index = name.removeprefix(prefix).partition(".")[0]
            if name.startswith(prefix) and index.isdecimal():
                count = max(count, int(index) + 1)
        if not count:
            raise ValueError(f"{self.origin} must contain weights under {prefix!r}, got none.")
        return count


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression for a name with `NAME_PLACEHOLDERS`, such as `{stack}.layers.{i}.fc1.{p}`."""
    parts = re.split(r"\{(\w+)\}", pattern)
    groups = [f"(?P<{part}>{NAME_PLACEHOLDERS[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts)]
    return re.compile("".join(groups))


def problem_of(weight: Tensor) -> str:
    """The kind of a tensor that is not a weight, or an empty string."""
    if weight.is_nested:
        return "a nested tensor"
    if weight.layout != torch.strided:
        return f"one of layout {weight.layout}"
    if weight.dtype not in FLOAT_DTYPES:  # quantized weights, for example
        return f"one of {weight.dtype}"
    if weight.is_meta:
        return "one on the meta device, without values"
    # An expanded tensor has a few bytes in a file, but can have any size in memory.
    if weight.untyped_storage().nbytes() < weight.numel() * weight.element_size():
        return f"one expanded to {list(weight.shape)}"
    if not weight.isfinite().all():
        return "one with values that are infinite or not a number"
    return ""

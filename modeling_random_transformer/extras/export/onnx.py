"""Exports a model to onnxruntime: `encoder.onnx` and `decoder.onnx`, with dynamic batch size, beams and lengths.

`transformers.exporters` is not used: it exports one forward pass of a model, but here, the beams of a source share its
keys and values, and its interface differs between transformers 5.17 and 5.23 (5.17 has no quantizers).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx  # noqa: F401  torch.onnx and onnxruntime.quantization require it
import onnxscript  # noqa: F401  torch.onnx requires it
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...base.files import StrPath
from ...decoding_random_transformer import FastDecoder
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration, eager_attention_forward
from .compare import check_equal, compared_ids, reference_of
from .engines import EngineTranslate, translate_fn
from .onnx_model import DECODER, ENCODER, OnnxModel, tensor_names

# Sizes of the example inputs. They are distinct and above 1, so that tracing does not specialize on them.
SOURCES, SOURCE_LEN, BEAMS, PAST_LEN, NEW_LEN = 2, 3, 4, 5, 6
QUANTIZED_OPS = ["MatMul", "Gemm"]


def save(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    dtype: str,
    *,
    web: bool = False,
) -> None:
    """Save the graphs, the configuration and the generation config, which `OnnxModel.load` loads.

    The float32 graphs are compared with the model, since its code may have been edited.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        folder: an empty folder.
        dtype: `"float32"`, or `"int8"` for the weights of all matrix products, with dynamic quantization of the
            activations.
        web: the export of the web page: `"int8"` includes the embedding, and its weights are unsigned: no CPU saturates
            their products, so that results are the same on the page and in Python. WebAssembly is as fast with them;
            x86 CPUs are faster with signed weights.
    """
    model = reference_of(model)
    model.set_attn_implementation("eager")
    if web and dtype == "int8":
        stack: Any
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens = Int8Embedding(stack.embed_tokens.weight.detach())
    with TemporaryDirectory() as scratch:
        graphs = folder if dtype == "float32" else Path(scratch)
        export_graphs(model, graphs)
        check_graph_logits(model, graphs)
        if dtype == "int8":
            weight_type = QuantType.QUInt8 if web else QuantType.QInt8
            for name in (ENCODER, DECODER):
                quantize(graphs / name, folder / name, weight_type)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def check_graph_logits(model: RandomTransformerForConditionalGeneration, folder: Path) -> None:
    """Raise a ValueError if the graphs do not compute what the modules compute, whose code may have been edited."""
    graphs = OnnxModel(model.config, folder)
    ids, target = compared_ids(model.config)[:, None]
    mask = torch.ones_like(ids)
    mask[:, 1:][:, -2:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target, "return_dict": True}
    check_equal("ONNX Runtime", graphs(**inputs).logits, model(**inputs).logits)


def load(folder: StrPath) -> EngineTranslate:
    """Load an exported model as a function that translates sentences, with as many CPU threads as torch uses."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return translate_fn(OnnxModel.load(folder), tokenizer)


def export_graphs(model: RandomTransformerForConditionalGeneration, folder: Path) -> None:
    """Export both graphs."""
    config = model.config
    widths = [config.d_k, config.d_v] * config.decoder_layers
    source = tensor_names(config, "source")
    past = tensor_names(config, "past")
    present = tensor_names(config, "present")
    ids = torch.zeros(SOURCES, SOURCE_LEN, dtype=torch.int64)
    mask = torch.ones_like(ids)
    export_graph(
        EncoderGraph(model),
        inputs=(ids, mask),
        dynamic_shapes=(dynamic(0, 1), dynamic(0, 1)),
        names=["input_ids", "attention_mask"],
        outputs=source,
        path=folder / ENCODER,
    )
    target = torch.zeros(SOURCES, BEAMS, NEW_LEN, dtype=torch.int64)
    source_states = [torch.zeros(SOURCES, config.num_heads, SOURCE_LEN, width) for width in widths]
    past_states = [torch.zeros(SOURCES, BEAMS, config.num_heads, PAST_LEN, width) for width in widths]
    export_graph(
        DecoderGraph(model),
        inputs=(target, mask, source_states, past_states),
        dynamic_shapes=(
            dynamic(0, 1, 2),
            dynamic(0, 1),
            [dynamic(0, 2) for _ in source_states],
            [dynamic(0, 1, 3) for _ in past_states],
        ),
        names=["decoder_input_ids", "attention_mask", *source, *past],
        outputs=["logits", *present, "cross_attentions"],
        path=folder / DECODER,
    )


def dynamic(*dimensions: int) -> dict[int, Any]:
    """Mark these dimensions of an input as dynamic."""
    return dict.fromkeys(dimensions, torch.export.Dim.DYNAMIC)


def export_graph(
    graph: nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    path: Path,
) -> None:
    """Trace a graph and save it. onnxruntime optimizes it when it is loaded; optimizing it here would take much longer.

    Args:
        graph: a module.
        inputs: example inputs of its `forward`.
        dynamic_shapes: dynamic dimensions of each input.
        names: names of the inputs in the file.
        outputs: names of the outputs.
        path: the new file.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by torch's own code
        program = torch.onnx.export(
            graph.eval(),
            inputs,
            dynamic_shapes=dynamic_shapes,
            input_names=names,
            output_names=outputs,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    program.save(path)


def quantize(path: Path, target: Path, weight_type: QuantType) -> None:
    """Quantize the weights of a graph's matrix products to int8, with one scale per column.

    Args:
        path: a graph.
        target: the new file.
        weight_type: signed weights have 7 bits, because CPUs without VNNI saturate sums of two products above 2**15.
    """
    folded = path.with_suffix(".folded.onnx")  # transposed weights are folded into constants
    quant_pre_process(path, folded, skip_symbolic_shape=True)
    quantize_dynamic(
        folded,
        target,
        op_types_to_quantize=QUANTIZED_OPS,
        per_channel=True,
        weight_type=weight_type,
        reduce_range=weight_type == QuantType.QInt8,
    )


class Int8Embedding(nn.Module):
    """An embedding whose weights are int8, with one scale per row. onnxruntime's own has one scale for all rows.

    Args:
        weight: the weights in float32, `[tokens, d_model]`.
    """

    def __init__(self, weight: Tensor):
        super().__init__()
        largest = weight.abs().amax(dim=1, keepdim=True)
        self.scale = largest.clamp(min=torch.finfo(weight.dtype).tiny) / 127
        rounded = (weight / self.scale).round()
        self.weight = rounded.to(torch.int8)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids `[…]` → `[…, d_model]`."""
        scale = nn.functional.embedding(ids, self.scale)
        return nn.functional.embedding(ids, self.weight) * scale


# The graphs. The encoder's layers are the model's modules; the decoder is the `FastDecoder` of `generate()`. Every size
# is dynamic. Beams of one source share its keys and values, as in `generate()`.


class EncoderGraph(nn.Module):
    """Encodes the source and projects it to the keys and values of all decoder layers. Requires eager attention."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Ids and mask `[sources, source_len]` → keys and values by layer, `[sources, heads, source_len, width]`."""
        encoder = self.model.model.encoder
        decoder = self.model.model.decoder
        # `position_limit` is None: the graph must not depend on the length of the example.
        states = encoder.embed(input_ids, torch.arange(input_ids.shape[1]), position_limit=None)
        mask = attention_mask[:, None, None] != 0
        for layer in encoder.layers:
            states = layer(states, attention_mask=mask)
        states = encoder.layer_norm(states)
        outputs: list[Tensor] = []
        for layer in decoder.layers:
            attention: Any = layer.encoder_attn
            config = attention.config
            keys = attention.k_proj(states)
            values = attention.v_proj(states)
            outputs.append(attention.split_heads(keys, config.d_k))
            outputs.append(attention.split_heads(values, config.d_v))
        return tuple(outputs)


class DecoderGraph(nn.Module):
    """Computes a decoder pass over the first tokens of the target, or over one or more later tokens."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(
        self, decoder_input_ids: Tensor, attention_mask: Tensor, source: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Compute the logits of the next token at each new position.

        Args:
            decoder_input_ids: new tokens, `[sources, beams, new_len]`.
            attention_mask: 1 for source tokens, 0 for padding, `[sources, source_len]`.
            source: the outputs of `EncoderGraph`.
            past: keys and values of the target by layer, `[sources, beams, heads, past_len, d_k or d_v]`; `past_len`
                may be 0.

        Returns:
            Logits `[sources, beams, new_len, vocab_size]`, then `past` with the new tokens, then the weights of the
            cross-attention, `[sources, beams, layers, heads, new_len, source_len]`.
        """
        sources, beams, new_len = decoder_input_ids.shape
        past_len = past[0].shape[3]
        new = torch.arange(past_len, past_len + new_len)
        causal_mask = torch.arange(past_len + new_len) <= new[:, None]  # [new_len, past_len + new_len]
        source_mask = attention_mask[:, None, None] != 0
        decoder = self.model.model.decoder
        rows = [part.flatten(0, 1) for part in past]
        layers = zip(decoder.layers, rows[::2], rows[1::2], source[::2], source[1::2], strict=True)
        attentions = [GraphAttention(*layer, causal_mask, source_mask) for layer in layers]
        states = decoder.embed(decoder_input_ids.flatten(0, 1), new, position_limit=None)
        step = FastDecoder(decoder, self.model.lm_head)
        outputs = [step(states, attentions)]
        for attention in attentions:
            outputs += [attention.keys, attention.values]
        weights = torch.stack([attention.source_weights for attention in attentions], dim=1)
        weights = weights.unflatten(3, (beams, new_len))  # [sources, layers, heads, beams, new_len, source_len]
        by_source = [states.unflatten(0, (sources, beams)) for states in outputs]
        return *by_source, weights.movedim(3, 1)


@dataclass
class GraphAttention:
    """Eager attention of one decoder layer, with a cache that grows by concatenation (see `StepAttention`).

    Attributes:
        layer: the decoder layer.
        keys: the target's keys so far, `[batch, heads, past_len, d_k]`, where batch is sources · beams.
        values: its values, `[batch, heads, past_len, d_v]`.
        source_keys: the source's keys, `[sources, heads, source_len, d_k]`.
        source_values: its values, `[sources, heads, source_len, d_v]`.
        causal_mask: true where a new token may see a token, `[new_len, past_len + new_len]`.
        source_mask: true for source tokens, `[sources, 1, 1, source_len]`.
        source_weights: the weights of the cross-attention of the last step, `[sources, heads, beams · new_len,
            source_len]`.
    """

    layer: Any
    keys: Tensor
    values: Tensor
    source_keys: Tensor
    source_values: Tensor
    causal_mask: Tensor
    source_mask: Tensor
    source_weights: Tensor = field(init=False)

    def attend_to_target(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[batch, new_len, heads · d_k]` and `[batch, new_len, heads · d_v]` → `[batch, new_len, heads · d_v]`."""
        attention = self.layer.self_attn
        config = attention.config
        new_keys = attention.split_heads(key, config.d_k)
        new_values = attention.split_heads(value, config.d_v)
        self.keys = torch.cat([self.keys, new_keys], dim=2)
        self.values = torch.cat([self.values, new_values], dim=2)
        outputs, _ = attend(attention, query, self.keys, self.values, self.causal_mask[None, None])
        return outputs

    def attend_to_source(self, query: Tensor) -> Tensor:
        """`[batch, new_len, heads · d_k]` → `[batch, new_len, heads · d_v]`."""
        batch, new_len, width = query.shape
        grouped = query.reshape(self.source_keys.shape[0], -1, width)
        outputs, self.source_weights = attend(
            self.layer.encoder_attn, grouped, self.source_keys, self.source_values, self.source_mask
        )
        return outputs.reshape(batch, new_len, -1)


def attend(attention: Any, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Eager attention of queries `[batch, query_len, heads · d_k]`.

    Returns:
        The outputs, `[batch, query_len, heads · d_v]`, and the weights, `[batch, heads, query_len, key_len]`.
    """
    heads = attention.split_heads(query, attention.config.d_k)
    outputs, weights = eager_attention_forward(attention, heads, keys, values, visible, attention.scaling)
    return outputs.flatten(2), weights

"""Exports a model to onnxruntime: `encoder.onnx` and `decoder.onnx`, with dynamic batch size, beams and lengths.

`transformers.exporters` is not used: it exports one forward pass of a model, but here, the beams of a source share its
keys and values, and its interface differs between transformers 5.17 and 5.23 (5.17 has no quantizers).
"""

import copy
import warnings
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxscript  # noqa: F401  torch.onnx requires it
import torch
from onnxruntime import InferenceSession
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..generation_random_transformer import difference
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from .compare import COMPARED_LENGTH, ENGINE_ROUNDING
from .engines import Translate, translate_fn
from .graphs import DecoderGraph, EncoderGraph
from .onnx_model import ATTENTIONS, DECODER, ENCODER, OnnxModel, tensor_names

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
        web: the export of the web page: the decoder also returns the weights of its cross-attention, and `"int8"`
            includes the embedding.
    """
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    model.set_attn_implementation("eager")
    with TemporaryDirectory() as scratch:
        graphs = folder if dtype == "float32" else Path(scratch)
        export_graphs(model, graphs, attentions=web)
        if dtype == "int8":
            for name in (ENCODER, DECODER):
                quantize(graphs / name, folder / name, web)
        check_logits(model, graphs)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def check_logits(model: RandomTransformerForConditionalGeneration, folder: Path) -> None:
    """Raise a ValueError if the graphs do not compute what the modules compute, whose code may have been edited."""
    sessions = [InferenceSession(folder / name, providers=["CPUExecutionProvider"]) for name in (ENCODER, DECODER)]
    length = min(model.config.max_position_embeddings, COMPARED_LENGTH)
    shape, generator = (2, 1, length), torch.Generator().manual_seed(0)
    ids, target = torch.randint(model.config.vocab_size, shape, generator=generator)
    mask = (torch.arange(length) < max(1, length - 2)).long()[None]
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target, "return_dict": True}
    logits = OnnxModel(model.config, *sessions)(**inputs).logits
    if reason := difference(logits, model(**inputs).logits, ENGINE_ROUNDING):
        raise ValueError(f"model must compute what the graphs of export/graphs.py compute, but {reason}.")


def load(folder: str | PathLike) -> Translate:
    """Load an exported model as a function that translates sentences, with as many CPU threads as torch uses."""
    return translate_fn(OnnxModel.load(folder), AutoTokenizer.from_pretrained(folder))


def export_graphs(model: RandomTransformerForConditionalGeneration, folder: Path, attentions: bool = False) -> None:
    """Export both graphs. With `attentions`, the decoder also returns the weights of the cross-attention."""
    heads, widths = model.config.num_heads, [model.config.d_k, model.config.d_v] * model.config.decoder_layers
    source, past, present = (tensor_names(model.config, what) for what in ("source", "past", "present"))
    ids = torch.zeros(SOURCES, SOURCE_LEN, dtype=torch.int64)
    mask = torch.ones_like(ids)
    names = ["input_ids", "attention_mask"]
    export_graph(EncoderGraph(model), (ids, mask), (dynamic(0, 1),) * 2, names, source, folder / ENCODER)
    inputs = (
        torch.zeros(SOURCES, BEAMS, NEW_LEN, dtype=torch.int64),
        mask,
        [torch.zeros(SOURCES, heads, SOURCE_LEN, width) for width in widths],
        [torch.zeros(SOURCES, BEAMS, heads, PAST_LEN, width) for width in widths],
    )
    shapes = dynamic(0, 1, 2), dynamic(0, 1), [dynamic(0, 2)] * len(widths), [dynamic(0, 1, 3)] * len(widths)
    names = ["decoder_input_ids", "attention_mask", *source, *past]
    outputs = ["logits", *present, *[ATTENTIONS] * attentions]
    export_graph(DecoderGraph(model, attentions), inputs, shapes, names, outputs, folder / DECODER)


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


def quantize(path: Path, target: Path, web: bool = False) -> None:
    """Quantize the weights of a graph's matrix products to int8, with one scale per column.

    Args:
        path: a graph.
        target: the new file.
        web: quantize for the web page: also the tables that are indexed by tokens or positions, with one scale per
            row; and weights as unsigned integers, whose products no CPU saturates, so that results are the same on
            the page and in Python. WebAssembly is as fast with them; x86 CPUs are faster with signed weights, which
            have 7 bits because CPUs without VNNI saturate sums of two products above 2**15.
    """
    folded = path.with_suffix(".folded.onnx")  # transposed weights are folded into constants
    quant_pre_process(path, folded, skip_symbolic_shape=True)
    weights = QuantType.QUInt8 if web else QuantType.QInt8
    options = {"op_types_to_quantize": QUANTIZED_OPS, "per_channel": True, "reduce_range": not web}
    quantize_dynamic(folded, target, weight_type=weights, **options)
    if web:
        graph = onnx.load(target)
        quantize_tables(graph.graph)
        onnx.save(graph, target)


def quantize_tables(graph: onnx.GraphProto) -> None:
    """Replace `Gather(table, ids)` by `Cast(Gather(int8 table, ids)) · Gather(scales, ids)` in place.

    onnxruntime's own quantization of a table has one scale for all rows.
    """
    tables = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    nodes = [node for node in graph.node if node.op_type == "Gather" and node.input[0] in tables]
    for name in {node.input[0] for node in nodes}:
        rows = onnx.numpy_helper.to_array(tables[name])
        scales = np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(rows.dtype).tiny) / 127
        quantized = np.rint(rows / scales).astype(np.int8)
        graph.initializer.remove(tables[name])
        graph.initializer.append(onnx.numpy_helper.from_array(quantized, f"{name}_quantized"))
        graph.initializer.append(onnx.numpy_helper.from_array(scales, f"{name}_scale"))
    for node in nodes:
        (table, ids), (output,) = node.input, node.output
        position = [*graph.node].index(node)
        graph.node.remove(node)
        replacements = (
            onnx.helper.make_node("Gather", [f"{table}_quantized", ids], [f"{output}_quantized"]),
            onnx.helper.make_node("Cast", [f"{output}_quantized"], [f"{output}_cast"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("Gather", [f"{table}_scale", ids], [f"{output}_scale"]),
            onnx.helper.make_node("Mul", [f"{output}_cast", f"{output}_scale"], [output]),
        )
        for offset, replacement in enumerate(replacements):
            graph.node.insert(position + offset, replacement)

"""A model for onnxruntime: `encoder.onnx` and `decoder.onnx`, for any batch, any number of beams and all lengths."""

import copy
import warnings
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..configuration_random_transformer import RandomTransformerConfig
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from .graphs import DecoderGraph, EncoderGraph
from .onnx_model import DECODER, ENCODER, OnnxModel, tensor_names
from .search import Translate, generating

SOURCES, SOURCE_LEN, BEAMS, PAST_LEN, NEW_LEN = 2, 3, 4, 5, 6  # of examples: different, and none of them 0 or 1
MULTIPLIED = ["MatMul", "Gemm"]  # the operations whose weights become int8


def write(
    model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: str
) -> None:
    """Write what `OnnxModel.load` loads: the graphs, the configuration and the defaults of `generate()`.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        folder: where to, an empty folder.
        dtype: `"float32"`, or `"int8"` for the weights of all matrix products; what they are multiplied with is then
            quantized as it comes.
    """
    model = copy.deepcopy(model).to("cpu", torch.float32)
    model.set_attn_implementation("eager")
    with TemporaryDirectory() as scratch:
        for name, draw in ((ENCODER, draw_encoder), (DECODER, draw_decoder)):
            if dtype == "float32":
                draw(model, folder / name)
            else:
                draw(model, Path(scratch) / name)
                quantize(Path(scratch) / name, folder / name)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: str | PathLike) -> Translate:
    """The engine, on as many of the CPU's threads as torch uses, as a function of sentences."""
    return generating(OnnxModel.load(folder), AutoTokenizer.from_pretrained(folder))


def longest_text(config: RandomTransformerConfig) -> int | None:
    """How many tokens the graphs read or write: of sinusoids any number, `None`."""
    return config.max_position_embeddings if config.position_embedding == "learned" else None


def draw_encoder(model: RandomTransformerForConditionalGeneration, path: Path) -> None:
    """Write the graph that encodes the source."""
    ids = torch.zeros(SOURCES, SOURCE_LEN, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = (opened(0, 1), opened(0, 1))
    draw(EncoderGraph(model), tuple(inputs.values()), sizes, [*inputs], tensor_names(model.config, "source"), path)


def draw_decoder(model: RandomTransformerForConditionalGeneration, path: Path) -> None:
    """Write the graph that takes a step of the target."""
    heads, widths = model.config.num_heads, [model.config.d_k, model.config.d_v] * model.config.decoder_layers
    source, past, present = (tensor_names(model.config, what) for what in ("source", "past", "present"))
    inputs = (
        torch.zeros(SOURCES, BEAMS, NEW_LEN, dtype=torch.int64),
        torch.ones(SOURCES, SOURCE_LEN, dtype=torch.int64),
        [torch.zeros(SOURCES, heads, SOURCE_LEN, width) for width in widths],
        [torch.zeros(SOURCES, BEAMS, heads, PAST_LEN, width) for width in widths],
    )
    sizes = (opened(0, 1, 2), opened(0, 1), [opened(0, 2) for _ in widths], [opened(0, 1, 3) for _ in widths])
    names = ["decoder_input_ids", "attention_mask", *source, *past]
    draw(DecoderGraph(model), inputs, sizes, names, ["logits", *present], path)


def opened(*dimensions: int) -> dict[int, Any]:
    """These dimensions of an input may have any size."""
    return dict.fromkeys(dimensions, torch.export.Dim.DYNAMIC)


def draw(
    graph: nn.Module, inputs: tuple[Any, ...], sizes: tuple[Any, ...], names: list[str], outputs: list[str], path: Path
) -> None:
    """Run the graph once and write what it did. onnxruntime will optimize it; here that would take three times as long.

    Args:
        graph: a module.
        inputs: any inputs of its `forward`, also lists of them.
        sizes: the open dimensions of each.
        names: their names in the file.
        outputs: those of the outputs.
        path: the file to write.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about its own code
        program = torch.onnx.export(
            graph.eval(),
            inputs,
            dynamic_shapes=sizes,
            input_names=names,
            output_names=outputs,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    program.save(path)


def quantize(path: Path, target: Path) -> None:
    """Write the graph with the weights of its matrix products in int8, a scale for each of their columns."""
    folded = path.with_suffix(".folded.onnx")  # constant folding transposes weights for their products
    quant_pre_process(path, folded, skip_symbolic_shape=True)
    quantize_dynamic(folded, target, op_types_to_quantize=MULTIPLIED, per_channel=True)

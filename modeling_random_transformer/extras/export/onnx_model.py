"""Runs exported ONNX graphs with onnxruntime in transformers' `generate()`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession, SessionOptions
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

from ...base.files import StrPath
from ...configuration_random_transformer import RandomTransformerConfig
from ...generation_random_transformer import RandomTransformerGenerationMixin
from ...modeling_random_transformer import RandomTransformerPreTrainedModel
from ...versions_random_transformer import accepts_cache, named_cache

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"


def tensor_names(config: RandomTransformerConfig, role: str) -> list[str]:
    """Names of keys and values in the graphs, by layer, with the role `"source"`, `"past"` or `"present"`."""
    return [f"{role}.{i}.{part}" for i in range(config.decoder_layers) for part in ("keys", "values")]


@dataclass
class EncodedSource(ModelOutput):
    """Keys and values of the source by layer, `[sources, heads, source_len, d_k or d_v]` each."""

    keys_and_values: tuple[np.ndarray, ...]


class OnnxEncoder(nn.Module):
    """The graph that encodes the source."""

    main_input_name = "input_ids"

    def __init__(self, config: RandomTransformerConfig, session: InferenceSession):
        super().__init__()
        self.config = config
        self.session = session

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> EncodedSource:
        """Ids and mask `[sources, source_len]`, 1 for tokens and 0 for padding."""
        check_graph_input(self.config, "input_ids", input_ids, input_ids.shape[1])
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        inputs = {"input_ids": input_ids.numpy(), "attention_mask": mask.long().numpy()}
        return EncodedSource(tuple(self.session.run(None, inputs)))


class OnnxModel(RandomTransformerPreTrainedModel, RandomTransformerGenerationMixin):
    """A model for `generate()` and `translate` that runs two ONNX graphs on the CPU.

    model = OnnxModel.load("out")
    model.generate(**tokenizer(["hello world"], return_tensors="pt"), num_beams=4)

    Args:
        config: the configuration of the exported model.
        folder: the folder of the graphs.
    """

    def __init__(self, config: RandomTransformerConfig, folder: StrPath):
        super().__init__(config)
        self.encoder = OnnxEncoder(config, open_graph(folder, ENCODER))
        self.decoder_session = open_graph(folder, DECODER)

    @classmethod
    def load(cls, folder: StrPath) -> "OnnxModel":
        """Load the model from a folder."""
        model = cls(RandomTransformerConfig.from_pretrained(folder), folder).eval()
        model.generation_config = GenerationConfig.from_pretrained(folder)
        return model

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def _prepare_cache_for_generation(self, generation_config: GenerationConfig, *args: Any) -> None:
        implementation = generation_config.cache_implementation
        if implementation not in (None, "dynamic"):  # others would fail in the graph, without naming the option
            raise ValueError(f"cache_implementation must be None or 'dynamic' for ONNX graphs, got {implementation!r}.")
        super()._prepare_cache_for_generation(generation_config, *args)

    @accepts_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: EncodedSource | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Compute the logits of the next token at each new position.

        Args:
            input_ids: the source, `[sources, source_len]`, if it is not yet encoded.
            attention_mask: 1 for source tokens, 0 for padding, `[sources, source_len]`.
            decoder_input_ids: new tokens of the target, `[batch, new_len]`; consecutive rows share a source, as beams
                do.
            encoder_outputs: the encoded source.
            cache: the target's cache, to which the new tokens are appended.
            use_cache: return the cache; `config.use_cache` when `None`.

        Returns:
            Logits `[batch, new_len, vocab_size]`, and the cache if it is used.

        Raises:
            ValueError: an input is missing, longer than the learned positions, or outside the vocabulary.
        """
        if decoder_input_ids is None or (input_ids is None and encoder_outputs is None):
            raise ValueError("decoder_input_ids and one of input_ids and encoder_outputs must be given.")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        source: tuple[np.ndarray, ...] = encoder_outputs.keys_and_values
        sources = len(source[0])
        if attention_mask is None:
            attention_mask = torch.ones(sources, source[0].shape[2])
        if cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        length = cache.get_seq_length() + decoder_input_ids.shape[1]
        check_graph_input(self.config, "decoder_input_ids", decoder_input_ids, length)
        inputs = {
            "decoder_input_ids": group_rows(decoder_input_ids, sources),
            "attention_mask": attention_mask.long().numpy(),
            **dict(zip(tensor_names(self.config, "source"), source, strict=True)),
            **self.past_inputs(cache.self_attention_cache, sources, len(decoder_input_ids)),
        }
        outputs = self.decoder_session.run(["logits", *tensor_names(self.config, "present")], inputs)
        logits, *present = (torch.from_numpy(output).flatten(0, 1) for output in outputs)
        replace_contents(cache.self_attention_cache, present)
        used = self.config.use_cache if use_cache is None else use_cache
        return Seq2SeqLMOutput(logits=logits, **named_cache(cache if used else None))

    def past_inputs(self, cache: DynamicCache, sources: int, batch_size: int) -> dict[str, np.ndarray]:
        """Inputs of the decoder graph from the target's cache, which is initially empty."""
        if cache.get_seq_length():
            parts = []
            for layer in cache.layers:
                parts += [layer.keys, layer.values]
        else:
            config = self.config
            widths = [config.d_k, config.d_v] * config.decoder_layers
            parts = [torch.empty(batch_size, config.num_heads, 0, width) for width in widths]
        names = tensor_names(self.config, "past")
        return {name: group_rows(part, sources) for name, part in zip(names, parts, strict=True)}


def open_graph(folder: StrPath, name: str) -> InferenceSession:
    """A graph of a folder, which uses as many CPU threads as torch."""
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return InferenceSession(Path(folder) / name, options, providers=["CPUExecutionProvider"])


def check_graph_input(config: RandomTransformerConfig, name: str, ids: Tensor, length: int) -> None:
    """Raise the same ValueErrors as the model. The error of a graph would name a node, and it accepts negative ids."""
    limit = config.max_position_embeddings
    if config.position_embedding == "learned" and length > limit:
        raise ValueError(f"sequence length must be at most max_position_embeddings={limit}, got {length}.")
    if not ids.numel():
        return
    lowest, highest = ids.aminmax()
    last = config.vocab_size - 1
    if lowest < 0 or highest > last:
        raise ValueError(f"{name} must be in the vocabulary, 0 to {last}, got ids from {lowest} to {highest}.")


def group_rows(tensor: Tensor, sources: int) -> np.ndarray:
    """Group rows by source: `[batch, …]` → `[sources, beams, …]`."""
    return tensor.view(sources, len(tensor) // sources, *tensor.shape[1:]).numpy()


def replace_contents(cache: DynamicCache, present: Sequence[Tensor]) -> None:
    """Set the cache to these keys and values by layer. Its `update` would concatenate and copy them."""
    cache.layers = [DynamicLayer() for _ in present[::2]]
    for layer, keys, values in zip(cache.layers, present[::2], present[1::2], strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys = keys
        layer.values = values

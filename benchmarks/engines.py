"""Our weights in CTranslate2."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.specs import TransformerSpec
from torch import Tensor, nn

from .models import END, PAD, START, VOCAB_SIZE

TOKENS = {PAD: "<pad>", START: "<s>", END: "</s>"}


def translator(model: Any, compute_type: str, folder: Path) -> ctranslate2.Translator:
    """`model`, of `models.ours`, run by CTranslate2 on the CPU's cores, in `compute_type` ("float32", "int8")."""
    config = model.config
    layers = (config.encoder_layers, config.decoder_layers)
    spec = TransformerSpec.from_config(layers, config.num_heads, pre_norm=config.norm_order == "pre")
    fill_stack(spec.encoder, model.model.encoder, spec.encoder.embeddings[0])
    fill_stack(spec.decoder, model.model.decoder, spec.decoder.embeddings)
    spec.decoder.projection.weight = array(model.lm_head.weight)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    vocabulary = [TOKENS.get(i, f"t{i}") for i in range(VOCAB_SIZE)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.save(str(folder))
    return ctranslate2.Translator(str(folder), compute_type=compute_type, intra_threads=torch.get_num_threads())


def fill_stack(spec: Any, stack: Any, embeddings: Any) -> None:
    embeddings.weight = array(stack.embed_tokens.weight)
    spec.scale_embeddings = stack.config.scale_embedding
    spec.position_encodings.encodings = array(stack.embed_positions.table)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        own = layer.self_attn
        fill_linear(layer_spec.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
        fill_linear(layer_spec.self_attention.linear[1], own.out_proj)
        fill_norm(layer_spec.self_attention.layer_norm, layer.self_attn_layer_norm)
        if hasattr(layer, "encoder_attn"):
            cross = layer.encoder_attn
            fill_linear(layer_spec.attention.linear[0], cross.q_proj)
            fill_linear(layer_spec.attention.linear[1], cross.k_proj, cross.v_proj)
            fill_linear(layer_spec.attention.linear[2], cross.out_proj)
            fill_norm(layer_spec.attention.layer_norm, layer.encoder_attn_layer_norm)
        fill_linear(layer_spec.ffn.linear_0, layer.fc1)
        fill_linear(layer_spec.ffn.linear_1, layer.fc2)
        fill_norm(layer_spec.ffn.layer_norm, layer.final_layer_norm)


def fill_linear(spec: Any, *layers: nn.Linear) -> None:
    spec.weight = array(torch.cat([layer.weight for layer in layers]))
    spec.bias = array(torch.cat([layer.bias for layer in layers]))


def fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def array(tensor: Tensor) -> Any:
    return tensor.detach().float().numpy()


def translate(model: Any, compute_type: str, new_tokens: int) -> Callable[[Tensor, int], list[list[str]]]:
    """What translates ids `[batch, source_len]` with so many beams into `new_tokens` tokens each."""
    with tempfile.TemporaryDirectory() as folder:  # which the engine reads once, when it is made
        engine = translator(model, compute_type, Path(folder))

    def run(ids: Tensor, num_beams: int) -> list[list[str]]:
        sources = [[f"t{i}" for i in row] for row in ids.tolist()]
        options = {"min_decoding_length": new_tokens, "max_decoding_length": new_tokens}
        results = engine.translate_batch(sources, beam_size=num_beams, **options)
        return [result.hypotheses[0] for result in results]

    return run

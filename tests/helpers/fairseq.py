"""fairseq checkpoints and dictionaries with random weights and fairseq's names."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE_TOKENS, TARGET_TOKENS = 37, 29
OPTIONS: dict[str, Any] = {
    "arch": "transformer_iwslt_de_en",
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "share_all_embeddings": False,
    "share_decoder_input_output_embed": False,
    "max_source_positions": 40,
    "max_target_positions": 32,
    "dropout": 0.2,
}


def options(**changes: Any) -> dict[str, Any]:
    return {**OPTIONS, **changes}


def weights(layers: tuple[int, int], seed: int, **changes: Any) -> dict[str, Tensor]:
    """A random state dict for these options."""
    generator = torch.Generator().manual_seed(seed)
    chosen, width, inner = options(**changes), OPTIONS["encoder_embed_dim"], OPTIONS["encoder_ffn_embed_dim"]
    state_dict: dict[str, Tensor] = {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    def linear(name: str, rows: int, columns: int) -> None:
        state_dict[f"{name}.weight"], state_dict[f"{name}.bias"] = matrix(rows, columns), matrix(rows)

    def norm(name: str) -> None:
        state_dict[f"{name}.weight"], state_dict[f"{name}.bias"] = 1 + matrix(width), matrix(width)

    for stack, count, tokens, side, attentions in (
        ("encoder", layers[0], SOURCE_TOKENS, "source", ("self_attn",)),
        ("decoder", layers[1], TARGET_TOKENS, "target", ("self_attn", "encoder_attn")),
    ):
        state_dict[f"{stack}.embed_tokens.weight"] = matrix(tokens, width)
        if chosen.get(f"{stack}_learned_pos"):
            state_dict[f"{stack}.embed_positions.weight"] = matrix(chosen[f"max_{side}_positions"] + 2, width)
        else:
            state_dict[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        for layer in (f"{stack}.layers.{i}" for i in range(count)):
            for attention in attentions:
                for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    linear(f"{layer}.{attention}.{part}", width, width)
                norm(f"{layer}.{attention}_layer_norm")
            linear(f"{layer}.fc1", inner, width)
            linear(f"{layer}.fc2", width, inner)
            norm(f"{layer}.final_layer_norm")
        if chosen["encoder_normalize_before"]:
            norm(f"{stack}.layer_norm")
    if chosen["share_all_embeddings"]:
        state_dict["decoder.embed_tokens.weight"] = state_dict["encoder.embed_tokens.weight"]
    tied = chosen["share_all_embeddings"] or chosen["share_decoder_input_output_embed"]
    output = state_dict["decoder.embed_tokens.weight"] if tied else matrix(TARGET_TOKENS, width)
    state_dict["decoder.output_projection.weight"] = output
    return state_dict


def checkpoint(layout: str = "args", layers: tuple[int, int] = (2, 1), seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A checkpoint in one of fairseq's layouts: `"args"` (oldest), `"cfg"`, or `"nested"` (options in a dataclass)."""
    model = weights(layers, seed, **changes)
    chosen = options(**changes)
    if layout == "args":
        return {"args": Namespace(**chosen), "model": model}
    if layout == "cfg":
        return {"args": None, "cfg": {"model": Namespace(**chosen)}, "model": model}
    nested: dict[str, Any] = {"encoder": {}, "decoder": {}}
    for name, value in chosen.items():
        stack, _, rest = name.partition("_")
        (nested[stack] if stack in nested and rest else nested)[rest if stack in nested else name] = value
    return {"args": None, "cfg": {"model": nested}, "model": model}


def old_names(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights as in old checkpoints: fused projections, numbered norms, the output layer as a parameter."""
    numbers = {
        "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
        "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
    }
    renamed = {}
    for name, weight in model.items():
        if ".q_proj." in name:
            parts = [model[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            renamed[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            for old, number in numbers[name.split(".")[0]].items():
                name = name.replace(f".{old}.", f".layer_norms.{number}.")
            renamed["decoder.embed_out" if name == "decoder.output_projection.weight" else name] = weight
    return renamed


def words(count: int, prefix: str) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def write_dictionary(path: Path, tokens: list[str]) -> Path:
    path.write_text("".join(f"{token} {100 - i}\n" for i, token in enumerate(tokens)), encoding="utf-8")
    return path


def folder_with_two_dictionaries(folder: Path, **changes: Any) -> dict[str, Path]:
    """Write a checkpoint and dictionaries, and return the arguments of `convert_fairseq`."""
    torch.save(checkpoint(**changes), folder / "checkpoint.pt")
    return {
        "checkpoint": folder / "checkpoint.pt",
        "source_dict": write_dictionary(folder / "dict.de.txt", words(SOURCE_TOKENS - 4, "s")),
        "target_dict": write_dictionary(
            folder / "dict.en.txt", ["hel@@", "lo", "wor@@", "ld", *words(TARGET_TOKENS - 8, "t")]
        ),
    }

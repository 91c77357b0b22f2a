"""Folders as JoeyNMT and eole write them, with random weights, and an independent forward pass."""

import json
import re
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear

from tests.helpers import fairseq
from tests.helpers.fairseq import SOURCE_TOKENS, TARGET_TOKENS, words
from tests.helpers.references import FairseqReference

SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
SOURCE = [*SPECIAL, *words(SOURCE_TOKENS - 4, "s")]
TARGET = [*SPECIAL, "hel@@", "lo", "wor@@", "ld", *words(TARGET_TOKENS - 8, "t")]
CODES = "#version: 0.2\nl o</w>\nh e\nhe l\no r\nw or\nl d</w>\ns 0</w>\ns 1</w>\ns 2</w>\ns 3</w>\n"
# Patterns of fairseq's names, and what replaces them.
JOEYNMT = (
    (r"^encoder\.embed_tokens", "src_embed.lut"),
    (r"^decoder\.embed_tokens", "trg_embed.lut"),
    ("output_projection|out_proj", "output_layer"),
    ("([qkv])_proj", r"\1_layer"),
    ("fc1", "feed_forward.pwff_layer.0"),
    ("fc2", "feed_forward.pwff_layer.3"),
    (r"^(encoder\..*)self_attn_layer_norm", r"\1layer_norm"),
    (r"^(decoder\..*)self_attn_layer_norm", r"\1x_layer_norm"),
    ("encoder_attn_layer_norm", "dec_layer_norm"),
    ("final_layer_norm", "feed_forward.layer_norm"),
    (r"^(encoder\..*)self_attn", r"\1src_src_att"),
    (r"^(decoder\..*)self_attn", r"\1trg_trg_att"),
    ("encoder_attn", "src_trg_att"),
)
EOLE = (
    (r"^encoder\.embed_(tokens|positions)", r"src_emb.\1"),
    (r"^decoder\.embed_(tokens|positions)", r"tgt_emb.\1"),
    (r"_emb\.tokens", "_emb.embeddings"),
    (r"_emb\.positions", "_emb.pe"),
    (r"decoder\.output_projection", "generator"),
    (r"\.layers", ".transformer_layers"),
    ("self_attn_layer_norm", "input_layernorm"),
    ("encoder_attn_layer_norm", "precontext_layernorm"),
    ("final_layer_norm", "post_attention_layernorm"),
    ("encoder_attn", "context_attn"),
    ("q_proj", "linear_query"),
    ("k_proj", "linear_keys"),
    ("v_proj", "linear_values"),
    ("out_proj", "final_linear"),
    ("fc1", "mlp.gate_up_proj"),
    ("fc2", "mlp.down_proj"),
)


class Reference(FairseqReference):
    """The forward pass of JoeyNMT and eole: paper's positions from 0, and factors of residual connections by stack."""

    def __init__(
        self,
        *args: Any,
        factors: tuple[float, float] = (1.0, 1.0),
        epsilon: float = 1e-6,
        paper: bool = True,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.factors = dict(zip(("encoder", "decoder"), factors, strict=True))
        self.epsilon, self.paper = epsilon, paper

    def residual(self, name: str, states: Tensor, sublayer: Any) -> Tensor:
        factor = self.factors[name.split(".")[0]]
        if self.before:
            return factor * states + sublayer(self.norm(name, states))
        return self.norm(name, factor * states + sublayer(states))

    def linear(self, name: str, states: Tensor) -> Tensor:
        return linear(states, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        table = self.weights.get(f"{stack}.embed_positions.weight")
        table = self.sinusoids(ids.shape[1]) if table is None else table[: ids.shape[1]]
        return self.weights[f"{stack}.embed_tokens.weight"][ids] * self.scale + table

    def sinusoids(self, rows: int) -> Tensor:
        if not self.paper:
            return super().sinusoids(rows)
        angles = torch.arange(rows)[:, None].double() / 10000 ** (torch.arange(0, self.width, 2) / self.width)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def random_weights(**options: Any) -> dict[str, Tensor]:
    """Weights of two layers with fairseq's names, as `Reference` reads them."""
    weights = fairseq.weights((2, 2), 0, **options)
    return {name: weight for name, weight in weights.items() if not name.endswith(("version", "_float_tensor"))}


def rename(weights: dict[str, Tensor], patterns: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in weights.items():
        for pattern, replacement in patterns:
            name = re.sub(pattern, replacement, name)
        renamed[name] = weight.clone()
    return renamed


def joeynmt_config(**changes: Any) -> dict[str, Any]:
    """JoeyNMT's configuration. `changes` are values by paths, with `__` between names."""
    side = {"level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": "/data/bpe.codes"}}
    embeddings = {"embedding_dim": 16, "scale": True}
    stack = {"type": "transformer", "num_layers": 2, "num_heads": 2, "hidden_size": 16, "ff_size": 24}
    stack |= {"layer_norm": "pre", "dropout": 0.1, "embeddings": embeddings}
    model = {"initializer": "xavier_uniform", "encoder": stack, "decoder": stack}
    config = {"data": {"src": side, "trg": side}, "testing": {"beam_size": 5, "beam_alpha": 1.0}, "model": model}
    config = json.loads(json.dumps(config))  # no shared parts, which YAML would write as references
    for path, value in changes.items():
        *parents, name = path.split("__")
        part = config
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    return config


def write_joeynmt(folder: Path, weights: dict[str, Tensor], **changes: Any) -> Path:
    """A folder of JoeyNMT (its model_dir) with weights that have fairseq's names."""
    buffers = {f"{stack}.pe.pe": torch.zeros(1, 9, 16) for stack in ("encoder", "decoder")}
    state = {"model_state": rename(weights, JOEYNMT) | buffers, "optimizer_state": {"state": {}}, "scaler_state": None}
    torch.save(state, folder / "best.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump(joeynmt_config(**changes)))
    (folder / "src_vocab.txt").write_text("\n".join(SOURCE) + "\n")
    (folder / "trg_vocab.txt").write_text("\n".join(TARGET) + "\n")
    (folder / "bpe.codes").write_text(CODES)
    return folder


def eole_config(**changes: Any) -> dict[str, Any]:
    """eole's configuration, with changes of the model's options."""
    model = {"architecture": "transformer", "heads": 2, "hidden_size": 16, "layers": 2, "transformer_ff": 24}
    model |= {"embeddings": {"position_encoding_type": changes.pop("positions", "SinusoidalInterleaved")}}
    transforms = {"bpe": {f"{side}_subword_model": "${MODEL_PATH}/bpe.codes" for side in ("src", "tgt")}}
    training = {"dropout": [0.3, 0.1], "attention_dropout": [0.1]}
    model |= {name: value for name, value in changes.items() if name not in ("transforms", "training")}
    config = {"transforms": ["bpe"], "transforms_configs": transforms, "training": training, "model": model}
    return config | {name: changes[name] for name in ("transforms", "training") if name in changes}


def write_eole(folder: Path, weights: dict[str, Tensor], **changes: Any) -> Path:
    """A folder of eole (its model_path) with weights that have fairseq's names."""
    buffers = {f"{side}_emb.pe.pe": torch.zeros(9, 1, 16) for side in ("src", "tgt")}
    buffers |= {f"decoder.transformer_layers.{i}.layer_scalar": torch.ones(1) for i in range(2)}
    save_file(rename(weights, EOLE) | buffers, folder / "model.00.safetensors")
    (folder / "config.json").write_text(json.dumps(eole_config(**changes)))
    names = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    source, target = ([token.replace("<pad>", "<blank>") for token in tokens] for tokens in (SOURCE, TARGET))
    vocabulary = {"src": source, "tgt": target, "decoder_start_token": "<s>", "specials": names}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "bpe.codes").write_text(CODES)
    return folder

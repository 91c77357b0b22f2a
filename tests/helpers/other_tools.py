"""Models as JoeyNMT, OpenNMT-py and eole write them, with random weights, and an independent forward pass."""

import json
import re
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, relu

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
ATTENTION = (
    ("encoder_attn", "context_attn"),
    ("q_proj", "linear_query"),
    ("k_proj", "linear_keys"),
    ("v_proj", "linear_values"),
    ("out_proj", "final_linear"),
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
    *ATTENTION,
    ("fc1", "mlp.gate_up_proj"),
    ("fc2", "mlp.down_proj"),
)
OPENNMT = (
    (r"^(\w+)\.embed_tokens", r"\1.embeddings.make_embedding.emb_luts.0"),
    (r"^encoder\.layers", "encoder.transformer"),
    (r"^decoder\.layers", "decoder.transformer_layers"),
    (r"^(encoder\..*)self_attn_layer_norm", r"\1layer_norm"),
    (r"^(decoder\..*)self_attn_layer_norm", r"\1layer_norm_1"),
    ("encoder_attn_layer_norm", "layer_norm_2"),
    ("final_layer_norm", "feed_forward.layer_norm"),
    *ATTENTION,
    ("fc1", "feed_forward.w_1"),
    ("fc2", "feed_forward.w_2"),
)
FIELDS = {
    "onmt.inputters.text_dataset": ("TextMultiField", "_feature_tokenize"),
    "torchtext.data.field": ("Field",),
    "torchtext.vocab": ("Vocab",),
}


class Reference(FairseqReference):
    """The forward pass of JoeyNMT and eole: the paper's positions from 0."""

    def __init__(
        self,
        *args: Any,
        epsilon: float = 1e-6,
        paper: bool = True,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.epsilon, self.paper = epsilon, paper

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


class Original:
    """The logits of the reference, for the token ids of a converted model: -inf for tokens that the target lacks."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        tokenizer: Any,
        source: list[str] = SOURCE,
        before: bool = True,
        **options: Any,
    ):
        self.reference = Reference(weights, 2, before, **{"epsilon": 1e-5, "act": relu, **options})
        vocabulary = tokenizer.get_vocab()
        names = [name.removesuffix("</w>") for name in sorted(vocabulary, key=vocabulary.get)]
        sides = [{name.removesuffix("@@"): i for i, name in enumerate(tokens)} for tokens in (source, TARGET)]
        self.sources, self.targets = (torch.tensor([side.get(n, 0) for n in names]) for side in sides)
        self.known = (self.targets > 0) | (torch.arange(len(names)) == tokenizer.unk_token_id)

    def __call__(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        logits = self.reference(self.sources[ids], mask, self.targets[target])[..., self.targets]
        return logits.masked_fill(~self.known, -torch.inf)


def without_biases(weights: dict[str, Tensor], attention_only: bool) -> dict[str, Tensor]:
    """The weights without the biases of linear modules in layers, or in attention only."""
    kept = ("weight", "norm.bias", *(("fc1.bias", "fc2.bias") if attention_only else ()))
    return {name: weight for name, weight in weights.items() if name.endswith(kept)}


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
    vocabulary = {"src": blank(SOURCE), "tgt": blank(TARGET), "decoder_start_token": "<s>", "specials": names}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "bpe.codes").write_text(CODES)
    return folder


def blank(tokens: list[str]) -> list[str]:
    """The tokens with the padding of OpenNMT-py and eole."""
    return ["<blank>" if token == "<pad>" else token for token in tokens]


def opennmt_options(**changes: Any) -> dict[str, Any]:
    """Options of OpenNMT-py, with changes."""
    options = {"encoder_type": "transformer", "decoder_type": "transformer", "model_task": "seq2seq", "heads": 2}
    options |= {
        "position_encoding": True,
        "dropout": [0.3, 0.1],
        "attention_dropout": [0.1],
        "max_relative_positions": 0,
    }
    options |= {"_all_transform": {"bpe", "filtertoolong"}, "src_subword_model": "/data/bpe.codes"}
    return options | {"tgt_subword_model": "/data/bpe.codes"} | changes


def opennmt_checkpoint(weights: dict[str, Tensor], **changes: Any) -> dict[str, Any]:
    """The content of a checkpoint of OpenNMT-py 3 with weights that have fairseq's names."""
    output = weights.get("decoder.output_projection.weight", weights["decoder.embed_tokens.weight"])
    bias = weights.get("decoder.output_projection.bias", torch.zeros(len(output)))
    buffers = {f"{stack}.embeddings.make_embedding.pe.pe": torch.zeros(9, 1, 16) for stack in ("encoder", "decoder")}
    layers = {name: weight for name, weight in weights.items() if "output_projection" not in name}
    vocabularies = {"src": blank(SOURCE), "tgt": blank(TARGET), "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return {
        "model": rename(layers, OPENNMT) | buffers,
        "generator": {"weight": output.clone(), "bias": bias},
        "vocab": vocabularies,
        "opt": Namespace(**opennmt_options(**changes)),
        "optim": {"training_step": 60},
    }


def write_opennmt(folder: Path, content: dict[str, Any]) -> Path:
    """Save a checkpoint of OpenNMT-py, with BPE codes next to it."""
    torch.save(content, folder / "model_step_60.pt")
    (folder / "bpe.codes").write_text(CODES)
    return folder / "model_step_60.pt"


def write_opennmt2(folder: Path, content: dict[str, Any], **attributes: Any) -> Path:
    """Save the checkpoint as OpenNMT-py 2: vocabularies in fields of torchtext, and the generator's older names.

    `attributes` replace those of the outer field.
    """
    packages = {module.rpartition(".")[0] for module in FIELDS} | {"onmt"}
    modules = {name: ModuleType(name) for name in (*packages, *FIELDS)}
    classes = [type(name, (), {"__module__": module}) for module, names in FIELDS.items() for name in names]
    for field_class in classes:
        setattr(modules[field_class.__module__], field_class.__name__, field_class)

    def in_fields(name: str, tokens: list[str]) -> Any:
        multi_field, function, field, vocab = (field_class() for field_class in classes)
        vocab.itos, vocab.unk_index = tokens, 0
        field.vocab, field.tokenize, field.pad_token = vocab, partial(type(function), layer=None), "<blank>"
        vars(multi_field).update({"fields": [(name, field)]} | attributes)
        return multi_field

    vocabularies = {name: in_fields(name, content["vocab"][name]) for name in ("src", "tgt")}
    generator = {f"0.{name}": weight for name, weight in content["generator"].items()}
    with patch.dict(sys.modules, modules):
        return write_opennmt(folder, {**content, "vocab": vocabularies, "generator": generator})

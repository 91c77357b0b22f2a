"""Marian's `.npz` files with random weights, folders like those of OPUS-MT, and Marian's forward pass.

The forward pass follows Marian's documentation (marian-nmt.github.io/docs/api, transformer.h, embedding.h, output.h,
node_initializers.h), without any code of this package.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn.functional import silu

from tests.helpers.marian import ENGLISH, PIECES, SPANISH, train_pieces, train_sentencepiece
from tests.helpers.references import FairseqReference

TOKENS = 23
OPTIONS = {
    "dec-cell": "gru",  # has no effect on a transformer
    "dec-depth": 1,
    "dim-emb": 16,
    "enc-depth": 2,
    "input-types": [],
    "right-left": False,
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-ffn": 24,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-heads": 2,
    "transformer-no-projection": False,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-preprocess": "",
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "type": "transformer",
    "ulr": False,
    "version": "v1.9.0 02f4af4",
}
PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
UNTIED = {"tied-embeddings-all": False}

Weights = dict[str, np.ndarray]


def options(tokens: tuple[int, int] = (TOKENS, TOKENS), **changes: Any) -> dict[str, Any]:
    """Options whose underscores stand for the hyphens of Marian's names."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return {**OPTIONS, "dim-vocabs": list(tokens), **named}


def random_weights(chosen: dict[str, Any], seed: int = 0, positions: int = 32) -> Weights:
    """Random weights for these options, by Marian's names."""
    generator = np.random.default_rng(seed)
    width, inner, (sources, targets) = chosen["dim-emb"], chosen["transformer-dim-ffn"], chosen["dim-vocabs"]
    arrays: Weights = {}

    def matrix(name: str, *shape: int, std: float = 0.3) -> None:
        arrays[name] = (generator.standard_normal(shape) * std).astype(np.float32)

    def linear(prefix: str, suffix: str, rows: int, columns: int, std: float = 0.3) -> None:
        matrix(f"{prefix}_W{suffix}", rows, columns, std=std)
        matrix(f"{prefix}_b{suffix}", 1, columns)

    def norm(prefix: str, suffix: str = "") -> None:
        matrix(f"{prefix}_ln_scale{suffix}", 1, width)
        arrays[f"{prefix}_ln_scale{suffix}"] += 1
        matrix(f"{prefix}_ln_bias{suffix}", 1, width)

    suffix = "_pre" if "n" in chosen["transformer-preprocess"] else ""
    for stack, layers, sublayers in (
        ("encoder", chosen["enc-depth"], ["self"]),
        ("decoder", chosen["dec-depth"], ["self", "context"]),
    ):
        for i in range(1, layers + 1):
            for sublayer in sublayers:
                for letter in "qkvo":  # large, so that outputs depend on the source
                    linear(f"{stack}_l{i}_{sublayer}", letter, width, width, std=0.8 if sublayer == "context" else 0.3)
                norm(f"{stack}_l{i}_{sublayer}_Wo", suffix)
            linear(f"{stack}_l{i}_ffn", "1", width, inner)
            linear(f"{stack}_l{i}_ffn", "2", inner, width)
            norm(f"{stack}_l{i}_ffn_ffn", suffix)
        if "n" in chosen.get("transformer-postprocess-top", ""):
            norm(f"{stack}_top")
    if chosen["tied-embeddings-all"] or chosen["tied-embeddings-src"]:
        matrix("Wemb", sources, width)
    else:
        matrix("encoder_Wemb", sources, width)
        matrix("decoder_Wemb", targets, width)
    if not (chosen["tied-embeddings-all"] or chosen["tied-embeddings"]):
        matrix("decoder_ff_logit_out_Wt", targets, width)
    if not chosen.get("output-omit-bias"):
        matrix("decoder_ff_logit_out_b", 1, targets)
    if chosen["transformer-train-position-embeddings"]:
        matrix("Wpos", positions, width)
    return arrays


def write_npz(path: Path, weights: Weights, chosen: dict[str, Any] | None) -> Path:
    """Write a file as Marian does: the options are a string of int8 that ends with a zero byte."""
    arrays = dict(weights)
    if chosen is not None:
        arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(chosen).encode() + b"\0", np.int8)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def save_npz(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a model with random weights."""
    chosen = options(**changes)
    return write_npz(path, random_weights(chosen, seed), chosen)


def opus_folder(folder: Path, separate_vocabs: bool = False, **changes: Any) -> tuple[Weights, dict[str, Any]]:
    """Write the files of an OPUS-MT archive, with one vocabulary or one for each language."""
    folder.mkdir()
    pieces = [train_pieces(folder / "source.spm", ENGLISH), train_pieces(folder / "target.spm", SPANISH)]
    name, vocabularies = "opus.spm32k-spm32k", ["vocab.yml"]
    tokens = [["</s>", "<unk>", *pieces[0], *pieces[1]]]
    if separate_vocabs:
        vocabularies, tokens = ["src.vocab.yml", "trg.vocab.yml"], [["</s>", "<unk>", *part] for part in pieces]
    sizes = []
    for vocabulary, listed in zip(vocabularies, tokens, strict=True):
        unique = list(dict.fromkeys(listed))
        sizes.append(len(unique))
        lines = [f"{yaml_key(token)}: {i}\n" for i, token in enumerate(unique)]
        (folder / f"{name}.{vocabulary}").write_text("".join(lines), encoding="utf-8")
    if separate_vocabs:
        changes = {**UNTIED, **changes}
    chosen = options((sizes[0], sizes[-1]), **changes)
    weights = random_weights(chosen)
    model = write_npz(folder / f"{name}.transformer-align.model1.npz.best-perplexity.npz", weights, chosen)
    decoder = {"models": [model.name], "vocabs": [f"{name}.{vocabularies[0]}", f"{name}.{vocabularies[-1]}"]}
    decoder |= {"beam-size": 3, "normalize": 0.6, "word-penalty": 0, "mini-batch": 1, "relative-paths": True}
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    for extra_file in ("README.md", "LICENSE", "preprocess.sh", "postprocess.sh"):
        (folder / extra_file).write_text("text\n")
    return weights, chosen


def yaml_key(token: str) -> str:
    """A token as yaml-cpp writes it: quoted if it has special characters."""
    return f'"{token}"' if set(token) & set("<>{}[]&*#?|-=!%@,'`:.") else token


def spm_folder(folder: Path, **changes: Any) -> tuple[Weights, dict[str, Any]]:
    """Write a model with a built-in SentencePiece vocabulary, as Marian trains it: `</s>` is 0 and `<unk>` is 1."""
    folder.mkdir()
    special = {"bos_id": -1, "eos_id": 0, "unk_id": 1}
    texts = [*ENGLISH, *SPANISH]
    tokens = len(train_sentencepiece(folder / "vocab.spm", texts, vocab_size=2 * PIECES, **special))
    chosen = options((tokens, tokens), **changes)
    weights = random_weights(chosen)
    write_npz(folder / "model.npz", weights, chosen)
    return weights, chosen


# Marian's sublayers and parameters, and fairseq's names of them.
SUBLAYERS = {"self": "self_attn", "context": "encoder_attn"}
PARTS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
TABLES = {
    "Wemb": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "encoder_Wemb": ("encoder.embed_tokens.weight",),
    "decoder_Wemb": ("decoder.embed_tokens.weight",),
    "decoder_ff_logit_out_Wt": ("decoder.output_projection.weight",),
    "decoder_ff_logit_out_b": ("decoder.output_projection.bias",),
    "Wpos": ("positions",),
}


def fairseq_names(name: str) -> tuple[str, ...]:
    """fairseq's names of a weight of Marian; the embedding of both languages has two."""
    if name in TABLES:
        return TABLES[name]
    stack, layer, rest = re.fullmatch(r"(encoder|decoder)_(?:l(\d+)|top)_(.+)", name).groups()  # type: ignore[union-attr]
    kind = "weight" if re.search("_W.$|scale", f"_{rest}") else "bias"
    if layer is None:
        return (f"{stack}.layer_norm.{kind}",)
    sublayer, _, parameter = rest.partition("_")
    if sublayer == "ffn":
        module = "final_layer_norm" if "ln" in parameter else f"fc{parameter[1]}"
    else:
        module = SUBLAYERS[sublayer] + ("_layer_norm" if "ln" in parameter else f".{PARTS[parameter[1]]}")
    return (f"{stack}.layers.{int(layer) - 1}.{module}.{kind}",)


class MarianReference(FairseqReference):
    """The forward pass of Marian's transformer, in float64: fairseq's layers with other embeddings and positions.

    Ids beyond the vocabulary stand for the zero vector, which Marian's decoder starts with.
    """

    epsilon = 1e-6
    activations = {"relu": torch.relu, "swish": silu}

    def __init__(self, weights: Weights, chosen: dict[str, Any]):
        named = {}
        for name, weight in weights.items():
            tensor = torch.tensor(weight, dtype=torch.float64)
            tensor = tensor.T if re.search("_W[qkvo12]$", name) else tensor.squeeze(0)
            named.update(dict.fromkeys(fairseq_names(name), tensor))
        learned = chosen["transformer-train-position-embeddings"]
        act = self.activations[chosen["transformer-ffn-activation"]]
        super().__init__(named, chosen["transformer-heads"], "n" in chosen["transformer-preprocess"], not learned, act)

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        table = self.weights[f"{stack}.embed_tokens.weight"]
        with_zero = torch.cat([table, table.new_zeros(1, self.width)])
        positions = self.weights.get("positions", self.sinusoids(ids.shape[1]))
        return with_zero[ids.clamp(max=len(table))] * self.scale + positions[: ids.shape[1]]

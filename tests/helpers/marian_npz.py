"""Marian's `.npz` files with random weights, folders like those of OPUS-MT, and Marian's forward pass in NumPy.

The forward pass follows Marian's documentation (marian-nmt.github.io/docs/api, transformer.h, embedding.h, output.h,
node_initializers.h), without any code of this package.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.helpers.marian import ENGLISH, PIECES, SPANISH, train_pieces

TOKENS = 23
OPTIONS = {
    "bert-train-type-embeddings": True,
    "dec-cell": "gru",
    "dec-depth": 1,
    "dim-emb": 16,
    "dim-rnn": 1024,
    "enc-depth": 2,
    "input-types": [],
    "layer-normalization": False,
    "right-left": False,
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-aan": 2048,
    "transformer-dim-ffn": 24,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-guided-alignment-layer": "last",
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
    found: Weights = {}

    def matrix(name: str, *shape: int, std: float = 0.3) -> None:
        found[name] = (generator.standard_normal(shape) * std).astype(np.float32)

    def linear(prefix: str, suffix: str, rows: int, columns: int, std: float = 0.3) -> None:
        matrix(f"{prefix}_W{suffix}", rows, columns, std=std)
        matrix(f"{prefix}_b{suffix}", 1, columns)

    def norm(prefix: str, suffix: str = "") -> None:
        matrix(f"{prefix}_ln_scale{suffix}", 1, width)
        found[f"{prefix}_ln_scale{suffix}"] += 1
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
    return found


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
    for other in ("README.md", "LICENSE", "preprocess.sh", "postprocess.sh"):
        (folder / other).write_text("text\n")
    return weights, chosen


def yaml_key(token: str) -> str:
    """A token as yaml-cpp writes it: quoted if it has special characters."""
    return f'"{token}"' if set(token) & set("<>{}[]&*#?|-=!%@,'`:.") else token


def spm_folder(folder: Path, **changes: Any) -> tuple[Weights, dict[str, Any]]:
    """Write a model with a built-in SentencePiece vocabulary, as Marian trains it: `</s>` is 0 and `<unk>` is 1."""
    import sentencepiece

    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*ENGLISH, *SPANISH] * 10),
        model_prefix=str(folder / "trained"),
        vocab_size=2 * PIECES,
        minloglevel=2,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        hard_vocab_limit=False,
    )
    shutil.move(folder / "trained.model", folder / "vocab.spm")
    (folder / "trained.vocab").unlink()
    tokens = len(sentencepiece.SentencePieceProcessor(model_file=str(folder / "vocab.spm")))
    chosen = options((tokens, tokens), **changes)
    weights = random_weights(chosen)
    write_npz(folder / "model.npz", weights, chosen)
    return weights, chosen


def marian_logits(
    weights: Weights, chosen: dict[str, Any], sources: np.ndarray, mask: np.ndarray, inputs: np.ndarray
) -> np.ndarray:
    """Marian's logits, `[batch, target_len, target_vocabulary]`, in float64.

    Args:
        weights: the parameters by their names.
        chosen: the options.
        sources: source ids, `[batch, source_len]`.
        mask: 1 at the tokens of the sources and 0 at padding, of the same shape.
        inputs: the decoder's inputs, `[batch, target_len]`; ids beyond the vocabulary stand for the zero vector, which
            Marian's decoder starts with.
    """
    marian = MarianForward(weights, chosen)
    visible = mask[:, None, :].astype(bool)
    memory = marian.encode(sources, visible)
    return marian.logits(marian.decode(inputs, memory, visible))


class MarianForward:
    """The forward pass of Marian's transformer, in float64."""

    def __init__(self, weights: Weights, chosen: dict[str, Any]):
        self.weights = {name: weight.astype(np.float64) for name, weight in weights.items()}
        self.chosen = chosen
        self.width = chosen["dim-emb"]
        self.top = chosen.get("transformer-postprocess-top", "")
        self.source_table = self.weights.get("Wemb", self.weights.get("encoder_Wemb"))
        self.target_table = self.weights.get("Wemb", self.weights.get("decoder_Wemb"))

    def encode(self, sources: np.ndarray, visible: np.ndarray) -> np.ndarray:
        x = self.embed(sources, self.source_table)
        for i in range(1, self.chosen["enc-depth"] + 1):
            x = self.self_attention(x, visible, f"encoder_l{i}")
            x = self.feed_forward(x, f"encoder_l{i}")
        return self.process(x, self.top, "encoder_top", "", x)

    def decode(self, inputs: np.ndarray, memory: np.ndarray, visible: np.ndarray) -> np.ndarray:
        causal = np.tri(inputs.shape[1], dtype=bool)
        x = self.embed(inputs, self.target_table)
        for i in range(1, self.chosen["dec-depth"] + 1):
            x = self.self_attention(x, causal, f"decoder_l{i}")
            x = self.cross_attention(x, memory, visible, f"decoder_l{i}")
            x = self.feed_forward(x, f"decoder_l{i}")
        return self.process(x, self.top, "decoder_top", "", x)

    def logits(self, states: np.ndarray) -> np.ndarray:
        output = self.weights.get("decoder_ff_logit_out_Wt")
        if output is None:
            legacy = self.weights.get("decoder_ff_logit_out_W")
            output = self.target_table if legacy is None else legacy.T
        return states @ output.T + self.weights.get("decoder_ff_logit_out_b", 0.0)

    def self_attention(self, x: np.ndarray, allowed: np.ndarray, layer: str) -> np.ndarray:
        return self.sublayer(x, f"{layer}_self_Wo", lambda y: self.attention(y, y, allowed, f"{layer}_self"))

    def cross_attention(self, x: np.ndarray, memory: np.ndarray, allowed: np.ndarray, layer: str) -> np.ndarray:
        return self.sublayer(x, f"{layer}_context_Wo", lambda y: self.attention(y, memory, allowed, f"{layer}_context"))

    def feed_forward(self, x: np.ndarray, layer: str) -> np.ndarray:
        prefix = f"{layer}_ffn"
        return self.sublayer(x, f"{prefix}_ffn", lambda y: self.two_layers(y, prefix))

    def layer_norm(self, x: np.ndarray, prefix: str, suffix: str = "") -> np.ndarray:
        deviation = x - x.mean(-1, keepdims=True)
        normalized = deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-6)
        return normalized * self.weights[f"{prefix}_ln_scale{suffix}"] + self.weights[f"{prefix}_ln_bias{suffix}"]

    def affine(self, x: np.ndarray, prefix: str, suffix: str) -> np.ndarray:
        return x @ self.weights[f"{prefix}_W{suffix}"] + self.weights[f"{prefix}_b{suffix}"]

    def process(self, x: np.ndarray, operations: str, prefix: str, suffix: str, previous: np.ndarray) -> np.ndarray:
        for operation in operations:
            if operation == "a":
                x = x + previous
            elif operation == "n":
                x = self.layer_norm(x, prefix, suffix)
        return x

    def sublayer(self, x: np.ndarray, prefix: str, function: Any) -> np.ndarray:
        y = self.process(x, self.chosen["transformer-preprocess"], prefix, "_pre", x)
        return self.process(function(y), self.chosen["transformer-postprocess"], prefix, "", x)

    def attention(self, queries: np.ndarray, keys: np.ndarray, allowed: np.ndarray, prefix: str) -> np.ndarray:
        q, k, v = self.affine(queries, prefix, "q"), self.affine(keys, prefix, "k"), self.affine(keys, prefix, "v")
        heads, depth = [], self.width // self.chosen["transformer-heads"]
        for head in range(self.chosen["transformer-heads"]):
            part = slice(head * depth, (head + 1) * depth)
            scores = q[..., part] @ k[..., part].swapaxes(-1, -2) / np.sqrt(depth)
            scores = np.where(allowed, scores, -1e9)
            exponents = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(exponents / exponents.sum(-1, keepdims=True) @ v[..., part])
        return self.affine(np.concatenate(heads, -1), prefix, "o")

    def activation(self, x: np.ndarray) -> np.ndarray:
        name = self.chosen["transformer-ffn-activation"]
        if name == "relu":
            return np.maximum(x, 0)
        return x / (1 + np.exp(-x * {"swish": 1, "gelu": 1.702}[name]))  # gelu up to version 1.12.0

    def two_layers(self, x: np.ndarray, prefix: str) -> np.ndarray:
        return self.affine(self.activation(self.affine(x, prefix, "1")), prefix, "2")

    def embed(self, ids: np.ndarray, table: np.ndarray) -> np.ndarray:
        with_zero = np.concatenate([table, np.zeros((1, self.width))])
        vectors = with_zero[np.minimum(ids, len(table))]
        if self.chosen["transformer-train-position-embeddings"]:
            return vectors + self.weights["Wpos"][: ids.shape[1]]
        timescales = self.width / 2
        angles = np.arange(ids.shape[1])[:, None] * np.exp(-np.arange(timescales) * np.log(10000) / (timescales - 1))
        return vectors * np.sqrt(self.width) + np.concatenate([np.sin(angles), np.cos(angles)], -1)

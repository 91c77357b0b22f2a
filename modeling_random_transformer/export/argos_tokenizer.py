"""Converts a tokenizer to a SentencePiece model, for an engine that joins the tokens of a target without a decoder."""

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPACE = "▁"  # U+2581, which stands for a space in pieces
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # types of pieces in sentencepiece_model.proto
UNIGRAM, BPE = 1, 2  # types of models
UNKNOWN_PIECE = "<unk>"
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
PART_OF_CHARACTER = re.compile(r"(<0x[0-9A-F]{2}>)+")  # the name of such a token


def sentencepiece_model(tokenizer: PreTrainedTokenizerBase) -> tuple[bytes, dict[int, str]]:
    """A SentencePiece model that splits texts as a tokenizer does, and the name of each token id in it.

    SentencePiece splits a character that is not a token into single bytes, named `<0xE2>`. Byte-level BPE may merge
    some of them, or one with a letter before it. Words that contain such tokens, named `<0xE2><0x80>`, or that are
    merged through them, are split differently.

    Raises:
        ValueError: the tokenizer is of another kind, or normalizes texts.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    if files := getattr(tokenizer, "spm_files", None):  # Marian
        return Path(files[0]).read_bytes(), tokens
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["content"] for token in data["added_tokens"]}
    kind, names = data["model"]["type"], tokens
    if kind == "BPE" and (data["decoder"] or {}).get("type") == "ByteLevel":
        if data["normalizer"] is not None:
            raise ValueError(f"normalization must be None for argos, got {data['normalizer']['type']}.")
        names = byte_level_names(tokens, special)
    elif kind not in ("BPE", "Unigram") or not any(token.startswith(SPACE) for token in tokens.values()):
        raise ValueError(f"tokenizer must be byte-level BPE or of SentencePiece for argos, got {kind}.")
    model = ModelProto()
    model.trainer_spec.model_type = UNIGRAM if kind == "Unigram" else BPE
    model.trainer_spec.byte_fallback = names is not tokens or data["model"]["byte_fallback"]
    set_normalizer(model.normalizer_spec, data)
    ranks = scores(data["model"])
    add_pieces(model, {names[i]: ranks.get(token, 0.0) for i, token in tokens.items()}, special)
    return model.SerializeToString(), names


def byte_level_names(tokens: dict[int, str], special: set[str]) -> dict[int, str]:
    """The texts of byte-level tokens, with `SPACE` for spaces. Parts of characters have the names of their bytes."""
    names: dict[int, str] = {}
    taken = {*special, UNKNOWN_PIECE}
    for index, token in sorted(tokens.items()):
        names[index] = token
        if token not in special:
            data = bytes(BYTES[character] for character in token)
            text = data.decode(errors="replace").replace(" ", SPACE)
            is_part = "\ufffd" in text or "\0" in text or text in taken
            names[index] = "".join(f"<0x{byte:02X}>" for byte in data) if is_part else text
            taken.add(text)
    return names


def scores(model: dict[str, Any]) -> dict[str, float]:
    """The score of each token: its log-probability in a unigram model, or the order of the merges."""
    if model["type"] == "Unigram":
        return dict(model["vocab"])
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return {"".join(merge): -float(rank) for rank, merge in reversed([*enumerate(merges, start=1)])}


def set_normalizer(spec: Any, data: dict[str, Any]) -> None:
    """Set what the tokenizer, if it was imported from SentencePiece, does with the characters of a text."""
    steps = (data["normalizer"] or {}).get("normalizers", [])
    for step in steps:
        if step["type"] == "Precompiled":
            spec.precompiled_charsmap = b64decode(step["precompiled_charsmap"])
    spec.name = "nmt_nfkc" if spec.precompiled_charsmap else "identity"
    prefix_space = (data["pre_tokenizer"] or {}).get("add_prefix_space", False)
    spec.add_dummy_prefix = prefix_space or any(step["type"] == "Prepend" for step in steps)
    spec.remove_extra_whitespaces = any(step.get("pattern") == {"Regex": " +"} for step in steps)


def add_pieces(model: Any, pieces: dict[str, float], special: set[str]) -> None:
    """Add the tokens with their scores, and what SentencePiece requires: an unknown piece, and all bytes."""
    types = {UNKNOWN_PIECE: UNKNOWN} | dict.fromkeys(special - {UNKNOWN_PIECE}, CONTROL)
    if model.trainer_spec.byte_fallback:
        types |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    names = [*types, *(name for name in pieces if name not in types and not PART_OF_CHARACTER.fullmatch(name))]
    for name in names:
        model.pieces.add(piece=name, score=pieces.get(name, 0.0), type=types.get(name, NORMAL))

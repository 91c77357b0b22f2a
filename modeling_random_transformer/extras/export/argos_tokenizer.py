"""Converts a tokenizer to a SentencePiece model, since Argos Translate joins target tokens without a decoder."""

import json
import re
import sys
import unicodedata
from base64 import b64decode
from functools import cache
from io import BytesIO
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ...base.digests import tokenizer_definition
from ...tokenization_random_transformer import (
    CONTEXTUAL,
    HYPHENS_AND_LIGATURES,
    REPLACEMENTS,
    normalize,
    text_normalizer,
)
from ..sentencepiece.conversion import BPE, BYTE, CONTROL, NORMAL, SPACE_SYMBOL, UNIGRAM, UNKNOWN, USER_DEFINED

UNKNOWN_PIECE = "<unk>"
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
PART_OF_CHARACTER = re.compile(r"(<0x[0-9A-F]{2}>)+")  # the name of such a token
EUROPEAN = 0x590  # the first code point after those of European scripts
JOINERS_AND_SELECTORS = "\u200c\u200d\ufe0e\ufe0f"


def sentencepiece_model(tokenizer: PreTrainedTokenizerBase) -> tuple[bytes, dict[int, str]]:
    """A SentencePiece model that splits texts as a tokenizer does, and the name of each token id in it.

    SentencePiece splits a character that is not a token into single bytes, named `<0xE2>`. Byte-level BPE may merge
    some of them, or one with a letter before it. Words that contain such tokens, named `<0xE2><0x80>`, or that are
    merged through them, are split differently.

    Raises:
        ValueError: the tokenizer is of another kind, or normalizes texts in another way.
    """
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    files = getattr(tokenizer, "spm_files", None)
    if files:  # Marian
        return Path(files[0]).read_bytes(), tokens
    data = tokenizer_definition(tokenizer)
    special = {token["content"] for token in data["added_tokens"]}
    kind = data["model"]["type"]
    names = tokens
    decoder = data["decoder"] or {}
    is_byte_level = kind == "BPE" and decoder.get("type") == "ByteLevel"
    model = ModelProto()
    model.trainer_spec.model_type = UNIGRAM if kind == "Unigram" else BPE
    if is_byte_level:
        names = byte_level_names(tokens, special)
        model.trainer_spec.byte_fallback = True
    else:
        is_sentencepiece = any(token.startswith(SPACE_SYMBOL) for token in tokens.values())
        if kind not in ("BPE", "Unigram") or not is_sentencepiece:
            raise ValueError(f"tokenizer must be byte-level BPE or of SentencePiece for argos, got {kind}.")
        model.trainer_spec.byte_fallback = data["model"]["byte_fallback"]
    set_normalizer(model.normalizer_spec, data)
    if is_byte_level and data["normalizer"] is not None:
        set_default_normalizer(model.normalizer_spec, data["normalizer"])
    ranks = scores(data["model"])
    pieces = {names[i]: ranks.get(token, 0.0) for i, token in tokens.items()}
    symbols = []
    if not is_byte_level and data["model"].get("ignore_merges"):  # has user-defined symbols of SentencePiece
        symbols = [token for token in pieces if len(token) > 1 and token not in ranks]
    add_pieces(model, pieces, special, symbols)
    return model.SerializeToString(), names


def byte_level_names(tokens: dict[int, str], special: set[str]) -> dict[int, str]:
    """The texts of byte-level tokens, with `SPACE` for spaces. Parts of characters have the names of their bytes."""
    names: dict[int, str] = {}
    taken = {*special, UNKNOWN_PIECE}
    for i, token in sorted(tokens.items()):
        if token in special:
            names[i] = token
            continue
        data = bytes(BYTES[character] for character in token)
        text = data.decode(errors="replace").replace(" ", SPACE_SYMBOL)
        is_part = "\ufffd" in text or "\0" in text or text in taken
        names[i] = "".join(BYTE_PIECES[byte] for byte in data) if is_part else text
        taken.add(text)
    return names


def scores(model: dict[str, Any]) -> dict[str, float]:
    """The score of each token: its log-probability in a unigram model, or the order of the merges."""
    if model["type"] == "Unigram":
        return dict(model["vocab"])
    ranks: dict[str, float] = {}
    for rank, merge in enumerate(model["merges"], start=1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault("".join(parts), -float(rank))
    return ranks


def set_normalizer(spec: Any, data: dict[str, Any]) -> None:
    """Set what the tokenizer, if it was imported from SentencePiece, does with the characters of a text."""
    steps = (data["normalizer"] or {}).get("normalizers", [])
    pre_tokenizer = data["pre_tokenizer"] or {}
    spec.name = "identity"
    spec.add_dummy_prefix = pre_tokenizer.get("add_prefix_space", False)
    spec.remove_extra_whitespaces = False
    for step in steps:
        if step["type"] == "Precompiled":
            spec.name = "nmt_nfkc"
            spec.precompiled_charsmap = b64decode(step["precompiled_charsmap"])
        if step["type"] == "Prepend":
            spec.add_dummy_prefix = True
        if step.get("pattern") == {"Regex": " +"}:
            spec.remove_extra_whitespaces = True


def set_default_normalizer(spec: Any, normalizer: dict[str, Any]) -> None:
    """Set the default normalization.

    Raises:
        ValueError: the normalizer of the tokenizer is neither the default nor that of an earlier version.
    """
    # The front ends of this package normalize the sources of earlier tokenizers in the same way.
    earlier_kinds = [kind for kind in REPLACEMENTS if kind != HYPHENS_AND_LIGATURES]
    defaults = [text_normalizer(), text_normalizer(kinds=earlier_kinds)]
    if normalizer not in [json.loads(default.__getstate__()) for default in defaults]:
        raise ValueError(f"normalization must be 'NFC' or None for argos, got {json.dumps(normalizer)}.")
    spec.name = "user_defined"
    spec.precompiled_charsmap = rules_of_normalization()


@cache
def rules_of_normalization() -> bytes:
    """The normalization of new tokenizers as rules of SentencePiece, which replace the longest sequence in their list.

    Characters that are content beside some others, such as joiners, are removed after letters of European scripts only.
    Marks are composed with their letter, but not sorted.
    """
    texts = set()
    for character in map(chr, range(1, sys.maxunicode + 1)):
        if unicodedata.category(character) in ("Cn", "Co", "Cs") or CONTEXTUAL.fullmatch(character):
            continue
        texts.add(character)
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed != character:
            for marks in permutations(decomposed[1:]):
                texts.add(decomposed[0] + "".join(marks))
            composed = unicodedata.normalize("NFC", decomposed[:-1])
            texts.add(composed + decomposed[-1])
    for code in range(0x20, EUROPEAN):
        texts |= {chr(code) + joiner for joiner in JOINERS_AND_SELECTORS}
    lines = []
    for text in sorted(texts):
        normalized = normalize(text)
        if text != normalized:
            lines.append(f"{code_points(text)}\t{code_points(normalized)}\n")
    with TemporaryDirectory() as folder, BytesIO() as file:
        table = Path(folder, "rules.tsv")
        table.write_text("".join(lines))
        SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=file,
            vocab_size=5,
            model_type="char",
            normalization_rule_tsv=str(table),
            minloglevel=2,
        )
        model = ModelProto.FromString(file.getvalue())
    return model.normalizer_spec.precompiled_charsmap


def code_points(text: str) -> str:
    """The characters of a text, as SentencePiece writes them in a list of rules."""
    return " ".join(f"{ord(character):X}" for character in text)


def add_pieces(model: Any, pieces: dict[str, float], special: set[str], symbols: list[str]) -> None:
    """Add the tokens with their scores, and what SentencePiece requires: an unknown piece, and all bytes."""
    types = dict.fromkeys(symbols, USER_DEFINED)
    types[UNKNOWN_PIECE] = UNKNOWN
    for name in special - {UNKNOWN_PIECE}:
        types[name] = CONTROL
    if model.trainer_spec.byte_fallback:
        types |= dict.fromkeys(BYTE_PIECES, BYTE)
    for name in types:
        model.pieces.add(piece=name, score=pieces.get(name, 0.0), type=types[name])
    for name, score in pieces.items():
        if name not in types and not PART_OF_CHARACTER.fullmatch(name):
            model.pieces.add(piece=name, score=score, type=NORMAL)

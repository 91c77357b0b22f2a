"""Exports a model to a package of Argos Translate and LibreTranslate, which contains a CTranslate2 model.

Argos Translate splits texts into sentences, and sentences into tokens by a SentencePiece model. Its search has 4 beams,
a length penalty of 0.2, and no options of the model.
"""

import json
import re
import shutil
import sys
import unicodedata
import zipfile
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from itertools import permutations
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ...base import read_json, write_json
from ...base.languages import language_name
from ...data.sentencepiece import BPE, BYTE, CONTROL, NORMAL, SPACE, UNIGRAM, UNKNOWN
from ...inference.engine import LENGTH_PENALTY
from ...inputs_random_transformer import tokenizer_languages
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...tokenization_random_transformer import CONTEXTUAL, LANGUAGE_CODE, normalize, text_normalizer
from .ctranslate2 import PENALTY, PREFIX, SEARCH, ParallelTranslator, build_spec, check_scores, write
from .engines import Translate
from .search import read_search

SUFFIX = ".argosmodel"
# The name of the tag of the target language: a space between the sentences of a paragraph, which Argos Translate
# removes before the first one.
TAG = " "
UNKNOWN_PIECE = "<unk>"
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
EUROPEAN = 0x590  # the first code point after those of European scripts
# The README.md of a package, which Argos Translate shows.
WITH_SPLITTER = "This package translates offline: it contains a model of MiniSBD that splits texts into sentences.\n"
WITHOUT_SPLITTER = """This package has no model that splits texts into sentences. Argos Translate 1.11 downloads one at
the first translation, which fails without access to the network. To translate offline, export the package again with
`--sentence_splitter {0}.onnx`, a model of MiniSBD (https://github.com/LibreTranslate/MiniSBD/releases).
"""
PART_OF_CHARACTER = re.compile(r"(<0x[0-9A-F]{2}>)+")  # the name of such a token


def save(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    dtype: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
    sentence_splitter: str | PathLike | None = None,
) -> None:
    """Save a package such as `translate-en_de-1_0.argosmodel` in a folder.

    Targets have no special tokens and no parts of characters, which Argos Translate would show by their names.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer: byte-level BPE with the default normalization or none, or imported from SentencePiece,
            or of Marian.
        folder: an empty folder.
        dtype: dtype of the weights, `"float32"`, `"bfloat16"` or `"int8"`.
        source_lang: code of the source language; `None` for that of the tokenizer.
        target_lang: code of the target language; the same.
        sentence_splitter: `LANGUAGE.onnx` of MiniSBD, which becomes a part of the package.

    Raises:
        ValueError: CTranslate2 or Argos Translate does not support an option of the model or the tokenizer, or the
            tokenizer has no languages.
    """
    source = source_lang or getattr(tokenizer, "src_lang", None) or getattr(tokenizer, "source_lang", None)
    target = target_lang or getattr(tokenizer, "tgt_lang", None) or getattr(tokenizer, "target_lang", None)
    # The codes are parts of the names of files.
    if not (source and target and LANGUAGE_CODE.fullmatch(source) and LANGUAGE_CODE.fullmatch(target)):
        raise ValueError(f"source_lang and target_lang must be codes such as 'en', got {source!r} and {target!r}.")
    check_scores(model, tokenizer)
    name = f"translate-{source}_{target}-1_0"
    with TemporaryDirectory() as scratch:
        package = Path(scratch, name)
        (package / "model").mkdir(parents=True)
        content, names = sentencepiece_model(tokenizer)
        (package / "sentencepiece.model").write_bytes(content)
        write(specification(model, tokenizer, names), package / "model", dtype)
        metadata = {"package_version": "1.0", "argos_version": "1.9", "from_code": source, "to_code": target}
        metadata |= {"from_name": language_name(source), "to_name": language_name(target)}
        metadata |= {"target_prefix": TAG} if tokenizer_languages(tokenizer) else {}
        write_json(package / "metadata.json", metadata)
        if sentence_splitter is not None:
            (package / "minisbd").mkdir()
            shutil.copyfile(sentence_splitter, package / "minisbd" / Path(sentence_splitter).name)
        readme = WITHOUT_SPLITTER if sentence_splitter is None else WITH_SPLITTER
        (package / "README.md").write_text(readme.format(source), encoding="utf-8")
        shutil.make_archive(str(folder / name), "zip", scratch)
    (folder / f"{name}.zip").rename(folder / f"{name}{SUFFIX}")


def specification(model: Any, tokenizer: Any, names: dict[int, str]) -> Any:
    """CTranslate2's specification with these names of the tokens."""
    source = [names.get(i, f"<no token {i}>") for i in range(model.config.vocab_size)]
    target = list(source)
    search = read_search(model, tokenizer, "Argos Translate")
    first = search.first_token
    if first is not None:
        target[first] = TAG
    shown = {first, *search.end_tokens}
    hidden = [i for i, name in names.items() if PART_OF_CHARACTER.fullmatch(name) or i in tokenizer.all_special_ids]
    spec = build_spec(model, tokenizer, (source, target), [i for i in hidden if i not in shown])
    for option, value in {**getattr(spec.config, SEARCH), PREFIX: getattr(spec.config, PREFIX)}.items():
        if value and option != "target_prefix":
            raise ValueError(f"{option} must not be set for Argos Translate, got {value}.")
    spec.config.add_source_eos = True
    if tokenizer_languages(tokenizer):
        spec.config.add_source_bos, spec.config.bos_token = True, tokenizer.get_lang_token(tokenizer.src_lang)
    return spec


def load(folder: str | PathLike) -> Translate:
    """Load the package of a folder as a function that translates sentences as Argos Translate does.

    Numbers of beams and tokens are arguments, and the length penalty is that of the model.

    Raises:
        ValueError: the folder does not contain one package.
    """
    packages = [*Path(folder).glob(f"*{SUFFIX}")]
    if len(packages) != 1:
        raise ValueError(f"folder must contain one *{SUFFIX}, got {len(packages)} in {str(folder)!r}.")
    scratch = TemporaryDirectory()  # deleted with the function that is returned
    with zipfile.ZipFile(packages[0]) as archive:
        archive.extractall(scratch.name)
    package = Path(scratch.name, packages[0].stem)
    prefix = read_json(package / "metadata.json").get("target_prefix", "")
    tokenizer = SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    penalty = read_json(package / "model" / "config.json").get(PENALTY, LENGTH_PENALTY)
    engine = ParallelTranslator(package / "model")  # loads the model when it is needed

    def translate(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        options = {"beam_size": num_beams, "length_penalty": penalty, "max_decoding_length": max_new_tokens}
        sources = tokenizer.encode(list(texts), out_type=str)
        results = engine(sources, [[prefix] if prefix else []] * len(texts), **options)
        joined = ["".join(result.hypotheses[0]).replace(SPACE, " ") for result in results]
        return [text.removeprefix(prefix).removeprefix(" ") for text in joined]

    translate.files = scratch  # type: ignore[attr-defined]
    return translate


# The tokenizer as a SentencePiece model, since Argos Translate joins the tokens of a target without a decoder


def sentencepiece_model(tokenizer: PreTrainedTokenizerBase) -> tuple[bytes, dict[int, str]]:
    """A SentencePiece model that splits texts as a tokenizer does, and the name of each token id in it.

    SentencePiece splits a character that is not a token into single bytes, named `<0xE2>`. Byte-level BPE may merge
    some of them, or one with a letter before it. Words that contain such tokens, named `<0xE2><0x80>`, or that are
    merged through them, are split differently.

    Raises:
        ValueError: the tokenizer is of another kind, or normalizes texts in another way.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    if files := getattr(tokenizer, "spm_files", None):  # Marian
        return Path(files[0]).read_bytes(), tokens
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["content"] for token in data["added_tokens"]}
    kind, names = data["model"]["type"], tokens
    if kind == "BPE" and (data["decoder"] or {}).get("type") == "ByteLevel":
        normalization = data["normalizer"]
        if normalization not in (None, json.loads(text_normalizer().__getstate__())):
            raise ValueError(f"normalization must be 'NFC' or None for argos, got {json.dumps(normalization)}.")
        names = byte_level_names(tokens, special)
    elif kind not in ("BPE", "Unigram") or not any(token.startswith(SPACE) for token in tokens.values()):
        raise ValueError(f"tokenizer must be byte-level BPE or of SentencePiece for argos, got {kind}.")
    model = ModelProto()
    model.trainer_spec.model_type = UNIGRAM if kind == "Unigram" else BPE
    model.trainer_spec.byte_fallback = names is not tokens or data["model"]["byte_fallback"]
    set_normalizer(model.normalizer_spec, data)
    if names is not tokens and data["normalizer"] is not None:
        model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = (
            "user_defined",
            rules_of_normalization(),
        )
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


@cache
def rules_of_normalization() -> bytes:
    """The normalization of new tokenizers as rules of SentencePiece, which replace the longest sequence in their list.

    Characters that are content beside some others, such as joiners, are removed after letters of European scripts only.
    Marks are composed with their letter, but not sorted.
    """
    singles = (chr(code) for code in range(1, sys.maxunicode + 1))
    singles = (single for single in singles if unicodedata.category(single) not in ("Cn", "Co", "Cs"))
    texts = {single for single in singles if not CONTEXTUAL.fullmatch(single)}
    for single in list(texts):
        decomposed = unicodedata.normalize("NFD", single)
        if decomposed != single:
            texts |= {decomposed[0] + "".join(marks) for marks in permutations(decomposed[1:])}
            texts |= {unicodedata.normalize("NFC", decomposed[:-1]) + decomposed[-1]}
    texts |= {chr(code) + mark for code in range(0x20, EUROPEAN) for mark in "\u200c\u200d\ufe0e\ufe0f"}
    rules = {text: normalize(text) for text in texts}
    with TemporaryDirectory() as folder, BytesIO() as file:
        table = Path(folder, "rules.tsv")
        lines = (f"{code_points(text)}\t{code_points(form)}\n" for text, form in sorted(rules.items()) if text != form)
        table.write_text("".join(lines))
        options: dict[str, Any] = {"model_type": "char", "normalization_rule_tsv": str(table), "minloglevel": 2}
        SentencePieceTrainer.train(sentence_iterator=iter(["a"]), model_writer=file, vocab_size=5, **options)
        return ModelProto.FromString(file.getvalue()).normalizer_spec.precompiled_charsmap


def code_points(text: str) -> str:
    """The characters of a text, as SentencePiece writes them in a list of rules."""
    return " ".join(f"{ord(character):X}" for character in text)


def add_pieces(model: Any, pieces: dict[str, float], special: set[str]) -> None:
    """Add the tokens with their scores, and what SentencePiece requires: an unknown piece, and all bytes."""
    types = {UNKNOWN_PIECE: UNKNOWN} | dict.fromkeys(special - {UNKNOWN_PIECE}, CONTROL)
    if model.trainer_spec.byte_fallback:
        types |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    names = [*types, *(name for name in pieces if name not in types and not PART_OF_CHARACTER.fullmatch(name))]
    for name in names:
        model.pieces.add(piece=name, score=pieces.get(name, 0.0), type=types.get(name, NORMAL))

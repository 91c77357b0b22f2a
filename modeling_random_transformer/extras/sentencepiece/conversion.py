"""Imports SentencePiece models (unigram and BPE) as tokenizers of this package.

The tokenizer runs in the `tokenizers` library, without sentencepiece. Its token ids correspond one to one to those of
sentencepiece: only the special tokens have other ids.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import generate_merges

from ...base.errors import reraise_as_value_error
from ...tokenization_random_transformer import SPECIAL_TOKENS, RandomTransformerTokenizer

SPACE_SYMBOL = "▁"  # U+2581, which stands for a space in pieces
NORMALIZATION_RULES = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
ALL_SPACES = 2**31 - 1  # number of spaces
TEMPORARY_MARK = "\ufdd0"  # a noncharacter, reserved by Unicode for internal use

# Types of pieces and models in sentencepiece_model.proto.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM = 1
BPE = 2


def from_sentencepiece(
    path: str | Path, *, control_symbols: Iterable[str] = (), **options: Any
) -> RandomTransformerTokenizer:
    """Import a SentencePiece model as a tokenizer.

    The special tokens `<pad>`, `<s>`, `</s>` and `<unk>` have the ids 0 to 3. All other pieces follow in the order of
    the model. Other control symbols become special tokens; user-defined symbols stay normal tokens. Unlike
    sentencepiece, the tokenizer recognizes special tokens in texts, except with `split_special_tokens=True`; its
    `encode_texts` recognizes the other control symbols only.

    Tokens equal those of sentencepiece. The exceptions are rare: combining marks that are not in canonical order or
    follow a compatibility character such as a ligature, if the model normalizes to NFKC, or H, J, T, W or Y, if it also
    folds cases; the name of a special token in a text; and two segmentations of equal score by a unigram model, such as
    "l ll" and "ll l".

    Args:
        path: the file, `.model` or `.spm`, of a unigram or BPE model.
        control_symbols: additional control symbols, unless they are pieces of the model.
        **options: arguments of the tokenizer itself, such as `model_max_length`.

    Raises:
        ValueError: the package sentencepiece or protobuf is not installed, or the file is not a SentencePiece model
            or has an option that is not supported; the message names it.
    """
    model = read_model(Path(path))
    pieces = {piece.piece for piece in model.pieces}
    for symbol in control_symbols:
        if symbol not in pieces:
            model.pieces.add(piece=symbol, type=CONTROL)
    with reraise_as_value_error(f"{path} must be a SentencePiece model, got an error"):
        backend = backend_of(model)
    for name, supported, stored in unsupported(model, backend):
        raise ValueError(f"{name} of {path} must be {supported}, got {stored}.")
    return RandomTransformerTokenizer._from_backend(backend, **{**SPECIAL_TOKENS, **options})


def backend_of(model: Any) -> Tokenizer:
    """The model as a tokenizer, with the special tokens of this package instead of its own."""
    trainer = model.trainer_spec
    special = {trainer.bos_piece, trainer.eos_piece, trainer.pad_piece, *SPECIAL_TOKENS.values()}
    pieces = [piece for piece in model.pieces if piece.type != UNKNOWN and piece.piece not in special]
    make_model = unigram if trainer.model_type == UNIGRAM else bpe
    backend = Tokenizer(make_model(pieces, trainer.byte_fallback))
    backend.normalizer = normalizer_of(model.normalizer_spec)
    backend.pre_tokenizer = pre_tokenizer_of(pieces, isinstance(backend.model, models.BPE))
    backend.decoder = decoder_of(model.normalizer_spec)
    backend.add_special_tokens(texts_of_types(pieces, CONTROL))
    return backend


def read_model(path: Path) -> Any:
    """The `ModelProto` of a file.

    Raises:
        ValueError: the package sentencepiece or protobuf is not installed, or this is not a SentencePiece model.
    """
    install = "pip install 'random-transformer[sentencepiece]'"
    with reraise_as_value_error(f"{path} requires sentencepiece and protobuf: {install}"):
        from sentencepiece import sentencepiece_model_pb2
    content = path.read_bytes()
    with reraise_as_value_error(f"{path} must be a SentencePiece model, got an error"):
        model: Any = sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]
    if not model.pieces:
        raise ValueError(f"{path} must be a SentencePiece model, got a file without pieces.")
    return model


def unsupported(model: Any, backend: Tokenizer) -> Iterator[tuple[str, str, Any]]:
    """The options that are not supported: the name, the allowed values and the stored one."""
    trainer = model.trainer_spec
    normalizer = model.normalizer_spec
    if trainer.model_type not in (UNIGRAM, BPE):
        yield "model_type", "unigram or bpe", trainer.ModelType.Name(trainer.model_type).lower()
    if normalizer.precompiled_charsmap and normalizer.name not in NORMALIZATION_RULES:
        yield "normalization_rule_name", f"one of {', '.join(NORMALIZATION_RULES)}", normalizer.name
    if model.denormalizer_spec.precompiled_charsmap:
        yield "denormalizer_spec", "empty", "rules"
    if not normalizer.escape_whitespaces:
        yield "escape_whitespaces", "True", False
    if trainer.treat_whitespace_as_suffix:
        yield "treat_whitespace_as_suffix", "False", True
    for text in texts_of_types(model.pieces, UNUSED):
        yield "unused pieces", "none", text
    for text in texts_of_types(model.pieces, USER_DEFINED):
        if backend.normalizer.normalize_str(text).lstrip(SPACE_SYMBOL) != text:
            yield "user_defined_symbols", "unchanged by the normalization", text


def texts_of_types(pieces: Iterable[Any], *types: int) -> list[str]:
    """The texts of the pieces of these types, in their order."""
    return [piece.piece for piece in pieces if piece.type in types]


def unigram(pieces: list[Any], byte_fallback: bool) -> models.Unigram:
    """The unigram model. Control symbols are kept out of segmentations by `pre_tokenizer_of`."""
    normal = [piece.score for piece in pieces if piece.type == NORMAL]
    lowest = min(normal)
    highest = max(normal)
    scores = dict.fromkeys(SPECIAL_TOKENS.values(), lowest)
    unk_id = [*scores].index(SPECIAL_TOKENS["unk_token"])
    for piece in pieces:
        scores[piece.piece] = piece.score if piece.type == NORMAL else lowest
        if piece.type == USER_DEFINED:
            # Bonus in sentencepiece's Viterbi search.
            scores[piece.piece] = len(piece.piece) * highest - 0.1
    return models.Unigram([*scores.items()], unk_id=unk_id, byte_fallback=byte_fallback)


def bpe(pieces: list[Any], byte_fallback: bool) -> models.BPE:
    """The BPE model. A merge has the score of the piece that it forms."""
    normal = {piece.piece: piece.score for piece in pieces if piece.type == NORMAL}
    tokens = [*SPECIAL_TOKENS.values(), *(piece.piece for piece in pieces)]
    return models.BPE(
        {token: i for i, token in enumerate(tokens)},
        generate_merges({token: i for i, token in enumerate(normal)}, [*normal.items()]),
        unk_token=SPECIAL_TOKENS["unk_token"],
        fuse_unk=True,
        byte_fallback=byte_fallback,
        # User-defined symbols, which the pre-tokenizer isolates, have no merges.
        ignore_merges=bool(texts_of_types(pieces, USER_DEFINED)),
    )


def normalizer_of(spec: Any) -> normalizers.Normalizer:
    """The normalizer that sentencepiece applies to the characters of a text."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        # `Precompiled` maps characters; composed ones first. Within a grapheme cluster it drops what follows a mapped
        # prefix, such as the mark of an M or the line feed after a carriage return, so that characters are separated.
        steps += [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"(?!\A)(?=[^\x00-\x09\x0b-\x7f])"), TEMPORARY_MARK),
            normalizers.Precompiled(spec.precompiled_charsmap),
            normalizers.Replace(TEMPORARY_MARK, ""),
            normalizers.NFC(),  # half-width letters and their marks, which the separator has kept apart
        ]
    if spec.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(" +"), " "),
            normalizers.Replace(Regex(rf"\A |[ {SPACE_SYMBOL}]+\z"), ""),
        ]
    steps.append(normalizers.Replace(" ", SPACE_SYMBOL))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE_SYMBOL))
    return normalizers.Sequence(steps)


def pre_tokenizer_of(pieces: list[Any], is_bpe: bool) -> pre_tokenizers.PreTokenizer | None:
    """Splits that no segmentation crosses."""
    steps: list[pre_tokenizers.PreTokenizer] = []
    symbols = sorted(texts_of_types(pieces, USER_DEFINED), key=len, reverse=True)
    if symbols and is_bpe:
        any_symbol = "|".join(map(re.escape, symbols))
        steps.append(pre_tokenizers.Split(Regex(any_symbol), "isolated"))
    if symbols or not is_bpe:
        # The names of control symbols and bytes are in the vocabulary, but must not be found in texts.
        names = [*SPECIAL_TOKENS.values(), *texts_of_types(pieces, CONTROL, BYTE)]
        first = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
        steps.append(pre_tokenizers.Split(Regex(first), "isolated"))
    texts = texts_of_types(pieces, NORMAL, USER_DEFINED)
    if SPACE_SYMBOL in texts and not any(SPACE_SYMBOL in text[1:] for text in texts):
        steps.append(pre_tokenizers.Split(SPACE_SYMBOL, "merged_with_next"))
    return pre_tokenizers.Sequence(steps) if steps else None


def decoder_of(spec: Any) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE_SYMBOL, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    removed_spaces = ALL_SPACES if spec.remove_extra_whitespaces else int(spec.add_dummy_prefix)
    if removed_spaces:
        steps.append(decoders.Strip(" ", removed_spaces, 0))
    return decoders.Sequence(steps)

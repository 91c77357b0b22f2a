"""Vocabularies of Marian: `.yml` files of tokens and ids, and SentencePiece models. Written for `MarianTokenizer`."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..utils.errors import first_line, format_names, format_value
from ..utils.text import read_lines
from ..utils.vocabulary import fits_embedding
from .marian_folder import write_json
from .marian_npz_files import NpzFiles, Pair
from .report import ConversionReport

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
ENTRY = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|[^"\'].*?): *(\d+) *')
LONG_KEY, LONG_VALUE = "? ", ": "  # a key longer than 1024 characters, or of several lines, and its value


@dataclass(frozen=True)
class Vocabularies:
    """The ids of the source's and of the target's tokens, and the SentencePiece models that split texts into tokens."""

    source: dict[str, int]
    target: dict[str, int]
    spm: Pair | None

    @property
    def eos_token_id(self) -> int:
        return self.target[EOS]

    @property
    def unk_token_id(self) -> int:
        return self.target[UNK]


def read_vocabularies(files: NpzFiles) -> Vocabularies | None:
    """Read the vocabularies; `None` if there are none.

    Raises:
        ValueError: a file is damaged or lacks a special token, or the package sentencepiece is not installed.
    """
    if files.vocabs is None:
        return None
    for path in files.spm or ():
        load_sentencepiece(path)
    first, second = files.vocabs
    source = read_vocabulary(first)
    return Vocabularies(source, source if second == first else read_vocabulary(second), files.spm)


def read_vocabulary(path: Path) -> dict[str, int]:
    """The ids of a vocabulary's tokens.

    Raises:
        ValueError: the file is damaged, an id or a token is repeated, or `</s>` or `<unk>` is missing.
    """
    entries = list(read_pieces(path) if path.suffix == ".spm" else read_entries(path))
    ids = dict(entries)
    if len(ids) < len(entries) or len(set(ids.values())) < len(ids):
        raise ValueError(f"{path} must have each token and each id once, but one is repeated.")
    missing = [token for token in (EOS, UNK) if token not in ids]
    if missing:
        raise ValueError(f"{path} must contain the tokens {EOS} and {UNK}, but lacks {format_names(missing)}.")
    return ids


def read_entries(path: Path) -> Iterator[tuple[str, int]]:
    """The tokens and ids in a `.yml` file, one per line.

    The lines are not parsed as YAML, which takes seconds for a real vocabulary, treats U+0085 and U+2028 in a token as
    line breaks, and reads the tokens `no` and `1` as a boolean and a number.

    Raises:
        ValueError: a line has another format.
    """
    key = None
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file, str(path)), start=1):
            if key is None and line.startswith(LONG_KEY):
                key = line.removeprefix(LONG_KEY)
                continue
            if key is not None:
                line, key = f"{key}{LONG_VALUE}{line.removeprefix(LONG_VALUE)}", None
            if not line.strip() or line in ("---", "...") or line.startswith("#"):
                continue
            match = ENTRY.fullmatch(line)
            if match is None:
                raise ValueError(
                    f"{path} must have a token and its id on each line, got {format_value(line)} on line {number}."
                )
            yield unquote(match[1], path, number), int(match[2])


def unquote(token: str, path: Path, number: int) -> str:
    """The value of a YAML scalar: plain, or in single or double quotes."""
    if token[0] == "'":
        return token[1:-1].replace("''", "'")
    if token[0] != '"':
        return token
    if "\\" not in token:
        return token[1:-1]
    try:
        return str(yaml.safe_load(token))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(
            f"{path} must have a token and its id on each line, got {format_value(token)} on line {number}."
        ) from error


def read_pieces(path: Path) -> Iterator[tuple[str, int]]:
    """The pieces and ids of a SentencePiece model, with Marian's names of the special tokens.

    Raises:
        ValueError: this is not a SentencePiece model, or it has no end of sequence.
    """
    model = load_sentencepiece(path)
    names = {model.unk_id(): UNK, model.eos_id(): EOS}
    for i in range(len(model)):
        yield names.get(i) or model.id_to_piece(i), i


def load_sentencepiece(path: Path) -> Any:
    """The `SentencePieceProcessor` of a file.

    Raises:
        ValueError: the package sentencepiece is not installed, or this is not a SentencePiece model.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ValueError(f"{path} requires sentencepiece: pip install 'random-transformer[marian]'.") from error
    content = path.read_bytes()
    try:
        if not content:  # which SentencePieceProcessor accepts
            raise RuntimeError("the file is empty")
        return SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError(f"{path} must be a SentencePiece model, got an error: {first_line(error)}.") from error


def check_vocabulary(ids: dict[str, int], rows: int, path: Path) -> None:
    """Raise a `ValueError` unless a vocabulary has a token for each row of an embedding."""
    if not fits_embedding(len(ids), rows):
        raise ValueError(f"{path} must have a token for each of {rows} rows of the embedding, got {len(ids)}.")
    if max(ids.values()) >= rows:
        raise ValueError(f"{path} must have ids from 0 to {rows - 1}, got {max(ids.values())}.")


def save_tokenizer(vocabularies: Vocabularies | None, folder: Path, config: Any, report: ConversionReport) -> None:
    """Write the files of a `MarianTokenizer`, with `<pad>` as the last token."""
    if vocabularies is None or vocabularies.spm is None:
        missing = "vocabulary" if vocabularies is None else "SentencePiece models, such as source.spm and target.spm"
        report.notes.append(f"The folder has no tokenizer, as there is no {missing} next to the model.")
        return
    for name, path in zip(("source.spm", "target.spm"), vocabularies.spm, strict=True):
        shutil.copyfile(path, folder / name)
    separate = vocabularies.source != vocabularies.target
    write_json(folder / "vocab.json", {**vocabularies.source, PAD: config.pad_token_id})
    if separate:
        write_json(folder / "target_vocab.json", {**vocabularies.target, PAD: config.pad_token_id})
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    length = {"model_max_length": config.max_position_embeddings}
    write_json(folder / "tokenizer_config.json", {**settings, **length})
    report.notes.append("The tokenizer is a MarianTokenizer, which requires sentencepiece.")

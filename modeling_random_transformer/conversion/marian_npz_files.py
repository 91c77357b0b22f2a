"""Files next to a model of Marian: vocabularies, SentencePiece models and the options of the search.

Vocabularies are `.yml` files of tokens and ids, or SentencePiece models. They are written for `MarianTokenizer`.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from ..tokenization_random_transformer import lines_of_files
from ..utils import write_json
from ..utils.errors import format_names, format_value
from .sentencepiece import UNKNOWN, read_model
from .untrusted import is_hidden, read_yaml
from .weights import Converted

VOCABULARY_SUFFIXES = (".yml", ".yaml", ".spm")
FILES = re.compile(r".*\.(yml|yaml|spm)")  # all that `convert_marian_npz` reads besides the model
OPTIMIZER = ".optimizer.npz"  # the end of the name of Marian's training state
NOT_PACKED = " (.bin files, which are packed or have integers, are not supported)"
IS_VOCABULARY = re.compile(r"vocab", re.IGNORECASE)
# As in `opus.src.vocab.yml`, `vocab.trg.spm` and `srcvocab.ende.spm`.
SIDES = (re.compile(r"(?<![a-z])(src|source)", re.I), re.compile(r"(?<![a-z])(trg|tgt|target)", re.I))

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
ENTRY = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|[^"\'].*?): *(\d+) *')

Pair = tuple[Path, Path]  # of the source and of the target, which may be equal


@dataclass(frozen=True)
class NpzFiles:
    """The files next to a model.

    Attributes:
        vocabs: the vocabularies.
        spm: the SentencePiece models that split texts.
        decoder: the options of the search, by their names in Marian.
    """

    vocabs: Pair | None = None
    spm: Pair | None = None
    decoder: dict[str, Any] = field(default_factory=dict)


def find_model(path: Path) -> Path:
    """The model file at a path, or in a folder.

    Raises:
        ValueError: the folder does not contain exactly one model, or the file is of another format.
    """
    if not path.is_dir():
        if path.suffix != ".npz" or not path.is_file():
            raise ValueError(f"the model must be an existing .npz file of Marian{NOT_PACKED}, got {path.name!r}.")
        return path
    models = [file for file in sorted(path.glob("*.npz")) if not (file.name.endswith(OPTIMIZER) or is_hidden(file))]
    if len(models) != 1:
        found = format_names(file.name for file in models) or "none"
        raise ValueError(f"{path} must contain one .npz file of Marian{NOT_PACKED}, got {found}.")
    return models[0]


def find_files(model: Path, vocabs: Sequence[Path] = (), spm: Sequence[Path] = ()) -> NpzFiles:
    """Find the files next to a model that are not given as `vocabs` and `spm`.

    Raises:
        ValueError: a given file does not exist or has another format, or it is ambiguous which files to use.
    """
    # Marian writes the options of the search into the first file, OPUS-MT into the second one.
    beside = (Path(f"{model}.decoder.yml"), model.parent / "decoder.yml")
    decoder = next((read_yaml(path) for path in beside if path.is_file()), {})
    chosen = as_pair("vocabs", vocabs) or find_vocabularies(model.parent, decoder)
    if chosen is None:
        return NpzFiles(decoder=decoder)
    if not all(path.suffix in VOCABULARY_SUFFIXES for path in chosen) or len({p.suffix == ".spm" for p in chosen}) > 1:
        raise ValueError(f"vocabs must be .yml files or .spm files, got {chosen[0].name} and {chosen[1].name}.")
    if chosen[0].suffix == ".spm":
        if spm:
            raise ValueError(f"spm must not be given with vocabs in .spm files, got {spm[0]} and {chosen[0].name}.")
        return NpzFiles(chosen, chosen, decoder)
    found = (model.parent / "source.spm", model.parent / "target.spm")
    return NpzFiles(chosen, as_pair("spm", spm) or (found if all(path.is_file() for path in found) else None), decoder)


def as_pair(name: str, paths: Sequence[Path]) -> Pair | None:
    """One path for both languages, or two.

    Raises:
        ValueError: a file does not exist, or there are more than two.
    """
    if not paths:
        return None
    if len(paths) > 2:
        raise ValueError(f"{name} must be one file, or one for each language, got {len(paths)} files.")
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{name} must be existing files, got {str(path)!r}.")
    return paths[0], paths[-1]


def find_vocabularies(folder: Path, decoder: dict[str, Any]) -> Pair | None:
    """The vocabularies that the options name, if they exist in the folder; otherwise the files with such names.

    Raises:
        ValueError: there are several, and the names do not say which is the source's.
    """
    named = decoder.get("vocabs")
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        # Only the last part of a path, which is often that of the machine that trained the model.
        paths = [folder / PureWindowsPath(name).name for name in named]
        if all(path.is_file() for path in paths):
            return as_pair("vocabs", paths)
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not is_hidden(path)]
    found = [path for path in files if path.suffix in VOCABULARY_SUFFIXES and IS_VOCABULARY.search(path.name)]
    if len(found) == 1:
        return found[0], found[0]
    if not found:
        return None
    source, target = ([path for path in found if side.search(path.name)] for side in SIDES)
    if len(found) == 2 and len(source) == len(target) == 1 and source != target:
        return source[0], target[0]
    names = format_names(path.name for path in found)
    hint = "To convert an archive, extract it and run `random-transformer convert marian-npz --vocabs`."
    raise ValueError(f"vocabs must be given if a folder contains several vocabularies, got {names}. {hint}")


def read_vocabularies(files: NpzFiles) -> tuple[dict[str, int], dict[str, int]] | None:
    """The ids of the source's and of the target's tokens; `None` if there are no vocabularies.

    Raises:
        ValueError: a file is damaged or lacks a special token, or the package sentencepiece or protobuf is not
            installed.
    """
    if files.vocabs is None:
        return None
    for path in files.spm or ():
        read_model(path)
    first, second = files.vocabs
    source = read_vocabulary(first)
    return source, source if second == first else read_vocabulary(second)


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
    for number, line in enumerate(lines_of_files([path]), start=1):
        if not line.strip() or line in ("---", "...") or line.startswith("#"):
            continue
        match = ENTRY.fullmatch(line)
        token = unquote(match[1]) if match else None
        if match is None or token is None:
            raise ValueError(f"line {number} of {path} must be a token and its id, got {format_value(line)}.")
        yield token, int(match[2])


def unquote(token: str) -> str | None:
    """The value of a YAML scalar: plain, or in single or double quotes. `None` if it is invalid."""
    if token[0] == "'":
        return token[1:-1].replace("''", "'")
    if token[0] != '"':
        return token
    if "\\" not in token:
        return token[1:-1]
    try:
        return str(yaml.safe_load(token))
    except (yaml.YAMLError, ValueError):
        return None


def read_pieces(path: Path) -> Iterator[tuple[str, int]]:
    """The pieces and ids of a SentencePiece model, with Marian's names of the special tokens.

    Raises:
        ValueError: this is not a SentencePiece model.
    """
    model = read_model(path)
    for i, piece in enumerate(model.pieces):
        name = EOS if piece.piece == model.trainer_spec.eos_piece else piece.piece
        yield UNK if piece.type == UNKNOWN else name, i


def save_tokenizer(
    vocabularies: tuple[dict[str, int], dict[str, int]] | None, spm: Pair | None, folder: Path, converted: Converted
) -> None:
    """Write the files of a `MarianTokenizer`, with `<pad>` as the last token."""
    config, report = converted[0].config, converted[1]
    if vocabularies is None or spm is None:
        missing = "vocabulary" if vocabularies is None else "SentencePiece models, such as source.spm and target.spm"
        report.notes.append(f"The folder has no tokenizer, as there is no {missing} next to the model.")
        return
    for name, path in zip(("source.spm", "target.spm"), spm, strict=True):
        shutil.copyfile(path, folder / name)
    separate = vocabularies[0] != vocabularies[1]
    for name, ids in zip(("vocab.json", *(["target_vocab.json"] if separate else [])), vocabularies, strict=False):
        write_json(folder / name, {**ids, PAD: config.pad_token_id})
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    write_json(folder / "tokenizer_config.json", {**settings, "model_max_length": config.max_position_embeddings})
    report.notes.append("The tokenizer is a MarianTokenizer, which requires sentencepiece.")

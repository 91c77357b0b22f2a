"""Files next to a model of Marian: vocabularies, SentencePiece models and the options of the search.

Vocabularies are `.yml` or `.json` files of tokens and ids, text files of one token per line, or SentencePiece models.
They are written for `MarianTokenizer`.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import yaml

from ...base.errors import format_names, format_value, reraise_as_value_error
from ...base.files import write_json
from ...configuration_random_transformer import RandomTransformerConfig, is_int
from ...tokenization_random_transformer import lines_of_files
from ..sentencepiece.conversion import UNKNOWN, read_model
from .files import PathPair, Vocabulary, choose_pair, list_files
from .options import Options
from .untrusted import read_yaml

MARIAN_MODEL = re.compile(r".*(?<!\.optimizer)\.npz")  # excludes Marian's training state
# A file of another name that contains "vocab" may be a list of SentencePiece, with scores.
NAMED = re.compile(r".*(?i:vocab).*\.(yml|yaml|spm)")
# All that `convert_marian_npz` reads besides the model, in an archive.
MARIAN_FILES = re.compile(r".*\.(yml|yaml|json|spm|vocab)|.*vocab.*\.txt", re.IGNORECASE)
NOT_PACKED = " (.bin files, which are packed or have integers, are not supported)"
# Names of one side's files, such as `opus.src.vocab.yml`, `vocab.trg.spm` and `srcvocab.ende.spm`.
IS_SOURCE = re.compile(r"(?<![a-z])(src|source)", re.IGNORECASE)
IS_TARGET = re.compile(r"(?<![a-z])(trg|tgt|target)", re.IGNORECASE)

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\''
VOCABULARY_ENTRY = re.compile(rf"({QUOTED}|[^\"'].*?): *(\d+) *")
# PyYAML writes a key that is empty, has a line break or at least 128 characters over two or more lines.
LONG_ENTRY = re.compile(rf"\? *({QUOTED}|(?:[^\"'\n][^\n]*?)?)\n: *(\d+) *", re.DOTALL)
SCORED = re.compile(r".*\t-?\d+(\.\d+)?(e-?\d+)?")  # a line of the `.vocab` file that SentencePiece writes

Entries = Iterable[tuple[str, int]]  # the tokens and ids in a file
Vocabularies = tuple[Vocabulary, Vocabulary]  # the ids of the source's and of the target's tokens


class NpzFiles(NamedTuple):
    """The files next to a model.

    Attributes:
        vocabs: the vocabularies.
        spm: the SentencePiece models that split texts.
        decoder: the options of the search, by their names in Marian.
    """

    vocabs: PathPair | None
    spm: PathPair | None
    decoder: Options


def find_model(path: Path) -> Path:
    """The model file at a path, or in a folder.

    Raises:
        ValueError: the folder does not contain exactly one model, or the file is of another format.
    """
    files = list_files(path, MARIAN_MODEL) if path.is_dir() else [path]
    models = [file for file in files if MARIAN_MODEL.fullmatch(file.name) and file.is_file()]
    if len(models) != 1:
        raise ValueError(
            f"{path} must be or contain one .npz file of Marian{NOT_PACKED}, "
            f"got {format_names(file.name for file in models) or 'none'}."
        )
    return models[0]


def find_files(model: Path, vocabs: Sequence[Path] = (), spm: Sequence[Path] = ()) -> NpzFiles:
    """Find the files next to a model that are not given as `vocabs` and `spm`.

    Raises:
        ValueError: a given file does not exist or has another format, or it is ambiguous which files to use.
    """
    decoder: Options = {}
    # Marian writes the options of the search into the first file, OPUS-MT into the second one.
    for path in (Path(f"{model}.decoder.yml"), model.parent / "decoder.yml"):
        if path.is_file():
            decoder = read_yaml(path)
            break
    vocabularies = as_pair("vocabs", vocabs) or find_vocabularies(model.parent, decoder)
    if vocabularies is None:
        return NpzFiles(None, None, decoder)
    suffixes = {path.suffix for path in vocabularies}
    if not suffixes <= READERS.keys() or (".spm" in suffixes and len(suffixes) > 1):
        raise ValueError(
            f"vocabs must be files of one kind, {', '.join(READERS)}, and not one .spm file, "
            f"got {vocabularies[0].name} and {vocabularies[1].name}."
        )
    models = as_pair("spm", spm)
    if ".spm" in suffixes:
        if models:
            raise ValueError(f"spm must not be given with vocabs in .spm files, got {models[0]}.")
        models = vocabularies
    beside = (model.parent / "source.spm", model.parent / "target.spm")
    if models is None and all(path.is_file() for path in beside):
        models = beside
    return NpzFiles(vocabularies, models, decoder)


def as_pair(name: str, paths: Sequence[Path]) -> PathPair | None:
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


def find_vocabularies(folder: Path, decoder: Options) -> PathPair | None:
    """The vocabularies that the options name, if they exist in the folder; otherwise the files with such names.

    Raises:
        ValueError: there are several, and the names do not say which is the source's.
    """
    named = decoder.get("vocabs")
    if isinstance(named, list) and all(isinstance(name, str) for name in named):
        # Only the file name counts: the folder is often one of the machine that trained the model.
        paths = [folder / PureWindowsPath(name).name for name in named]
        if paths and all(path.is_file() for path in paths):
            return as_pair("vocabs", paths)
    paths = list_files(folder, NAMED)
    pair = choose_pair(paths, IS_SOURCE, IS_TARGET)
    if paths and pair is None:
        raise ValueError(
            "vocabs must be given if a folder contains several vocabularies, "
            f"got {format_names(path.name for path in paths)}. "
            "To convert an archive, extract it and run `random-transformer convert marian-npz --vocabs`."
        )
    return pair


def read_vocabularies(files: NpzFiles) -> Vocabularies | None:
    """The ids of the source's and of the target's tokens; `None` if there are no vocabularies.

    Raises:
        ValueError: a file is damaged or lacks a special token, or the package sentencepiece or protobuf is not
            installed.
    """
    if files.vocabs is None:
        return None
    for path in files.spm or ():
        read_model(path)
    source, target = files.vocabs
    ids = read_vocabulary(source)
    return ids, ids if target == source else read_vocabulary(target)


def read_vocabulary(path: Path) -> Vocabulary:
    """The ids of a vocabulary's tokens. As in Marian, the suffix of the file's name is that of its format.

    Raises:
        ValueError: the file is damaged, an id or a token is repeated, or `</s>` or `<unk>` is missing.
    """
    read = READERS[path.suffix]
    entries = list(read(path))
    ids = dict(entries)
    distinct = set(ids.values())
    if not len(entries) == len(ids) == len(distinct):
        raise ValueError(f"{path} must have each token and each id once, but one is repeated.")
    missing = {EOS, UNK} - ids.keys()
    if missing:
        raise ValueError(f"{path} must contain the tokens {EOS} and {UNK}, but lacks {format_names(sorted(missing))}.")
    return ids


def read_entries(path: Path) -> Entries:
    """The tokens and ids in a `.yml` file, one per line, or a token after "? " and its id on another line.

    The lines are not parsed as YAML, which takes seconds for a real vocabulary, treats U+0085 and U+2028 in a token as
    line breaks, and reads the tokens `no` and `1` as a boolean and a number.

    Raises:
        ValueError: a line has another format.
    """
    lines = enumerate(lines_of_files([path]), start=1)
    for number, line in lines:
        if not line.strip() or line in ("---", "...") or line.startswith("#"):
            continue
        is_long = line.startswith("? ")
        if is_long:
            for _, continuation in lines:
                line += f"\n{continuation}"
                if continuation.startswith(":"):
                    break
        match = (LONG_ENTRY if is_long else VOCABULARY_ENTRY).fullmatch(line)
        token = unquote(match[1], is_long) if match else None
        if match is None or token is None:
            raise ValueError(f"line {number} of {path} must be a token and its id, got {format_value(line)}.")
        yield token, int(match[2])


def unquote(token: str, folded: bool) -> str | None:
    """The value of a YAML scalar: plain, or in single or double quotes. `None` if it is invalid.

    Args:
        token: the scalar.
        folded: whether a quoted scalar may have several lines, between which there are spaces that do not count.
    """
    if token[:1] not in ("'", '"'):
        return token
    if not folded and token[0] == "'":
        return token[1:-1].replace("''", "'")
    if not folded and "\\" not in token:
        return token[1:-1]
    try:
        return str(yaml.safe_load(token))
    except (yaml.YAMLError, ValueError):
        return None


def read_json_entries(path: Path) -> Entries:
    """The tokens and ids in a `.json` file.

    Raises:
        ValueError: the content is not an object of tokens and integers.
    """
    with reraise_as_value_error(f"{path} must be an object of tokens and ids in JSON, got an error"):
        entries = json.loads(path.read_bytes(), object_pairs_hook=list)
        for entry in entries:
            if not isinstance(entry, tuple) or not is_int(entry[1]):
                raise ValueError(format_value(entry))
    return entries


def read_tokens(path: Path) -> Entries:
    """The tokens in a text file, one per line; the first has the id 0.

    Raises:
        ValueError: a line is empty, or has a token and a score.
    """
    for i, token in enumerate(lines_of_files([path])):
        if not token or SCORED.fullmatch(token):
            raise ValueError(f"line {i + 1} of {path} must be a token without a score, got {format_value(token)}.")
        yield token, i


def read_pieces(path: Path) -> Entries:
    """The pieces and ids of a SentencePiece model, with Marian's names of the special tokens.

    Raises:
        ValueError: the file is not a SentencePiece model.
    """
    model = read_model(path)
    for i, piece in enumerate(model.pieces):
        name = EOS if piece.piece == model.trainer_spec.eos_piece else piece.piece
        yield UNK if piece.type == UNKNOWN else name, i


# Suffix of a vocabulary's file → function that reads it.
READERS: dict[str, Callable[[Path], Entries]] = {
    ".yml": read_entries,
    ".yaml": read_entries,
    ".spm": read_pieces,
    ".json": read_json_entries,
    ".vocab": read_tokens,
    ".txt": read_tokens,
}


def save_marian_tokenizer(
    vocabularies: Vocabularies | None, spm: PathPair | None, folder: Path, config: RandomTransformerConfig
) -> list[str]:
    """Write the files of a `MarianTokenizer`, with `<pad>` as the last token; returns notes for the report.

    Raises:
        ValueError: the vocabularies have different ids of `</s>` or `<unk>`.
    """
    if vocabularies is None or spm is None:
        missing = "vocabulary" if vocabularies is None else "SentencePiece models, such as source.spm and target.spm"
        return [f"The folder has no tokenizer, as there is no {missing} next to the model."]
    source, target = vocabularies
    source_ids, target_ids = ([ids[token] for token in (EOS, UNK)] for ids in vocabularies)
    if source_ids != target_ids:
        raise ValueError(
            f"vocabs must have the same ids of {EOS} and {UNK}, as a MarianTokenizer uses those of the source for both "
            f"languages, got {source_ids} and {target_ids}."
        )
    shutil.copyfile(spm[0], folder / "source.spm")
    shutil.copyfile(spm[1], folder / "target.spm")
    write_json(folder / "vocab.json", {**source, PAD: config.pad_token_id})
    if target != source:
        write_json(folder / "target_vocab.json", {**target, PAD: config.pad_token_id})
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": target != source,
        "model_max_length": config.max_position_embeddings,
    }
    write_json(folder / "tokenizer_config.json", settings)
    return ["The tokenizer is a MarianTokenizer, which requires sentencepiece."]

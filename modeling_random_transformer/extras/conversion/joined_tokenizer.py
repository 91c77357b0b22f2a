"""One tokenizer for two vocabularies: those of fairseq, JoeyNMT and eole, with BPE codes or a SentencePiece model."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ...base.errors import format_names, format_value
from ...tokenization_random_transformer import SPECIAL_TOKENS, RandomTransformerTokenizer, lines_of_files
from .options import show
from .sentencepiece import from_sentencepiece
from .weights import Converted

UNK = SPECIAL_TOKENS["unk_token"]
CONTINUED = "@@"  # suffix of a piece that does not end its word
END = "</w>"  # suffix of the last piece of a word, in the codes
NOT_A_PREFIX = "\0"

Merges = list[tuple[str, str]]
Vocabulary = Mapping[str, int]  # ids by tokens; special tokens have the names in `SPECIAL_TOKENS`


@dataclass(frozen=True)
class JoinedTokenizer:
    """One vocabulary for both languages, and its relation to the original's two vocabularies.

    A token that is missing from a vocabulary of the original is `<unk>` there.

    Attributes:
        tokenizer: encodes sources and, with `text_target=`, targets, also if they have separate codes.
        source_ids: for each id of the tokenizer, the original's id in the source vocabulary.
        target_ids: for each id of the tokenizer, the original's id in the target vocabulary.
        segments: whether the tokenizer segments words; otherwise texts must already be segmented.
    """

    tokenizer: RandomTransformerTokenizer
    source_ids: list[int]
    target_ids: list[int]
    segments: bool

    def save(self, folder: Path, converted: Converted) -> None:
        """Save the tokenizer in a folder, and add notes about it to the report of a conversion."""
        _, report = converted
        self.tokenizer.save_pretrained(folder)
        if "target_merges" in self.tokenizer.init_kwargs:
            report.notes.append("The tokenizer splits sources and targets (`text_target=`) by their own codes.")
        unknown = self.tokenizer.unk_token_id
        source, target = (ids.count(ids[unknown]) - 1 for ids in (self.source_ids, self.target_ids))
        report.notes.append(
            f"The vocabulary of {len(self.source_ids)} ids joins source and target tokens and intermediate pieces. "
            f"{source} are missing from the source's vocabulary and {target} from the target's: they have the "
            "embedding of <unk> there, and a lower logit than <unk>."
        )
        if not self.segments:
            report.notes.append("The tokenizer splits at spaces only, so texts must already be segmented (hel@@ lo).")
        report.notes.append("Prepare texts as the training data, such as by Moses tokenization.")


def join_bpe(source: Vocabulary, target: Vocabulary, merges: Sequence[Merges], **options: Any) -> JoinedTokenizer:
    """A tokenizer that splits words by BPE.

    The ids are those of the source vocabulary, followed by additional tokens of the target vocabulary and intermediate
    pieces of merges.

    Args:
        source: the source vocabulary of pieces (see `piece_of`), with ids from 0.
        target: the target vocabulary.
        merges: those of source and target, or one for both; without them, texts must already be segmented.
        **options: arguments of the tokenizer itself, such as `model_max_length`.
    """
    pieces = (piece for pairs in merges for left, right in pairs for piece in (left, right, left + right))
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(chain(source, target, pieces)))}
    backend = bpe_tokenizer(vocabulary, merges[0]) if merges else whitespace_tokenizer(vocabulary)
    if merges[:1] != merges[-1:]:  # targets have merges of their own
        options["target_merges"] = [" ".join(pair) for pair in merges[-1]]
    tokenizer = RandomTransformerTokenizer._from_backend(backend, **{**SPECIAL_TOKENS, **options})
    return join(tokenizer, source, target, bool(merges))


def join_sentencepiece(path: Path, source: Vocabulary, target: Vocabulary, **options: Any) -> JoinedTokenizer:
    """A tokenizer of a SentencePiece model. Tokens of the vocabularies that are not its pieces are control symbols.

    Raises:
        ValueError: see `from_sentencepiece`; or most tokens are not pieces of the model.
    """
    tokens = list(dict.fromkeys(chain(source, target)))
    tokenizer = from_sentencepiece(path, control_symbols=tokens, **options)
    control = {token.content for token in tokenizer.added_tokens_decoder.values()} - {*SPECIAL_TOKENS.values()}
    lacking = [token for token in tokens if token in control]
    if 2 * len(lacking) > len(tokens):
        raise ValueError(f"{path} must be the model of the vocabularies, but has no pieces {format_names(lacking)}.")
    return join(tokenizer, source, target, segments=True)


def join_files(
    is_sentencepiece: bool, files: Iterable[Path], source: Vocabulary, target: Vocabulary, **options: Any
) -> JoinedTokenizer:
    """A tokenizer of the SentencePiece models or the BPE codes of both languages, which may be one file.

    Raises:
        ValueError: a file is damaged, or there are two SentencePiece models.
    """
    distinct = list(dict.fromkeys(files))
    if not is_sentencepiece:
        return join_bpe(source, target, [read_codes(file) for file in distinct], **options)
    if len(distinct) > 1:
        raise ValueError(f"both languages must have one SentencePiece model, got {format_names(map(str, distinct))}.")
    return join_sentencepiece(distinct[0], source, target, **options)


def join(
    tokenizer: RandomTransformerTokenizer, source: Vocabulary, target: Vocabulary, segments: bool
) -> JoinedTokenizer:
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    source_ids, target_ids = ([side.get(token, side[UNK]) for token in tokens] for side in (source, target))
    return JoinedTokenizer(tokenizer, source_ids, target_ids, segments)


def find_file(folder: Path, stored: Any) -> Path:
    """The file in a folder that has the last name of a stored path, which may be that of any file.

    Raises:
        ValueError: there is no such file.
    """
    path = folder / PureWindowsPath(str(stored)).name
    if not os.path.isfile(path):  # unlike `Path.is_file`, also for a name that is too long
        raise ValueError(f"{folder} must contain the file of {format_value(stored)}, which is missing.")
    return path


def read_tokens(path: Path, special_tokens: Mapping[str, str], as_pieces: bool) -> dict[str, int]:
    """Read a vocabulary of one token per line, whose number is the id. Arguments and errors are those of `name_tokens`.

    Raises:
        ValueError: the file is not UTF-8.
    """
    return name_tokens(str(path), list(lines_of_files([path])), special_tokens, as_pieces)


def name_tokens(name: str, tokens: Sequence[Any], special_tokens: Mapping[str, str], as_pieces: bool) -> dict[str, int]:
    """The ids of tokens. Special tokens get the names in `SPECIAL_TOKENS`.

    Args:
        name: the origin of the tokens, for errors.
        tokens: the tokens, in the order of their ids.
        special_tokens: the original's special tokens by their kinds, such as `{"pad_token": "<blank>"}`.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a token is not a string, is repeated, or is missing.
    """
    names = {token: SPECIAL_TOKENS[kind] for kind, token in special_tokens.items()}
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not isinstance(token, str) or token.encode(errors="replace").decode() != token:  # surrogates
            raise ValueError(f"{name} must contain strings, got {show(token)}.")
        known = names.get(token) or (piece_of(token) if as_pieces else token)
        if known in ids:
            raise ValueError(f"{name} must have each token once, got {format_value(token)} again as token {i}.")
        ids[known] = i
    missing = names.keys() - set(tokens)
    if missing:
        raise ValueError(f"{name} must contain the special tokens, but lacks {format_names(missing)}.")
    return ids


def read_codes(path: Path) -> Merges:
    """Read the pairs to merge, the most frequent first.

    Raises:
        ValueError: a line has a wrong format, or the file is from subword-nmt 0.1.
    """
    merges: dict[tuple[str, str], None] = {}
    for number, line in numbered_lines(path):
        if number == 1 and line.startswith("#version:"):
            continue
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise ValueError(f"line {number} of {path} must be two symbols (and a count), got {format_value(line)}.")
        if END in parts[:2]:
            raise ValueError(f"{path} must be from subword-nmt version 0.2 or fastBPE, got {END} as a symbol.")
        merges.setdefault((parts[0], parts[1]))
    if not merges:
        raise ValueError(f"{path} must have at least one pair to merge, got none.")
    return list(merges)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, and their numbers from 1.

    Raises:
        ValueError: the file is not UTF-8.
    """
    return ((i, line) for i, line in enumerate(lines_of_files([path]), start=1) if line.strip(" "))


def piece_of(token: str) -> str:
    """Convert a dictionary's token to a BPE piece: `hel@@` -> `hel`, `lo` -> `lo</w>`."""
    if token in SPECIAL_TOKENS.values():
        return token
    return token.removesuffix(CONTINUED) if token.endswith(CONTINUED) and token != CONTINUED else token + END


def bpe_tokenizer(ids: dict[str, int], merges: Merges) -> Tokenizer:
    """A tokenizer that splits texts at spaces and words by BPE."""
    backend = Tokenizer(models.BPE(ids, merges, unk_token=UNK, end_of_word_suffix=END))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=END)
    return backend


def whitespace_tokenizer(ids: dict[str, int]) -> Tokenizer:
    """A tokenizer that splits texts at spaces only."""
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # WordPiece's decoder puts spaces between tokens; the next steps remove those after @@.
    spaced = decoders.WordPiece(prefix=NOT_A_PREFIX, cleanup=False)
    joined = decoders.Replace(Regex(f"{CONTINUED}( |$)"), "")
    backend.decoder = decoders.Sequence([spaced, decoders.Fuse(), joined])
    return backend

"""Builds tokenizers of this package from fairseq's dictionaries and BPE codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ..tokenization_random_transformer import RandomTransformerTokenizer
from ..utils.errors import format_value
from ..utils.text import read_lines

UNK = 3
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3
CONTINUED = "@@"  # suffix of a piece that does not end its word
END = "</w>"  # suffix of the last piece of a word, in the codes
NOT_A_PREFIX = "\0"

Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class FairseqTokenizer:
    """One vocabulary for both languages, and its relation to fairseq's two dictionaries.

    The vocabulary contains the source dictionary (with the same ids), additional tokens of the target dictionary, and
    intermediate pieces of BPE merges. A token that is missing from a dictionary is `<unk>` there.

    Attributes:
        tokenizer: encodes sources and, with `text_target=`, targets, also if they have separate codes.
        source_ids: for each id of the vocabulary, the id in the source dictionary.
        target_ids: for each id of the vocabulary, the id in the target dictionary.
        segments: whether the tokenizer segments words; otherwise texts must already be segmented.
    """

    tokenizer: RandomTransformerTokenizer
    source_ids: list[int]
    target_ids: list[int]
    segments: bool


def fairseq_tokenizer(
    dictionary: str | Path,
    codes: str | Path | None = None,
    model_max_length: int = 1024,
    *,
    target_dictionary: str | Path | None = None,
    target_codes: str | Path | None = None,
) -> FairseqTokenizer:
    """Build a tokenizer that appends `</s>` to every text and joins the pieces of words when it decodes.

    Args:
        dictionary: fairseq's `dict.<source language>.txt`.
        codes: merges of subword-nmt (version 0.2) or fastBPE; without them, texts must already be segmented, with `@@`
            after each piece except a word's last.
        model_max_length: length that texts are truncated to on request.
        target_dictionary: `dict.<target language>.txt`; `None` for the source's dictionary.
        target_codes: merges of the target; `None` for the source's merges.

    Raises:
        ValueError: a file has an invalid line, which the message names; or only the target has codes.
        OSError: a file cannot be read.
    """
    if codes is None and target_codes is not None:
        raise ValueError(f"target_codes must be given together with source codes, got only {target_codes}.")
    merges = [read_codes(Path(file)) for file in (codes, target_codes) if file is not None]
    source = read_dictionary(Path(dictionary), bool(merges))
    target = source if target_dictionary is None else read_dictionary(Path(target_dictionary), bool(merges))
    pieces = (piece for pairs in merges for left, right in pairs for piece in (left, right, left + right))
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(chain(source, target, pieces)))}
    backend = bpe_tokenizer(vocabulary, merges[0]) if merges else whitespace_tokenizer(vocabulary)
    options: dict[str, Any] = {"model_max_length": model_max_length, **SPECIAL_TOKENS}
    if merges[:1] != merges[-1:]:  # targets have merges of their own
        options["target_merges"] = [" ".join(pair) for pair in merges[-1]]
    return FairseqTokenizer(
        RandomTransformerTokenizer._from_backend(backend, **options),
        source_ids=[source.get(token, UNK) for token in vocabulary],
        target_ids=[target.get(token, UNK) for token in vocabulary],
        segments=bool(merges),
    )


def read_dictionary(path: Path, as_pieces: bool) -> dict[str, int]:
    """Read a dictionary's tokens and ids: the special tokens, then one token and its count per line.

    Args:
        path: the dictionary.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a line has a wrong format, or a token or piece is repeated.
    """
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS.values())}
    for number, line in numbered_lines(path):
        token, _, count = line.rpartition(" ")
        if not token or not count.lstrip("-").isdecimal():
            raise ValueError(
                f"{path} must have a token and its count on each line, got {format_value(line)} on line {number}."
            )
        token = piece_of(token) if as_pieces else token
        if token in ids:
            raise ValueError(f"{path} must have each token once, got {format_value(token)} again on line {number}.")
        ids[token] = len(ids)
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
            raise ValueError(
                f"{path} must have two symbols on each line (and a count), got {format_value(line)} on line {number}."
            )
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
    with path.open("rb") as file:
        yield from ((i, line) for i, line in enumerate(read_lines(file, str(path)), start=1) if line.strip(" "))


def piece_of(token: str) -> str:
    """Convert a dictionary's token to a BPE piece: `hel@@` -> `hel`, `lo` -> `lo</w>`."""
    if token in SPECIAL_TOKENS.values():
        return token
    return token.removesuffix(CONTINUED) if token.endswith(CONTINUED) and token != CONTINUED else token + END


def bpe_tokenizer(ids: dict[str, int], merges: Merges) -> Tokenizer:
    """A tokenizer that splits texts at spaces and words by BPE."""
    unk = SPECIAL_TOKENS["unk_token"]
    backend = Tokenizer(models.BPE(ids, merges, unk_token=unk, end_of_word_suffix=END))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=END)
    return backend


def whitespace_tokenizer(ids: dict[str, int]) -> Tokenizer:
    """A tokenizer that splits texts at spaces only."""
    backend = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # WordPiece's decoder puts spaces between tokens; the next steps remove those after @@.
    spaced = decoders.WordPiece(prefix=NOT_A_PREFIX, cleanup=False)
    joined = decoders.Replace(Regex(f"{CONTINUED}( |$)"), "")
    backend.decoder = decoders.Sequence([spaced, decoders.Fuse(), joined])
    return backend

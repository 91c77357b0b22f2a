"""fairseq's dictionary, and the BPE codes with which its texts were segmented, as a fast tokenizer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3
CONTINUED = "@@"  # behind a piece that the word goes on after
END = "</w>"  # behind the last piece of a word, in the codes
NOT_A_PREFIX = "\0"


@dataclass(frozen=True)
class FairseqTokenizer:
    """A tokenizer and how its ids relate to fairseq's dictionary.

    Attributes:
        tokenizer: fairseq's ids, and behind them `unknown_pieces` more.
        dictionary: the file.
        tokens: how many tokens fairseq's dictionary has, the 4 special ones included.
        unknown_pieces: pieces that merging passes through, or may end with, which are not in the dictionary: what
            fairseq reads as `<unk>`. They have ids from `tokens` on.
        segments: whether words are segmented; otherwise texts are expected to be.
    """

    tokenizer: PreTrainedTokenizerFast
    dictionary: str
    tokens: int
    unknown_pieces: int
    segments: bool


def fairseq_tokenizer(
    dictionary: str | Path, codes: str | Path | None = None, model_max_length: int = 1024
) -> FairseqTokenizer:
    """A tokenizer with fairseq's ids, which ends every text with `</s>` and joins the pieces of words as it decodes.

    Args:
        dictionary: fairseq's `dict.<language>.txt`.
        codes: the merges of subword-nmt (version 0.2) or fastBPE; without them texts are to be segmented already, with
            `@@` behind each piece but a word's last.
        model_max_length: where texts are cut if that is asked for.

    Raises:
        ValueError: a file is missing or has a line that is not as it should be; the message names it.
    """
    ids = read_dictionary(Path(dictionary))
    tokens = len(ids)
    if codes is None:
        backend = whole_pieces(ids)
    else:
        merges = read_codes(Path(codes))
        pieces = {piece_of(token): i for token, i in ids.items()}
        if len(pieces) < tokens:
            raise ValueError(f"{dictionary} must have tokens that differ as pieces of words, but two are the same.")
        ids = with_all_pieces(pieces, merges)
        backend = merging(ids, merges)
    eos = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, ids[eos])])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=model_max_length, padding_side="right", **SPECIAL_TOKENS
    )
    return FairseqTokenizer(tokenizer, str(dictionary), tokens, len(ids) - tokens, codes is not None)


def read_dictionary(path: Path) -> dict[str, int]:
    """fairseq's tokens and their ids: the special tokens, then a token and its count a line.

    Raises:
        ValueError: a line is something else, or a token comes twice.
    """
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS.values())}
    for number, line in read_lines(path):
        token, _, count = line.rpartition(" ")
        if not token or not count.lstrip("-").isdecimal():
            raise ValueError(f"{path} must have a token and its count on each line, got {line!r} on line {number}.")
        if token in ids:
            raise ValueError(f"{path} must have each token once, got {token!r} again on line {number}.")
        ids[token] = len(ids)
    return ids


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The pairs to merge, the most frequent first.

    Raises:
        ValueError: a line is something else, or the file is of subword-nmt's version 0.1.
    """
    merges: dict[tuple[str, str], None] = {}
    for number, line in read_lines(path):
        if number == 1 and line.startswith("#version:"):
            continue
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise ValueError(f"{path} must have two symbols on each line (and a count), got {line!r} on line {number}.")
        if END in parts[:2]:
            raise ValueError(f"{path} must be of subword-nmt's version 0.2 or of fastBPE, got {END} as a symbol.")
        merges.setdefault((parts[0], parts[1]))
    if not merges:
        raise ValueError(f"{path} must have at least one pair to merge, got none.")
    return list(merges)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, and their numbers from 1.

    Raises:
        ValueError: the file is missing or not UTF-8.
    """
    try:
        # Not splitlines(): a dictionary may well have a token that Unicode counts as the end of a line.
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a UTF-8 text file, but it cannot be read.") from error
    return ((number, line.rstrip("\r")) for number, line in enumerate(lines, start=1) if line.strip(" \r"))


def piece_of(token: str) -> str:
    """A dictionary's token as merging calls it: `hel@@` -> `hel`, `lo` -> `lo</w>`."""
    if token in SPECIAL_TOKENS.values():
        return token
    return token.removesuffix(CONTINUED) if token.endswith(CONTINUED) and token != CONTINUED else token + END


def with_all_pieces(ids: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, int]:
    """The ids, and more behind them for pieces that occur in merges only."""
    pieces = dict(ids)
    for left, right in merges:
        for piece in (left, right, left + right):
            pieces.setdefault(piece, len(pieces))
    return pieces


def merging(ids: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """A tokenizer that segments the words between spaces."""
    unk = SPECIAL_TOKENS["unk_token"]
    backend = Tokenizer(models.BPE(ids, merges, unk_token=unk, end_of_word_suffix=END))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=END)
    return backend


def whole_pieces(ids: dict[str, int]) -> Tokenizer:
    """A tokenizer that looks up what is between spaces."""
    backend = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # WordPiece's decoder puts spaces between tokens; what follows takes those behind @@ away.
    between = decoders.WordPiece(prefix=NOT_A_PREFIX, cleanup=False)
    joined = decoders.Replace(Regex(f"{CONTINUED}( |$)"), "")
    backend.decoder = decoders.Sequence([between, decoders.Fuse(), joined])
    return backend

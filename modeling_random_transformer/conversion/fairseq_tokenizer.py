"""fairseq's dictionaries, and the BPE codes with which its texts were segmented, as a fast tokenizer."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .fairseq_options import UNK

SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3
CONTINUED = "@@"  # behind a piece that the word goes on after
END = "</w>"  # behind the last piece of a word, in the codes
NOT_A_PREFIX = "\0"

Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class FairseqTokenizer:
    """One tokenizer for both languages, and how its ids relate to those of fairseq's two dictionaries.

    Its vocabulary holds the source's dictionary (with the same ids), what only the target's has, and pieces that
    merging passes through. A dictionary that lacks a token reads it as `<unk>`.

    Attributes:
        tokenizer: splits sources, and joins what is generated.
        target_tokenizer: splits targets, into ids of the same vocabulary; another than `tokenizer` where the target has
            codes of its own.
        source_ids: for each id its id in the source's dictionary.
        target_ids: for each id its id in the target's dictionary.
        segments: whether words are segmented; otherwise texts are expected to be.
    """

    tokenizer: PreTrainedTokenizerFast
    target_tokenizer: PreTrainedTokenizerFast
    source_ids: list[int]
    target_ids: list[int]
    segments: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """How many tokens the source's and the target's dictionary have, the 4 special ones included."""
        return max(self.source_ids) + 1, max(self.target_ids) + 1


def fairseq_tokenizer(
    dictionary: str | Path,
    codes: str | Path | None = None,
    model_max_length: int = 1024,
    *,
    target_dictionary: str | Path | None = None,
    target_codes: str | Path | None = None,
) -> FairseqTokenizer:
    """A tokenizer of fairseq's tokens, which ends every text with `</s>` and joins the pieces of words as it decodes.

    Args:
        dictionary: fairseq's `dict.<source language>.txt`.
        codes: the merges of subword-nmt (version 0.2) or fastBPE; without them texts are to be segmented already, with
            `@@` behind each piece but a word's last.
        model_max_length: where texts are cut if that is asked for.
        target_dictionary: `dict.<target language>.txt`; `None` where it is the source's.
        target_codes: those of the target; `None` where they are the source's.

    Raises:
        ValueError: a file is missing or has a line that is not as it should be, and the message names it; or there are
            codes for the target alone.
    """
    if codes is None and target_codes is not None:
        raise ValueError(f"target_codes must be given with codes of the source, got {target_codes} alone.")
    merges = [read_codes(Path(file)) for file in (codes, target_codes) if file is not None]
    source = read_tokens(Path(dictionary), bool(merges))
    target = source if target_dictionary is None else read_tokens(Path(target_dictionary), bool(merges))
    vocabulary = one_vocabulary(source, target, merges)
    backends = [merging(vocabulary, pairs) for pairs in merges] or [whole_pieces(vocabulary)]
    tokenizers = [ending_texts(backend, model_max_length) for backend in backends]
    return FairseqTokenizer(
        tokenizers[0],
        tokenizers[-1],
        source_ids=[source.get(token, UNK) for token in vocabulary],
        target_ids=[target.get(token, UNK) for token in vocabulary],
        segments=bool(merges),
    )


def read_tokens(path: Path, as_pieces: bool) -> dict[str, int]:
    """A dictionary's ids, of its tokens as they stand there or as merging calls them.

    Raises:
        ValueError: as of `read_dictionary`, or two tokens are one to merging.
    """
    ids = read_dictionary(path)
    if not as_pieces:
        return ids
    pieces = {piece_of(token): i for token, i in ids.items()}
    if len(pieces) < len(ids):
        raise ValueError(f"{path} must have tokens that differ as pieces of words, but two are the same.")
    return pieces


def one_vocabulary(source: dict[str, int], target: dict[str, int], merges: list[Merges]) -> dict[str, int]:
    """Ids for the source's tokens, for those that only the target has, and for pieces that occur in merges only."""
    pieces = (piece for pairs in merges for left, right in pairs for piece in (left, right, left + right))
    return {token: i for i, token in enumerate(dict.fromkeys(chain(source, target, pieces)))}


def ending_texts(backend: Tokenizer, model_max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer of transformers, with the special tokens and `</s>` behind every text."""
    eos = SPECIAL_TOKENS["eos_token"]
    ending = [(eos, backend.token_to_id(eos))]
    backend.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=ending)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=model_max_length, padding_side="right", **SPECIAL_TOKENS
    )


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


def read_codes(path: Path) -> Merges:
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


def merging(ids: dict[str, int], merges: Merges) -> Tokenizer:
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

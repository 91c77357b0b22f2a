"""Builds tokenizers of this package from fairseq's dictionaries and BPE codes."""

from pathlib import Path

from ..utils.errors import format_value
from .joined_tokenizer import JoinedTokenizer, join_bpe, numbered_lines, piece_of, read_codes

FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3


def fairseq_tokenizer(
    dictionary: str | Path,
    codes: str | Path | None = None,
    model_max_length: int = 1024,
    *,
    target_dictionary: str | Path | None = None,
    target_codes: str | Path | None = None,
) -> JoinedTokenizer:
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
    return join_bpe(source, target, merges, model_max_length=model_max_length)


def read_dictionary(path: Path, as_pieces: bool) -> dict[str, int]:
    """Read a dictionary's tokens and ids: the special tokens, then one token and its count per line.

    Args:
        path: the dictionary.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a line has a wrong format, or a token or piece is repeated.
    """
    ids = {token: i for i, token in enumerate(FIRST_TOKENS)}
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

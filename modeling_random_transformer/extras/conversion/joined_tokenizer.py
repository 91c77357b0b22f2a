"""One tokenizer for two vocabularies: those of fairseq, JoeyNMT and eole, with BPE codes or a SentencePiece model."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ...base.errors import format_names, format_value
from ...base.files import StrPath
from ...configuration_random_transformer import RandomTransformerConfig
from ...tokenization_random_transformer import SPECIAL_TOKENS, RandomTransformerTokenizer, lines_of_files, unicode_error
from ..sentencepiece.conversion import from_sentencepiece
from .files import Vocabulary
from .options import shown_value

UNKNOWN_TOKEN = SPECIAL_TOKENS["unk_token"]
CONTINUATION_SUFFIX = "@@"  # suffix of a piece that does not end its word
WORD_END_SUFFIX = "</w>"  # suffix of the last piece of a word, in the codes
NOT_A_PREFIX = "\0"
CODE_LINE = re.compile(r"([^ ]+) ([^ ]+)( \d+)?")

Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class JoinedTokenizer:
    """One vocabulary for both languages, and its relation to the original's two vocabularies.

    A token that is missing from a vocabulary of the original is `<unk>` in this vocabulary.

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

    def special_ids(self) -> dict[str, int]:
        """The fields of the configuration with ids of special tokens, of a decoder that starts from `<s>`."""
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        ids = {name: getattr(self.tokenizer, name) for name in names}
        return {**ids, "decoder_start_token_id": ids["bos_token_id"]}

    def save(self, folder: Path, _config: RandomTransformerConfig) -> list[str]:
        """Save the tokenizer in a folder; returns notes about it for the report of a conversion."""
        notes = []
        self.tokenizer.save_pretrained(folder)
        if "target_merges" in self.tokenizer.init_kwargs:
            notes.append("The tokenizer splits sources and targets (`text_target=`) by their own codes.")
        unknown = self.tokenizer.unk_token_id
        missing_in_source = self.source_ids.count(self.source_ids[unknown]) - 1
        missing_in_target = self.target_ids.count(self.target_ids[unknown]) - 1
        notes.append(
            f"The vocabulary of {len(self.source_ids)} ids joins source and target tokens and intermediate pieces. "
            f"{missing_in_source} are missing from the source's vocabulary and {missing_in_target} from the target's: "
            "they have the embedding of <unk> there, and a lower logit than <unk>."
        )
        if not self.segments:
            notes.append("The tokenizer splits at spaces only, so texts must already be segmented (hel@@ lo).")
        notes.append("Prepare texts as the training data, such as by Moses tokenization.")
        return notes


def join_vocabularies(
    source: Vocabulary, target: Vocabulary, files: Iterable[Path] = (), is_sentencepiece: bool = False, **options: Any
) -> JoinedTokenizer:
    """A tokenizer of two vocabularies that splits words by BPE codes or by a SentencePiece model.

    The ids are those of the source vocabulary, followed by additional tokens of the target vocabulary and, with codes,
    the intermediate pieces of merges.

    Args:
        source: the source vocabulary, with ids from 0: with codes, of pieces (see `piece_of`).
        target: the target vocabulary.
        files: the files of source and target, or one for both; without files, texts must already be segmented.
        is_sentencepiece: whether the files are SentencePiece models.
        **options: arguments of the tokenizer itself, such as `model_max_length`.

    Raises:
        ValueError: a file is damaged, there are two SentencePiece models, or the model is not that of the vocabularies.
    """
    distinct = list(dict.fromkeys(files))
    if not is_sentencepiece:
        tokenizer = tokenizer_of_codes([*source, *target], [read_codes(file) for file in distinct], **options)
    elif len(distinct) == 1:
        tokenizer = tokenizer_of_pieces([*source, *target], distinct[0], **options)
    else:
        raise ValueError(
            f"both languages must have one SentencePiece model, got {format_names(map(str, distinct)) or 'none'}."
        )
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    return JoinedTokenizer(
        tokenizer,
        source_ids=[source.get(token, source[UNKNOWN_TOKEN]) for token in tokens],
        target_ids=[target.get(token, target[UNKNOWN_TOKEN]) for token in tokens],
        segments=bool(distinct),
    )


def tokenizer_of_codes(tokens: list[str], merges: list[Merges], **options: Any) -> RandomTransformerTokenizer:
    """A tokenizer that splits words by the merges of the source, and targets by the second list if there are two.

    Without merges, it splits texts at spaces only.
    """
    pieces = (piece for pairs in merges for left, right in pairs for piece in (left, right, left + right))
    distinct = dict.fromkeys([*tokens, *pieces])
    ids = {token: i for i, token in enumerate(distinct)}
    if merges:
        backend = Tokenizer(models.BPE(ids, merges[0], unk_token=UNKNOWN_TOKEN, end_of_word_suffix=WORD_END_SUFFIX))
        backend.decoder = decoders.BPEDecoder(suffix=WORD_END_SUFFIX)
        if merges[0] != merges[-1]:
            options["target_merges"] = [" ".join(pair) for pair in merges[-1]]
    else:
        backend = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN_TOKEN))
        # WordPiece's decoder puts spaces between tokens; the next steps remove those after @@.
        spaced = decoders.WordPiece(prefix=NOT_A_PREFIX, cleanup=False)
        joined = decoders.Replace(Regex(f"{CONTINUATION_SUFFIX}( |$)"), "")
        backend.decoder = decoders.Sequence([spaced, decoders.Fuse(), joined])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return RandomTransformerTokenizer._from_backend(backend, **{**SPECIAL_TOKENS, **options})


def tokenizer_of_pieces(tokens: list[str], path: Path, **options: Any) -> RandomTransformerTokenizer:
    """The tokenizer of a SentencePiece model. Tokens that are not its pieces are control symbols.

    Raises:
        ValueError: see `from_sentencepiece`; or most tokens are not pieces of the model.
    """
    tokenizer = from_sentencepiece(path, control_symbols=tokens, **options)
    control = {token.content for token in tokenizer.added_tokens_decoder.values()} - {*SPECIAL_TOKENS.values()}
    lacking = control.intersection(tokens)
    if 2 * len(lacking) > len(set(tokens)):
        raise ValueError(
            f"{path} must be the model of the vocabularies, but has no pieces {format_names(sorted(lacking))}."
        )
    return tokenizer


def name_tokens(name: StrPath, tokens: Sequence[Any], special_tokens: Mapping[str, str], as_pieces: bool) -> Vocabulary:
    """The ids of tokens. Special tokens get the names in `SPECIAL_TOKENS`.

    Args:
        name: the origin of the tokens, for errors.
        tokens: the tokens, in the order of their ids.
        special_tokens: the original's special tokens by their kinds, such as `{"pad_token": "<blank>"}`.
        as_pieces: convert the tokens to BPE pieces.

    Raises:
        ValueError: a token is not a string, is repeated, or is missing; or two special tokens are equal.
    """
    names = {token: SPECIAL_TOKENS[kind] for kind, token in special_tokens.items()}
    if len(names) < len(special_tokens):
        raise ValueError(
            f"special tokens of {name} must differ from each other, got {format_names(special_tokens.values())}."
        )
    ids: Vocabulary = {}
    for i, token in enumerate(tokens):
        if not isinstance(token, str) or unicode_error(token):
            raise ValueError(f"{name} must contain strings, got {shown_value(token)}.")
        piece = names.get(token) or (piece_of(token) if as_pieces else token)
        if piece in ids:
            raise ValueError(f"{name} must have each token once, got {format_value(token)} again as token {i}.")
        ids[piece] = i
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
    for line_number, line in numbered_lines(path):
        if line_number == 1 and line.startswith("#version:"):
            continue
        match = CODE_LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"line {line_number} of {path} must be two symbols (and a count), got {format_value(line)}."
            )
        if WORD_END_SUFFIX in match.groups():
            raise ValueError(
                f"{path} must be from subword-nmt version 0.2 or fastBPE, got {WORD_END_SUFFIX} as a symbol."
            )
        merges.setdefault((match[1], match[2]))
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
    if token.endswith(CONTINUATION_SUFFIX) and token != CONTINUATION_SUFFIX:
        return token.removesuffix(CONTINUATION_SUFFIX)
    return token + WORD_END_SUFFIX

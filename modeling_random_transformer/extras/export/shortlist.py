"""Lexical shortlists: the target tokens among which an engine chooses, by the tokens of the source."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...inputs_random_transformer import CHUNK_SIZE, chunks, encode_texts

Ids = np.ndarray[Any, np.dtype[np.int64]]

ITERATIONS = 5  # of IBM model 1
MAX_LINKS = 20_000_000  # pairs of a source and a target token that are in memory, with 50 bytes each
COMMON = 100  # the most frequent target tokens are always allowed


def lexical_shortlist(
    pairs: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, size: int = 50
) -> dict[int | None, list[int]]:
    """The target tokens that occur in translations of each source token, by IBM model 1 over token ids.

    Brown et al. 1993, The Mathematics of Statistical Machine Translation, section 4.1.

    Args:
        pairs: parallel sentences, such as the training corpus; the first 20 million pairs of tokens are used.
        tokenizer: the tokenizer of the model.
        size: number of target tokens per source token.

    Returns:
        The ids of target tokens, the most probable first, by the id of the source token; with the key `None` the most
        frequent target tokens, which are allowed in all translations.

    Raises:
        ValueError: there are no pairs.
    """
    sources: list[Ids] = []
    targets: list[Ids] = []
    links = 0
    for chunk in chunks(pairs, CHUNK_SIZE):
        texts, text_target = map(list, zip(*chunk, strict=True))
        batch = encode_texts(tokenizer, texts, text_target=text_target, verbose=False)
        sources += map(np.array, batch["input_ids"])
        targets += map(np.array, batch["labels"])
        links += sum(len(ids) * len(other) for ids, other in zip(batch["input_ids"], batch["labels"], strict=True))
        if links > MAX_LINKS:
            break
    if not sources:
        raise ValueError("pairs must be at least one pair of sentences, got none.")
    source_ids, target_ids, probabilities = translation_probabilities(sources, targets)
    tokens, counts = np.unique(np.concatenate(targets), return_counts=True)
    found: dict[int | None, list[int]] = {None: tokens[np.argsort(-counts, kind="stable")][:COMMON].tolist()}
    order = np.lexsort((-probabilities, source_ids))
    starts = np.flatnonzero(np.diff(source_ids[order], prepend=-2))
    for ids, start in zip(np.split(target_ids[order], starts[1:]), starts, strict=True):
        found[int(source_ids[order[start]])] = ids[:size].tolist()
    del found[-1]  # the empty word
    return found


def translation_probabilities(sources: list[Ids], targets: list[Ids]) -> tuple[Ids, Ids, Any]:
    """The probability of each target token that occurs with a source token, as three arrays of one entry per pair.

    The source token of -1 is the empty word.
    """
    sources = [np.concatenate([[-1], ids]) for ids in sources]
    starts = np.cumsum([0, *map(len, targets)])[:-1]
    slots = [np.arange(start, start + len(ids)) for start, ids in zip(starts, targets, strict=True)]
    # One entry per link; `slot` is the place of the target token in the corpus, whose links compete.
    source = np.concatenate([np.repeat(ids, len(other)) for ids, other in zip(sources, targets, strict=True)])
    target, slot = (
        np.concatenate([np.tile(row, len(ids)) for ids, row in zip(sources, rows, strict=True)])
        for rows in (targets, slots)
    )
    size = target.max() + 1
    keys, link = np.unique((source + 1) * size + target, return_inverse=True)
    owners, probabilities = keys // size, np.ones(len(keys))
    for _ in range(ITERATIONS):
        weights = probabilities[link]
        counts = np.bincount(link, weights / np.bincount(slot, weights)[slot])
        probabilities = counts / np.bincount(owners, counts)[owners]
    return owners - 1, keys % size, probabilities


def vmap(shortlist: dict[int | None, list[int]], source: list[str], target: list[str]) -> bytes:
    """The file `vmap.txt` of CTranslate2, with a line for each source token. A token may also be copied.

    Args:
        shortlist: see `lexical_shortlist`.
        source: the source tokens in the order of their ids.
        target: the target tokens.
    """
    known = set(target)
    lines = []
    for token_id, ids in shortlist.items():
        name = "" if token_id is None else source[token_id]
        names = dict.fromkeys([target[i] for i in ids] + ([name] if name in known else []))
        lines.append(f"{name}\t{' '.join(names)}\n")
    return "".join(lines).encode()


def check_vmap(content: bytes, source: Iterable[str], target: Iterable[str]) -> None:
    """Check a file `vmap.txt`: CTranslate2 crashes for an empty one, and translates nothing with foreign tokens.

    Args:
        content: lines of source tokens, a tab, and target tokens.
        source: the source tokens.
        target: the target tokens.

    Raises:
        ValueError: the file is empty or not of this form, or has a token that is not in the vocabulary.
    """
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"shortlist must be text in UTF-8, got bytes that are not: {error}.") from error
    vocabularies = {"", *source}, set(target)
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) != 2 or not fields[1]:
            raise ValueError(
                f"shortlist must have source tokens, a tab and target tokens in each line, got {line[:40]!r}."
            )
        for field, vocabulary in zip(fields, vocabularies, strict=True):
            unknown = next((token for token in field.split(" ") if token not in vocabulary), None)
            if unknown is not None:
                raise ValueError(f"shortlist must have tokens of the model, got {unknown[:40]!r} in line {number}.")

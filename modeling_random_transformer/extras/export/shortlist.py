"""Lexical shortlists, which restrict an engine to target tokens that occur in translations of the source tokens."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...base.errors import reraise_as_value_error
from ...inputs_random_transformer import CHUNK_SIZE, chunks, encode_texts

Array = np.ndarray[Any, Any]
Shortlist = dict[int | None, list[int]]

EM_ITERATIONS = 5  # iterations of EM for IBM model 1
MAX_LINKS = 20_000_000  # pairs of a source and a target token that are in memory, with 50 bytes each
COMMON = 100  # the most frequent target tokens are always allowed
EMPTY_WORD = -1  # the source token of target tokens that translate none


def lexical_shortlist(
    pairs: Iterable[tuple[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    size: int = 50,
) -> Shortlist:
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
    sources, targets = token_ids(pairs, tokenizer)
    if not sources:
        raise ValueError("pairs must be at least one pair of sentences, got none.")
    shortlist: Shortlist = {None: most_frequent(targets)}
    source_ids, target_ids, probabilities = translation_probabilities(sources, targets)
    order = np.lexsort((-probabilities, source_ids))
    tokens, starts = np.unique(source_ids[order], return_index=True)
    for token, candidates in zip(tokens, np.split(target_ids[order], starts[1:]), strict=True):
        if token != EMPTY_WORD:
            shortlist[int(token)] = candidates[:size].tolist()
    return shortlist


def most_frequent(targets: list[Array]) -> list[int]:
    """The most frequent target tokens."""
    tokens, counts = np.unique(np.concatenate(targets), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return tokens[order][:COMMON].tolist()


def token_ids(pairs: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase) -> tuple[list[Array], list[Array]]:
    """The token ids of the first sources and of their targets."""
    sources: list[Array] = []
    targets: list[Array] = []
    links = 0
    for chunk in chunks(pairs, CHUNK_SIZE):
        texts, text_target = map(list, zip(*chunk, strict=True))
        batch = encode_texts(tokenizer, texts, text_target=text_target, verbose=False)
        for source, target in zip(batch["input_ids"], batch["labels"], strict=True):
            sources.append(np.array(source))
            targets.append(np.array(target))
            links += len(source) * len(target)
        if links > MAX_LINKS:
            break
    return sources, targets


def translation_probabilities(sources: list[Array], targets: list[Array]) -> tuple[Array, ...]:
    """The probability of each target token that occurs with a source token, as three arrays of one entry per pair.

    The source tokens include `EMPTY_WORD`.
    """
    columns = zip(*links_of(sources, targets), strict=True)
    source_of_link, target_of_link, position_of_link = map(np.concatenate, columns)
    size = target_of_link.max() + 1
    keys = (source_of_link - EMPTY_WORD) * size
    keys += target_of_link
    pairs, pair_of_link = np.unique(keys, return_inverse=True)
    source_of_pair = pairs // size
    probabilities = np.ones(len(pairs))
    for _ in range(EM_ITERATIONS):
        weights = probabilities[pair_of_link]
        totals = np.bincount(position_of_link, weights)
        weights /= totals[position_of_link]
        counts = np.bincount(pair_of_link, weights)
        totals = np.bincount(source_of_pair, counts)
        probabilities = counts / totals[source_of_pair]
    return source_of_pair + EMPTY_WORD, pairs % size, probabilities


def links_of(sources: list[Array], targets: list[Array]) -> Iterator[tuple[Array, ...]]:
    """For each pair, the source token, the target token and the corpus position of the target token of each link.

    The links of one position compete.
    """
    end = 0
    for source, target in zip(sources, targets, strict=True):
        start = end
        end += len(target)
        positions = np.arange(start, end)
        words = np.append(source, EMPTY_WORD)
        count = len(words)
        yield (
            np.repeat(words, len(target)),
            np.tile(target, count),
            np.tile(positions, count),
        )


def vmap(shortlist: Shortlist, source: list[str], target: list[str]) -> bytes:
    """The file `vmap.txt` of CTranslate2, with a line for each source token. A token may also be copied.

    Args:
        shortlist: see `lexical_shortlist`.
        source: the source tokens in the order of their ids.
        target: the target tokens.
    """
    vocabulary = set(target)
    lines = []
    for source_id, target_ids in shortlist.items():
        name = "" if source_id is None else source[source_id]
        names = [target[i] for i in target_ids]
        if name in vocabulary and name not in names:
            names.append(name)
        targets = " ".join(names)
        lines.append(f"{name}\t{targets}\n")
    return "".join(lines).encode()


def check_vmap(content: bytes, source: Iterable[str], target: Iterable[str]) -> None:
    """Check a file `vmap.txt`: CTranslate2 crashes for an empty one, and translates nothing with foreign tokens.

    Args:
        content: lines of source tokens, a tab, and target tokens.
        source: the source tokens.
        target: the target tokens.

    Raises:
        ValueError: the file is empty, not UTF-8 or not of this form, or has a token that is not in the vocabulary.
    """
    source_tokens = {"", *source}
    target_tokens = set(target)
    with reraise_as_value_error("shortlist must be text in UTF-8, got bytes that are not"):
        text = content.decode()
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        sources, _, targets = line.partition("\t")
        if not targets or "\t" in targets:
            raise ValueError(
                f"shortlist must have source tokens, a tab and target tokens in each line, got {line[:40]!r}."
            )
        unknown = {*sources.split(" ")} - source_tokens
        unknown |= {*targets.split(" ")} - target_tokens
        if unknown:
            token = min(unknown)
            raise ValueError(f"shortlist must have tokens of the model, got {token[:40]!r} in line {number}.")

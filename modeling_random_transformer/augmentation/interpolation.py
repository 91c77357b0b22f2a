"""Sequence-level interpolation (Kim & Rush 2016, section 3.3): translations of a teacher that are near to references.

Of the translations that beam search finds for a text, the one that is most similar to the reference is the target of
the student. The similarity is chrF (Popović 2015); the paper has a smoothed sentence-level BLEU.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from sacrebleu.metrics import CHRF

from ..inference.translation import progress_bar
from ..utils.atomic_files import write_atomically
from ..utils.text import encode_lines, one_line, read_lines

CACHED_TEXTS = 2**16


def targets_by_source(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The distinct targets of each source, as one line without whitespace at its ends."""
    targets: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(key_of(source), {})[target] = None
    return {source: list(distinct) for source, distinct in targets.items()}


def key_of(text: str) -> str:
    """The key of a text in `targets_by_source`."""
    return one_line(text).strip()


def write_nearest(texts: Path, candidates: Path, output: Path, references: Mapping[str, Sequence[str]]) -> None:
    """Write the translation of each text that is nearest to its references.

    Args:
        texts: the file with one text per line.
        candidates: their translations, the best first, as `translate_file` writes them with `n_best` and
            `output_format="jsonl"`.
        output: the file to write, with one translation per line.
        references: see `targets_by_source`; a text without references has its best translation.
    """
    scorer = CHRF()

    @lru_cache(CACHED_TEXTS)  # frequent texts have many references
    def choose(text: str, translations: tuple[str, ...]) -> str:
        return nearest(translations, references.get(text, ()), scorer)

    with open(texts, "rb") as lines, open(candidates, "rb") as records, progress_bar(lines, None) as bar:

        def chosen() -> Iterator[str]:
            for text, translations in zip(read_lines(lines), read_candidates(records), strict=True):
                yield choose(key_of(text), tuple(translations))
                bar.update(1)

        write_atomically(output, encode_lines(chosen()))


def nearest(candidates: Sequence[str], references: Sequence[str], scorer: CHRF) -> str:
    """The candidate with the highest chrF against the references; without references, the first one."""
    if not references:
        return candidates[0]
    return max(candidates, key=lambda candidate: scorer.sentence_score(candidate, references).score)


def read_candidates(records: Iterable[bytes]) -> Iterator[list[str]]:
    """The translations of each text."""
    for _, group in groupby(map(json.loads, records), key=lambda record: record["index"]):
        yield [record["translation"] for record in group]

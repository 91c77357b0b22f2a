"""Writes the sets of a recipe as aligned text: valid pairs of given sets, or a corpus that is cleaned and split.

The entries of a dictionary are added to the training set.
"""

import logging
from itertools import chain
from pathlib import Path
from typing import Any

from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...data.readers import TEXT_KEY, read_texts
from ...data.sources import SIDES, Corpus, ParallelText, pairs_of
from ...data.validation import validate
from ...stages.monolingual import check_text_key, write_pairs
from ...tokenization_random_transformer import is_blank
from ...training.arguments import DataArguments
from ..cleaning.cleaning import clean_files, clean_pairs

logger = logging.getLogger(__name__)

Facts = dict[str, Any]  # of a finished stage, such as the number of its pairs

# The beginnings of the names of each set's files.
SET_FILES = {"train": "data", "validation": "data.validation", "test": "data.test"}
MAX_HELD_OUT_PAIRS = 1000  # of a validation or test set
PAIRS_PER_HELD_OUT_PAIR = 20  # at least, in the corpus


def files_of(folder: Path, split: str = "train") -> list[Path]:
    """The files of both sides of a set in a folder."""
    return [folder / f"{SET_FILES[split]}.{side}" for side in SIDES]


def sets_of(data_args: DataArguments) -> dict[str, list[Corpus]]:
    """The corpora of each set that is given."""
    return {split: corpora for split in SET_FILES if (corpora := data_args.corpora(split))}


def write_sets(data_args: DataArguments, folder: Path, dictionary: ParallelText | None = None) -> Facts:
    """Write the valid pairs of each set; without a validation set, clean and split the corpus.

    Args:
        data_args: the sets.
        folder: the folder of the files.
        dictionary: entries that are added to the training set.

    Returns:
        The number of pairs of each set, the number of entries of a dictionary as `dictionary`, and `skipped`, the
        reports of corpora with invalid lines.

    Raises:
        ValueError: a line is invalid, or the corpus cannot be split.
    """
    for split in SET_FILES:  # an attempt with other arguments may have written more sets
        for path in files_of(folder, split):
            path.unlink(missing_ok=True)
    sets = sets_of(data_args)
    corpora_to_check = [*chain.from_iterable(sets.values())]
    if dictionary is not None:
        corpora_to_check.append(dictionary)
    reports = [validate(corpus, data_args.on_invalid) for corpus in corpora_to_check]
    skipped = [str(report) for report in reports if report.invalid]
    for report in skipped:
        logger.warning("%s", report)
    facts: Facts = {"skipped": skipped}
    if data_args.has("validation"):
        for split, corpora in sets.items():
            facts[split] = write_pairs(pairs_of(corpora), files_of(folder, split))
    else:
        facts |= split_corpus(data_args, folder)
    if dictionary is not None:
        files = files_of(folder)
        facts["train"] = write_pairs(pairs_of([ParallelText(*files), dictionary]), files)
        facts["dictionary"] = reports[-1].valid
    return facts


def split_corpus(data_args: DataArguments, folder: Path) -> Facts:
    """Clean one corpus, and divide the pairs that remain into the sets."""
    corpora = data_args.corpora("train")
    if len(corpora) != 1 or data_args.has("test"):
        raise ValueError("validation_source_file must be given with several corpora or a test set, got None.")
    [corpus] = corpora
    remaining = sum(1 for _ in clean_pairs(corpus))
    size = max(1, min(MAX_HELD_OUT_PAIRS, remaining // PAIRS_PER_HELD_OUT_PAIR))
    folder.mkdir(parents=True, exist_ok=True)
    with reraise_as_value_error(f"validation_source_file must be given if {corpus} cannot be divided"):
        report = clean_files(corpus, *files_of(folder), split=(size, size))
        trained = report.sets["train"]
        if trained < size:
            raise ValueError(f"the training set must have at least {size} pairs like the others, got {trained}.")
    # A warning, so that the pairs that are not used are shown by default.
    logger.warning("%s", report)
    return {**report.sets, "report": str(report)}


def check_monolingual(name: str, path: StrPath, key: str = TEXT_KEY) -> None:
    """Read a monolingual text once, before work that takes long.

    Args:
        name: name of the argument, for errors.
        path: the file.
        key: see `read_texts`.

    Raises:
        ValueError: a line is not UTF-8 or has a NUL character, all lines are blank, or there is a key without columns.
    """
    check_text_key(key, [path])
    count = sum(not is_blank(text) for text in read_texts(path, key))
    if not count:
        raise ValueError(f"{name} must have a line that is not blank, got {str(path)!r} without one.")

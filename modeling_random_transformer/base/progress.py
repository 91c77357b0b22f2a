"""Progress bars, and a function that processes a stream in chunks and shows one."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from transformers.utils.logging import EmptyTqdm, tqdm

from ..inputs_random_transformer import check_positive, process_chunks

T = TypeVar("T")
Update = Callable[[int], Any]  # counts finished items


def progress_bar(total: int | None = None, shown: bool | None = None, unit: str = "text") -> Any:
    """A progress bar on stderr; by default after a second, or after a minute in a log file.

    Args:
        total: the number of items; `None` or 0 if it is unknown.
        shown: True shows it immediately, False never.
        unit: name of the counted items.
    """
    if shown is False:
        return EmptyTqdm()  # creating a disabled bar takes as long as tokenizing a sentence
    interactive = sys.stderr.isatty()
    return tqdm(
        total=total or None,
        unit=unit,
        delay=0 if shown else 1 if interactive else 60,
        mininterval=0.1 if interactive or shown else 60,
    )


def process_stream(
    items: Iterable[T],
    process: Callable[[Sequence[T], int, Update], list[Any]],
    chunk_size: int,
    progress: bool | None,
    total: int,
    unit: str = "text",
) -> Iterator[Any]:
    """The results of a function of chunks, lazily and in the order of the items.

    Args:
        items: texts or pairs, of which one chunk at a time is read.
        process: called with a chunk, the index of its first item and an `Update`.
        chunk_size: number of items that are sorted by length together.
        progress: see `progress_bar`, as for the following arguments.
        total: the number of items; 0 if it is unknown.
        unit: what the progress bar counts.
    """
    check_positive(chunk_size=chunk_size)

    def results() -> Iterator[Any]:
        with progress_bar(total, progress, unit) as bar:
            yield from process_chunks(items, chunk_size, lambda chunk, first: process(chunk, first, bar.update))

    return results()

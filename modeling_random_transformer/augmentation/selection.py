"""Selection of the lines of a monolingual file that a model can translate."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..inference.translation import progress_bar
from ..pipeline_random_transformer import (
    CHUNK_SIZE,
    Seq2SeqPipeline,
    check_positive,
    encode_texts,
    source_language,
    source_limit,
)
from ..utils.atomic_files import new_file
from ..utils.text import encode_lines, one_line


@dataclass
class Selection:
    """Counts of the lines of monolingual text.

    Attributes:
        lines: all lines.
        blank: lines without text, which are skipped.
        too_long: lines of more than `limit` tokens, which are skipped.
        limit: the largest number of tokens of a line, including the end token.
    """

    lines: int = 0
    blank: int = 0
    too_long: int = 0
    limit: int = 0

    @property
    def selected(self) -> int:
        """The number of lines to translate."""
        return self.lines - self.blank - self.too_long

    def __str__(self) -> str:
        return (
            f"{self.selected:,} of {self.lines:,} lines selected; skipped: {self.blank:,} blank, "
            f"{self.too_long:,} of more than {self.limit:,} tokens"
        )


def select_lines(
    lines: Iterable[str],
    pipe: Seq2SeqPipeline,
    selection: Selection,
    max_tokens: int | None = None,
    src_lang: str | None = None,
    update: Callable[[int], Any] = lambda _: None,
) -> Iterator[str]:
    """Yield the lines that are neither blank nor too long for the model, and count all lines.

    Args:
        lines: the lines.
        pipe: the pipeline of the model.
        selection: the counts, which are increased.
        max_tokens: a limit on the tokens of a line, below that of the tokenizer and the model.
        src_lang: language code of the lines; `None` for that of the tokenizer.
        update: called with the number of lines of each chunk that is done.

    Raises:
        ValueError: `max_tokens` is not positive.
    """
    check_positive(or_none=True, max_tokens=max_tokens)
    limit, _ = source_limit(pipe.tokenizer, pipe.positions, None)
    selection.limit = limit = min(limit, max_tokens or limit)
    iterator = iter(lines)
    while chunk := list(islice(iterator, CHUNK_SIZE)):
        texts = [one_line(line) for line in chunk if line.strip()]
        selection.lines += len(chunk)
        selection.blank += len(chunk) - len(texts)
        for text, length in zip(texts, token_counts(pipe, texts, src_lang), strict=True):
            if length > limit:
                selection.too_long += 1
            else:
                yield text
        update(len(chunk))


def write_selection(
    path: Path,
    lines: Iterable[str],
    pipe: Seq2SeqPipeline,
    max_tokens: int | None,
    src_lang: str | None,
    argument: str,
    progress: bool | None = None,
) -> Selection:
    """Write the lines that a model can translate to a file, in a folder that is created if it does not exist.

    Args:
        path: the file, which is replaced only if a line can be translated.
        lines: see `select_lines`, as for the following arguments.
        pipe: the pipeline of the model.
        max_tokens: a limit on the tokens of a line.
        src_lang: language code of the lines.
        argument: what contains the lines, for the error message.
        progress: show a progress bar on stderr; `None` shows it after a delay.

    Raises:
        ValueError: no line can be translated, or a line is not UTF-8.
    """
    selection = Selection()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar(lines, progress, unit="line") as bar, new_file(path) as file:
            file.writelines(encode_lines(select_lines(lines, pipe, selection, max_tokens, src_lang, bar.update)))
            if not selection.selected:
                raise ValueError(f"{argument} must have a line that can be translated, got {selection}.")
    except Exception:
        with suppress(OSError):  # contains files of an earlier call
            path.parent.rmdir()
        raise
    return selection


def token_counts(pipe: Seq2SeqPipeline, texts: list[str], src_lang: str | None) -> list[int]:
    """The number of tokens of each text."""
    if not texts:
        return []
    with source_language(pipe.tokenizer, src_lang):
        return list(map(len, encode_texts(pipe.tokenizer, texts, verbose=False)["input_ids"]))

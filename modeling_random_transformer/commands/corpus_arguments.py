"""Arguments of the commands that pass parallel text through a model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.files import encode_lines
from ..base.streams import check_output, is_stream
from ..data.sources import ParallelText
from ..extras.pairs.scoring_files import PairWork
from ..extras.parser import InputFile
from ..inference.scoring import PairModel
from ..inference.translation_files import write_in_parts
from .command_line import (
    STANDARD_PATH,
    InferenceArguments,
    ResumableArguments,
    check_keys,
    check_new_outputs,
    write_output,
)


@dataclass(frozen=True, kw_only=True)
class CorpusArguments(InferenceArguments):
    """Arguments of commands that pass parallel text through a model.

    Args:
        source_file: sources, one per line; or both sides in a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file; - is
            standard input: TSV, or sources with --target_file
        target_file: targets, line by line
        source_key: column or language of the source in a file with both sides: a name, or the number of a column
        target_key: column or language of the target in a file with both sides: a name, or the number of a column

    Raises:
        ValueError: a key has no effect.
    """

    source_file: InputFile = STANDARD_PATH
    target_file: InputFile | None = None
    source_key: str = "source"
    target_key: str = "target"

    def __post_init__(self) -> None:
        check_keys(self.has_columns, self.source_key, self.target_key)

    @property
    def has_columns(self) -> bool:
        """Whether a file has both sides."""
        return self.target_file is None

    def corpus(self) -> ParallelText:
        """The pairs.

        Raises:
            ValueError: the files are not parallel text.
        """
        return ParallelText(self.source_file, self.target_file, source_key=self.source_key, target_key=self.target_key)


@dataclass(frozen=True, kw_only=True)
class CorpusOutputArguments(CorpusArguments):
    """Arguments of commands that write a file about parallel text.

    Args:
        output: file to write, compressed by its suffix (.gz, .zst, .bz2, .xz); - is standard output (the default)
        overwrite: replace an output that exists

    Raises:
        ValueError: the output is an input, or it exists.
    """

    output: Path = STANDARD_PATH
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_output("--output", self.output, source_file=self.source_file, target_file=self.target_file)
        check_new_outputs(self.overwrite, output=self.output)


@dataclass(frozen=True, kw_only=True)
class PairArguments(ResumableArguments, CorpusOutputArguments):
    """Arguments of commands that write one line per pair.

    Args:
        truncation: truncate texts that are too long (default: they are an error)
    """

    truncation: bool = False

    def write_lines(
        self,
        model_class: Callable[..., PairModel],
        line_of: Callable[..., str],
        line_options: dict[str, Any],
        **options: Any,
    ) -> None:
        """Load the model, and write one line per pair, resumably if the pairs and the output are files.

        Args:
            model_class: `Scorer` or `Aligner`.
            line_of: see `PairWork`, as for the next argument.
            line_options: the keyword arguments of the function.
            **options: options of the class that are no arguments of all commands.
        """
        corpus = self.corpus()
        is_resumable = self.source_file != STANDARD_PATH and not is_stream(self.output)
        self.check_restart(is_resumable, self.source_file, self.output)
        if is_resumable:
            corpus.require_files()
        with self.load(is_resumable) as (model, tokenizer):
            pair_model = model_class(model, tokenizer, truncation=self.truncation, **self.text_options, **options)
            work = PairWork(corpus, self.output, model, pair_model, line_of, line_options)
            if is_resumable:
                write_in_parts(work, chunk_size=self.chunk_size, restart=self.restart, progress=None)
            else:
                write_output(self.output, encode_lines(work.stream(self.chunk_size)))

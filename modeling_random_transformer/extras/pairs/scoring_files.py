"""Scores parallel text, from file to file and resumable (see `translation_files`), or in one pass."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.digests import model_digest
from ...base.files import StrPath
from ...base.progress import Update, process_stream
from ...base.streams import check_output, stream_name
from ...data.sources import EMPTY_SIDE, Corpus, Pair, ParallelLine
from ...inference.scoring import PairModel, PairScore, Scorer
from ...inference.translation_files import OUTPUT_FORMATS, LineWork, write_in_parts
from ...inputs_random_transformer import CHUNK_SIZE, check_choice, drop_none, name_lines_in_errors


def score_line(score: PairScore | None, output_format: str) -> str:
    """A score as one line.

    Args:
        score: the score; `None` for a pair with a blank side.
        output_format: `"text"` for log-probability and number of tokens, separated by a tab, then the log-probabilities
            of the tokens, separated by spaces, if they were requested; empty for `None`. `"jsonl"` for an object with
            the fields of `PairScore`, except for the tokens of the source; for `None`, the log-probability is `null`
            with 0 tokens.
    """
    if output_format == "jsonl":
        fields = {"log_probability": None, "tokens": 0} if score is None else drop_none(**asdict(score))
        fields.pop("source_tokens", None)
        return json.dumps(fields)
    if score is None:
        return ""
    columns = [f"{score.log_probability:.6f}", str(score.tokens)]
    if score.token_log_probabilities is not None:
        columns.append(" ".join(f"{value:.6f}" for value in score.token_log_probabilities))
    return "\t".join(columns)


def score_file(
    corpus: Corpus,
    output_file: StrPath,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Score parallel text; line n of the output is the score of pair n, see `score_line`.

    A pair with a blank side has an empty line. Other invalid lines are an error before the first score.

    Resumes after an interruption and shares the chunks with other processes like `translate_file`.

    Args:
        corpus: the pairs, which are read once to check them, and again to score them.
        output_file: the file to write or to replace.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        output_format: `"text"` or `"jsonl"`.
        chunk_size: pairs that are sorted by length together, and lost if the process is killed before the chunk is
            complete.
        restart: see `translate_file`, as for the next argument.
        progress: show a progress bar on stderr.
        **options: those of `score_pairs`, such as `token_scores`. After the error of a text that is too long, the same
            call with `truncation=True` resumes.

    Raises:
        ValueError: an argument or a line of the corpus is invalid, or the parts of an earlier call belong to a
            different job.
        OSError: a file cannot be read or written.
    """
    check_choice(OUTPUT_FORMATS, output_format=output_format)
    scorer = Scorer(model, tokenizer, **options)
    work = PairWork(corpus, Path(output_file), model, scorer, score_line, {"output_format": output_format})
    write_in_parts(work, chunk_size=chunk_size, restart=restart, progress=progress)


@dataclass
class PairWork(LineWork):
    """The results of the pairs of a corpus, one line for each pair.

    Attributes:
        pair_model: computes the results.
        line_of: a function from a result, or `None` for a pair with a blank side, to a line, such as `score_line`.
        line_options: its keyword arguments, as JSON values.
    """

    pair_model: PairModel
    line_of: Callable[..., str]
    line_options: dict[str, Any]

    unit = "pair"

    def describe(self) -> dict[str, Any]:
        """Check the files, and return what determines the results."""
        check_output("output_file", self.output, **self.source.files)
        return {
            "model": model_digest(self.model, self.pair_model.tokenizer),
            "languages": asdict(self.pair_model.languages),
            **self.pair_model.effective_options(),
            **self.line_options,
        }

    def read(self) -> Iterator[Pair | None]:
        """The pairs; `None` for one with a blank side.

        Raises:
            ValueError: a line is invalid for another reason; the message gives its number.
        """
        for line in self.source.lines():
            if isinstance(line, ParallelLine):
                yield line.source, line.target
            elif line.reason == EMPTY_SIDE:
                yield None
            else:
                name = stream_name(str(self.source))
                raise ValueError(f"{name} must contain valid pairs only, but line {line.number} is {line.reason}.")

    def lines(self, chunk: Sequence[Any], first: int, update: Update) -> list[str]:
        """The lines of the results."""
        return [self.line_of(result, **self.line_options) for result in self.pair_model(chunk, first, update)]

    def stream(self, chunk_size: int) -> Iterator[str]:
        """All lines, in one pass over the corpus, which may be a pipe."""
        with name_lines_in_errors(stream_name(str(self.source))):
            yield from process_stream(self.read(), self.lines, chunk_size, None, 0, self.unit)

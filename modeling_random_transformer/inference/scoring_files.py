"""Resumable scoring and alignment of parallel text in chunks: see `translation_files`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import EMPTY, Corpus, ParallelLine, ParallelText
from ..inputs_random_transformer import CHUNK_SIZE, drop_none
from ..utils.compressed_files import check_output, stream_name
from .alignments import Aligner, pharaoh_line
from .scoring import PairModel, PairScore, Scorer
from .translation_files import check_format, model_digest, write_in_parts

Pair = tuple[str, str]


def score_file(
    corpus: Corpus,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Score parallel text; line n of the output is the score of pair n; see `score_line`.

    A pair with a blank side has no score. Other invalid lines are an error before the first score.

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
    check_format(output_format)
    scorer = Scorer(model, tokenizer, **options)
    recorded = {"output_format": output_format, "token_scores": scorer.token_scores}
    job = {"chunk_size": chunk_size, "restart": restart, "progress": progress}
    write_results(corpus, output_file, scorer, partial(score_line, output_format=output_format), recorded, **job)


def align_file(
    corpus: Corpus,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Align parallel text; line n of the output has the links of pair n, such as `0-0 1-2` (Pharaoh format).

    A pair with a blank side has no links. Arguments and errors are those of `score_file`, the options those of
    `alignments`.
    """
    aligner = Aligner(model, tokenizer, **options)
    job = {"chunk_size": chunk_size, "restart": restart, "progress": progress}
    write_results(corpus, output_file, aligner, pharaoh_line, {"alignments": [aligner.layer, aligner.step]}, **job)


def write_results(
    corpus: Corpus,
    output_file: str | PathLike,
    process: PairModel,
    write: Callable[[Any], str],
    recorded: dict[str, Any],
    **job: Any,
) -> None:
    """Write one line per pair; see `score_file`. What is recorded must be the same to resume."""

    def describe() -> dict[str, Any]:
        sides = {"source": corpus.source, "target": corpus.target} if isinstance(corpus, ParallelText) else {}
        check_output("output_file", output_file, **sides)
        model = model_digest(process.model, process.tokenizer)
        return {"model": model, "languages": asdict(process.languages), **recorded}

    def results(pairs: list[Any], first: int, update: Callable[[int], Any]) -> Iterator[str]:
        return map(write, process(pairs, first, update))

    read = partial(valid_pairs, corpus)
    write_in_parts(output_file, read, describe, results, str(corpus), process.model.device, unit="pair", **job)


def valid_pairs(corpus: Corpus) -> Iterator[Pair | None]:
    """The texts of the lines of a corpus; `None` for a line with a blank side.

    Raises:
        ValueError: a line is invalid for another reason; the message gives its number.
    """
    for line in corpus.lines():
        if isinstance(line, ParallelLine):
            yield line.source, line.target
        elif line.reason == EMPTY:
            yield None
        else:
            name = stream_name(str(corpus))
            raise ValueError(f"{name} must contain valid pairs only, but line {line.number} is {line.reason}.")


def score_line(score: PairScore | None, output_format: str) -> str:
    """A score as one line.

    Args:
        score: the score; `None` for a pair with a blank side.
        output_format: `"text"` for log-probability and number of tokens, separated by a tab, then the log-probabilities
            of the tokens, separated by spaces, if they were requested; empty for `None`. `"jsonl"` for an object with
            the fields of `PairScore`; for `None`, the log-probability is `null` with 0 tokens.
    """
    if output_format == "jsonl":
        return json.dumps({"log_probability": None, "tokens": 0} if score is None else drop_none(**asdict(score)))
    if score is None:
        return ""
    columns = [f"{score.log_probability:.6f}", str(score.tokens)]
    if score.token_log_probabilities is not None:
        columns.append(" ".join(f"{value:.6f}" for value in score.token_log_probabilities))
    return "\t".join(columns)

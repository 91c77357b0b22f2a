"""Resumable scoring and alignment of parallel text in chunks: see `translation_files`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.compressed_files import check_output, stream_name
from ..base.digests import model_digest
from ..data.sources import EMPTY, Corpus, ParallelLine
from ..inputs_random_transformer import CHUNK_SIZE, check_choice, drop_none
from .alignments import Aligner, pharaoh_line
from .scoring import Pair, PairModel, PairScore, Scorer
from .translation_files import FORMATS, write_in_parts


def score_file(
    corpus: Corpus,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    alignments: bool = False,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Score parallel text; line n of the output is the score of pair n, see `score_line`, or has its links.

    A pair with a blank side has an empty line. Other invalid lines are an error before the first score.

    Resumes after an interruption and shares the chunks with other processes like `translate_file`.

    Args:
        corpus: the pairs, which are read once to check them, and again to score them.
        output_file: the file to write or to replace.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        alignments: write the links of each pair instead, such as `0-0 1-2` (Pharaoh format).
        output_format: `"text"` or `"jsonl"`, of scores.
        chunk_size: pairs that are sorted by length together, and lost if the process is killed before the chunk is
            complete.
        restart: see `translate_file`, as for the next argument.
        progress: show a progress bar on stderr.
        **options: those of `score_pairs`, such as `token_scores`, or of `alignments`. After the error of a text that is
            too long, the same call with `truncation=True` resumes.

    Raises:
        ValueError: an argument or a line of the corpus is invalid, or the parts of an earlier call belong to a
            different job.
        OSError: a file cannot be read or written.
    """
    check_choice(FORMATS, output_format=output_format)
    if alignments and output_format != "text":
        raise ValueError(f"output_format must be text with alignments, got {output_format!r}.")
    pairs: PairModel = (Aligner if alignments else Scorer)(model, tokenizer, **options)
    write = pharaoh_line if alignments else partial(score_line, output_format=output_format)

    def describe() -> dict[str, Any]:
        check_output("output_file", output_file, **corpus.files)
        described = {"model": model_digest(model, tokenizer), "languages": asdict(pairs.languages)}
        return {**described, "alignments": alignments, "output_format": output_format, **pairs.recorded}

    def process(chunk: list[Any], first: int, update: Callable[[int], Any]) -> Iterator[str]:
        return map(write, pairs(chunk, first, update))

    job: dict[str, Any] = {"chunk_size": chunk_size, "restart": restart, "progress": progress, "unit": "pair"}
    write_in_parts(output_file, partial(valid_pairs, corpus), describe, process, str(corpus), model.device, **job)


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

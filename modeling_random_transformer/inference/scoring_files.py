"""Resumable scoring and alignment of parallel text by one or more processes, in chunks: see `translation.jobs`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import EMPTY, Corpus, ParallelLine, ParallelText
from ..pipeline_random_transformer import CHUNK_SIZE, check_positive
from ..utils.compressed_files import STANDARD_STREAM
from .alignments import Aligner, pharaoh_line
from .jobs import check_output, fingerprint, run_job, select_chunks
from .parts import Job
from .scoring import PairScore, Scorer

Pair = tuple[str, str]


def score_file(
    corpus: Corpus,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_format: str = "text",
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    max_batch_tokens: int = 4096,
    token_scores: bool = False,
    truncation: bool = False,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
) -> None:
    """Score parallel text; line n of the output is the score of pair n, as `score_format` writes it.

    A pair with a blank side has no score. Other invalid lines are an error before the first score.

    Resumes after an interruption and shares the chunks with other processes like `translate_file`.

    Args:
        corpus: the pairs, which are read once to check them, and again to score them.
        output_file: the file to write or to replace.
        model: any model of `AutoModelForSeq2SeqLM`, the same in every process.
        tokenizer: its tokenizer.
        output_format: `"text"` or `"jsonl"`.
        src_lang: see `score_pairs`, as for the following arguments.
        tgt_lang: language code of the targets.
        max_batch_tokens: limit on the size of a batch.
        token_scores: write the log-probability of each token too.
        truncation: truncate texts that are too long. After the error of such a text, the same call with `True` resumes.
        chunk_size: pairs that are sorted by length together, and lost if the process is killed before the chunk is
            complete.
        restart: discard the parts of an earlier call.
        progress: show a progress bar on stderr; `None` shows it after a delay.

    Raises:
        ValueError: an argument or a line of the corpus is invalid, or the parts of an earlier call belong to a
            different job.
        OSError: a file cannot be read or written.
    """
    write = score_format(output_format)
    scorer = Scorer(model, tokenizer, max_batch_tokens, truncation, src_lang, tgt_lang, token_scores=token_scores)
    options = {"output_format": output_format, "token_scores": token_scores}
    process_file(corpus, output_file, scorer, write, options, chunk_size, restart, progress)


def align_file(
    corpus: Corpus,
    output_file: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    layer: int = -1,
    step: str = "output",
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    max_batch_tokens: int = 4096,
    truncation: bool = False,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
) -> None:
    """Align parallel text; line n of the output has the links of pair n, such as `0-0 1-2` (Pharaoh format).

    A pair with a blank side has no links.

    Arguments and errors are those of `score_file`, `layer` and `step` those of `alignments`.
    """
    aligner = Aligner(model, tokenizer, max_batch_tokens, truncation, src_lang, tgt_lang, layer=layer, step=step)
    options = {"alignments": [layer, step]}
    process_file(corpus, output_file, aligner, pharaoh_line, options, chunk_size, restart, progress)


def process_file(
    corpus: Corpus,
    output_file: str | PathLike,
    process: Scorer | Aligner,
    write: Callable[[Any], str],
    options: dict[str, Any],
    chunk_size: int,
    restart: bool,
    progress: bool | None,
) -> None:
    """Write one line per pair; see `score_file`. The options that affect the output must be the same to resume."""
    check_positive(chunk_size=chunk_size)
    options = {**options, "languages": process.languages}

    def describe() -> Job:
        if isinstance(corpus, ParallelText):
            check_output(Path(output_file), source=corpus.source, target=corpus.target)
        lines, digest = describe_pairs(corpus)
        starts = list(range(0, lines, chunk_size))
        return Job(lines, digest, starts, chunk_size, fingerprint(process.model, process.tokenizer), options)

    def chunks(job: Job, numbers: Iterator[int], update: Callable[[int], Any]) -> Iterator[tuple[int, list[str]]]:
        pairs, process_chunk = valid_pairs(corpus), skip_blank(process)
        for number, chunk in select_chunks(pairs, job, numbers, str(corpus)):
            first = job.starts[number] + 1
            results = process_chunk(chunk, range(first, first + len(chunk)), "line")
            update(len(chunk))
            yield number, list(map(write, results))

    run_job(Path(output_file), process.model, describe, chunks, restart=restart, progress=progress, unit="pair")


def describe_pairs(corpus: Corpus) -> tuple[int, str]:
    """The number of pairs and a digest of their texts; raises a `ValueError` for the first invalid line."""
    count, digest = 0, hashlib.sha256()
    for pair in valid_pairs(corpus):
        count += 1
        digest.update(json.dumps(pair).encode())
    return count, digest.hexdigest()


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
            name = "stdin" if str(corpus) == STANDARD_STREAM else corpus
            raise ValueError(f"{name} must contain valid pairs only, but line {line.number} is {line.reason}.")


def skip_blank(process: Scorer | Aligner) -> Callable[[Sequence[Pair | None], Sequence[int], str], list[Any]]:
    """`process` with the result `None` for `None`."""

    def call(pairs: Sequence[Pair | None], numbers: Sequence[int], unit: str) -> list[Any]:
        given = {number: pair for number, pair in zip(numbers, pairs, strict=True) if pair is not None}
        results = dict(zip(given, process(list(given.values()), list(given), unit) if given else [], strict=True))
        return [results.get(number) for number in numbers]

    return call


def score_format(name: str) -> Callable[[PairScore | None], str]:
    """The function that writes a score as one line.

    `"text"`: log-probability and number of tokens, separated by a tab, then the log-probabilities of the tokens,
    separated by spaces, if they were requested. `"jsonl"`: an object with the fields of `PairScore`.

    The line of `None`, for a pair with a blank side, is empty; in JSONL, its log-probability is `null` with 0 tokens.
    """
    formats: dict[str, Callable[[PairScore | None], str]] = {"text": text_line, "jsonl": json_line}
    if name not in formats:
        raise ValueError(f"output_format must be one of {', '.join(formats)}, got {name!r}.")
    return formats[name]


def text_line(score: PairScore | None) -> str:
    if score is None:
        return ""
    columns = [f"{score.log_probability:.6f}", str(score.tokens)]
    if score.token_log_probabilities is not None:
        columns.append(" ".join(f"{value:.6f}" for value in score.token_log_probabilities))
    return "\t".join(columns)


def json_line(score: PairScore | None) -> str:
    if score is None:
        return json.dumps({"log_probability": None, "tokens": 0})
    fields: dict[str, Any] = asdict(score)
    return json.dumps({name: value for name, value in fields.items() if value is not None})

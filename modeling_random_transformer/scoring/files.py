"""Resumable scoring and alignment of parallel text by one or more processes, in chunks: see `translation.jobs`."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import Corpus, InvalidLine, Line, ParallelLine, ParallelText
from ..pipeline_random_transformer import CHUNK_SIZE, check_positive
from ..translation.jobs import check_output, fingerprint, run_job, select_chunks
from ..translation.parts import Job
from .alignments import Aligner, pharaoh_line
from .pairs import PairScore, Scorer

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
        pairs = valid_pairs(corpus.lines(), str(corpus))
        for number, chunk in select_chunks(pairs, job, numbers, str(corpus)):
            first = job.starts[number] + 1
            results = process(chunk, range(first, first + len(chunk)), "line")
            update(len(chunk))
            yield number, list(map(write, results))

    run_job(Path(output_file), process.model, describe, chunks, restart=restart, progress=progress, unit="pair")


def describe_pairs(corpus: Corpus) -> tuple[int, str]:
    """The number of pairs and a digest of their texts; raises a `ValueError` for the first invalid line."""
    count, digest = 0, hashlib.sha256()
    for source, target in valid_pairs(corpus.lines(), str(corpus)):
        count += 1
        digest.update(json.dumps([source, target]).encode())
    return count, digest.hexdigest()


def valid_pairs(lines: Iterator[Line], name: str) -> Iterator[Pair]:
    """The texts of parallel lines.

    Raises:
        ValueError: a line is invalid; the message gives its number.
    """
    for line in lines:
        if isinstance(line, InvalidLine):
            raise ValueError(f"{name} must contain valid pairs only, but line {line.number} is {line.reason}.")
        assert isinstance(line, ParallelLine)
        yield line.source, line.target


def score_format(name: str) -> Callable[[PairScore], str]:
    """The function that writes a score as one line.

    `"text"`: log-probability and number of tokens, separated by a tab, then the log-probabilities of the tokens,
    separated by spaces, if they were requested. `"jsonl"`: an object with the fields of `PairScore`.
    """
    formats: dict[str, Callable[[PairScore], str]] = {"text": text_line, "jsonl": json_line}
    if name not in formats:
        raise ValueError(f"output_format must be one of {', '.join(formats)}, got {name!r}.")
    return formats[name]


def text_line(score: PairScore) -> str:
    columns = [f"{score.log_probability:.6f}", str(score.tokens)]
    if score.token_log_probabilities is not None:
        columns.append(" ".join(f"{value:.6f}" for value in score.token_log_probabilities))
    return "\t".join(columns)


def json_line(score: PairScore) -> str:
    fields: dict[str, Any] = asdict(score)
    return json.dumps({name: value for name, value in fields.items() if value is not None})

"""Resumable scoring and alignment of parallel text in chunks: see `translation_files`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import EMPTY, Corpus, ParallelLine, ParallelText
from ..inputs_random_transformer import CHUNK_SIZE, LanguageTags, check_positive, name_lines_in_errors, renumber_errors
from ..utils.compressed_files import STANDARD_STREAM
from .alignments import Aligner, pharaoh_line
from .scoring import PairScore, Scorer
from .translation import progress_bar
from .translation_files import check_output, model_digest, open_parts

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
    **job: Any,
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
        **job: `chunk_size=1000` (pairs that are sorted by length together, and lost if the process is killed before the
            chunk is complete), `restart` and `progress`; see `translate_file`.

    Raises:
        ValueError: an argument or a line of the corpus is invalid, or the parts of an earlier call belong to a
            different job.
        OSError: a file cannot be read or written.
    """
    write = score_format(output_format)
    languages = LanguageTags.of_pair(tokenizer, src_lang, tgt_lang)
    scorer = Scorer(model, tokenizer, languages, max_batch_tokens, truncation, token_scores=token_scores)
    options = {"output_format": output_format, "token_scores": token_scores}
    write_chunks(corpus, output_file, scorer, write, options, **job)


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
    **job: Any,
) -> None:
    """Align parallel text; line n of the output has the links of pair n, such as `0-0 1-2` (Pharaoh format).

    A pair with a blank side has no links.

    Arguments and errors are those of `score_file`, `layer` and `step` those of `alignments`.
    """
    languages = LanguageTags.of_pair(tokenizer, src_lang, tgt_lang)
    aligner = Aligner(model, tokenizer, languages, max_batch_tokens, truncation, layer=layer, step=step)
    write_chunks(corpus, output_file, aligner, pharaoh_line, {"alignments": [layer, step]}, **job)


def write_chunks(
    corpus: Corpus,
    output_file: str | PathLike,
    process: Scorer | Aligner,
    write: Callable[[Any], str],
    options: dict[str, Any],
    *,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
) -> None:
    """Write one line per pair; see `score_file`. The options that affect the output must be the same to resume."""
    check_positive(chunk_size=chunk_size)

    def describe() -> dict[str, Any]:
        if isinstance(corpus, ParallelText):
            check_output(output_file, source=corpus.source, target=corpus.target)
        lines, digest = digest_pairs(corpus)
        model = model_digest(process.model, process.tokenizer)
        return {"lines": lines, "input": digest, "model": model, "languages": asdict(process.languages), **options}

    with (
        open_parts(output_file, describe, process.model.device, chunk_size, restart) as parts,
        progress_bar(range(parts.share), progress if parts.shows_progress else False, unit="pair") as bar,
    ):
        for number, pairs in parts.own(valid_pairs(corpus), corpus):
            with name_lines_in_errors(str(corpus), number * chunk_size):
                results = process_given(pairs, process)
            parts.write(number, map(write, results))
            bar.update(len(pairs))


def digest_pairs(corpus: Corpus) -> tuple[int, str]:
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


def process_given(pairs: Sequence[Pair | None], process: Scorer | Aligner) -> list[Any]:
    """The results of pairs; `None` for `None`."""
    results: list[Any] = [None] * len(pairs)
    given = [(i, pair) for i, pair in enumerate(pairs) if pair is not None]
    if given:
        indices, present = zip(*given, strict=True)
        with renumber_errors(indices):
            found = process(present)
        for i, result in zip(indices, found, strict=True):
            results[i] = result
    return results


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

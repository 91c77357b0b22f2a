"""What back-translation and distillation have in common: the stages of a job, and texts that a model translates."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import Languages
from ..data.validation import ValidationReport
from ..inference.translation import TranslationOptions, progress_bar
from ..inference.translation_files import model_digest, plain_options, translate_file
from ..inputs_random_transformer import (
    CHUNK_SIZE,
    LanguageTags,
    check_positive,
    chunks,
    encode_texts,
    source_limit,
    tokenizer_languages,
)
from ..jobs import Job, Stage, changes
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..utils.atomic_files import new_file
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from ..utils.text import encode_lines, one_line, read_lines

BLANK = "blank"


def begin(job: Job, name: str, inputs: dict[str, Any], *, restart: bool, may_change: bool) -> tuple[Stage, bool]:
    """Begin a stage, and whether its files are made anew: with `restart`, or if inputs that may change have changed."""
    earlier = job.stages.get(name)
    is_changed = earlier is not None and bool(changes(earlier.inputs, json.loads(json.dumps(inputs))))
    is_new = restart or (may_change and is_changed)
    return job.begin(name, inputs, restart=is_new), is_new


def run_stage(
    record: Path,
    name: str,
    inputs: Callable[[], dict[str, Any]],
    work: Callable[[bool], dict[str, Any] | None],
    files: Sequence[Path],
    *,
    restart: bool = False,
    may_change: bool = False,
) -> dict[str, Any]:
    """Do the work of a stage in every process, unless an earlier call has finished it with the same inputs.

    Args:
        record: the file of the job.
        name: the name of the stage.
        inputs: returns what determines its files; called in the first process.
        work: makes the files, from the first text if its argument is true, and returns facts for the record.
        files: the files.
        restart: make the files anew.
        may_change: make the files anew if the inputs have changed, which is an error by default.

    Returns:
        The facts.

    Raises:
        ValueError: the inputs have changed.
    """

    def begin_in_record() -> tuple[bool, dict[str, Any], bool]:
        stage, is_new = begin(Job(record), name, inputs(), restart=restart, may_change=may_change)
        return stage.is_finished, stage.facts, is_new

    def finish(facts: dict[str, Any]) -> None:
        job = Job(record)
        Stage(job, job.stages[name]).finish(files, **facts)

    is_finished, facts, is_new = call_on_main_process(begin_in_record)
    if not is_finished:
        facts = work(is_new) or {}
        call_on_main_process(lambda: finish(facts))
    return facts


def write_selection(
    path: Path,
    lines: Iterable[str],
    pipe: Seq2SeqPipeline,
    report: ValidationReport,
    *,
    max_tokens: int | None = None,
    src_lang: str | None = None,
    progress: bool | None = None,
) -> None:
    """Write the lines of monolingual text that are neither blank nor too long for a model.

    Args:
        path: the file to write, which is replaced only if a line can be translated.
        lines: the lines.
        pipe: the pipeline of the model.
        report: the report that counts the lines.
        max_tokens: a limit on the tokens of a line, below that of the tokenizer and the model.
        src_lang: language code of the lines; `None` for that of the tokenizer.
        progress: show a progress bar on stderr; `None` shows it after a delay.

    Raises:
        ValueError: `max_tokens` is not positive, no line can be translated, or a line is not UTF-8.
    """
    check_positive(or_none=True, max_tokens=max_tokens)
    limit, _ = source_limit(pipe.tokenizer, pipe.positions, None)
    limit = min(limit, max_tokens or limit)
    with (
        progress_bar(lines, progress, "line") as bar,
        new_file(path) as file,
        LanguageTags(src_lang).set(pipe.tokenizer),
    ):
        for chunk in chunks(map(one_line, lines), CHUNK_SIZE):
            lengths = map(len, encode_texts(pipe.tokenizer, chunk, verbose=False)["input_ids"])
            for text, length in zip(chunk, lengths, strict=True):
                report.lines += 1
                if not text.strip():
                    report.add(BLANK, report.lines)
                elif length > limit:
                    report.add(f"of more than {limit:,} tokens", report.lines)
                else:
                    file.writelines(encode_lines([text]))
            bar.update(len(chunk))
        if not report.valid:
            raise ValueError(f"{report.name} must have a line that can be translated, got {report}.")


def translate_once(
    record: Path,
    source: Path,
    output: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """`translate_file` as a stage of a job; see `run_stage` and `translate_file`."""
    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    pipe = settings.pipeline(model, tokenizer)

    def inputs() -> dict[str, Any]:
        described = {"texts": file_digest(source), "model": model_digest(model, tokenizer)}
        return {**described, "chunk_size": chunk_size, "format": output_format, **plain_options(pipe, settings)}

    def work(is_new: bool) -> None:
        job: dict[str, Any] = {
            "output_format": output_format,
            "chunk_size": chunk_size,
            "restart": is_new,
            "progress": progress,
        }
        translate_file(source, output, model, tokenizer, **job, **options)

    run_stage(record, "translation", inputs, work, [output], restart=restart)


def language_options(tokenizer: PreTrainedTokenizerBase, languages: Languages | None) -> dict[str, Any]:
    """The options `src_lang` and `tgt_lang` of `translate`; none for a tokenizer without language tags."""
    if languages is None or not tokenizer_languages(tokenizer):
        return {}
    return dict(zip(("src_lang", "tgt_lang"), languages, strict=True))


def read_translations(source: Path, output: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file and their translations, without blank translations."""
    with open(source, "rb") as texts, open(output, "rb") as translations:
        for text, translation in zip(read_lines(texts), read_lines(translations), strict=True):
            if translation.strip():
                yield text, translation

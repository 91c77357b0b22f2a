"""What back-translation and distillation have in common: the stages of a job, and texts that a model translates."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base import file_digest
from ..base.atomic_files import new_files
from ..base.digests import model_digest
from ..base.distributed import call_on_main_process
from ..base.jobs import RESTART, Job, Stage
from ..base.text import encode_lines, one_line
from ..data.validation import ValidationReport
from ..inference.translation import open_pipeline
from ..inference.translation_files import Parts, plain_options, translate_file
from ..inputs_random_transformer import CHUNK_SIZE, LanguageTags, chunks, encode_texts, source_limit
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..tokenization_random_transformer import is_blank

RECORD = "job.json"  # of all stages


def run_stage(
    record: Path,
    name: str,
    inputs: dict[str, Any],
    work: Callable[[], dict[str, Any] | None],
    files: Iterable[Path] = (),
    *,
    everywhere: bool = False,
    is_used: bool = True,
    restart: bool = False,
    may_change: bool = False,
    advice: str = RESTART,
) -> dict[str, Any]:
    """Do the work of a stage, unless an earlier call has finished it with the same inputs.

    Args:
        record: the file of the job.
        name: the name of the stage.
        inputs: what determines its files.
        work: makes the files, and returns facts for the record.
        files: the files; an iterator is read after the work.
        everywhere: every process does the work, not only the first one.
        is_used: see `Job.begin`.
        restart: forget the stage of an earlier call.
        may_change: make the files anew if the inputs have changed, which is an error by default.
        advice: see `Job`.

    Returns:
        The facts, in every process.

    Raises:
        ValueError: the inputs have changed.
    """
    options: dict[str, Any] = {"restart": restart, "may_change": lambda *_: may_change, "is_used": is_used}
    stage: Stage = call_on_main_process(lambda: Job(record, advice).begin(name, inputs, **options))
    if not stage.is_finished:
        facts = (work() if everywhere else call_on_main_process(work)) or {}
        call_on_main_process(lambda: stage.finish(files, **facts))
        stage.facts.update(facts)
    return stage.facts


def write_pairs(pairs: Iterable[tuple[str, str]], files: Sequence[Path]) -> int:
    """Write pairs as aligned text, and return their number."""
    files[0].parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with new_files(files) as opened:
        for pair in pairs:
            count += 1
            for file, text in zip(opened, pair, strict=True):
                file.writelines(encode_lines([text]))
    return count


def translate_lines(
    lines: Iterable[str],
    selected: Path,
    output: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: dict[str, Any],
    *,
    name: str,
    max_tokens: int | None,
    **job: Any,
) -> ValidationReport:
    """Select the lines of monolingual text that are neither blank nor too long for a model, and translate them.

    The stage `"translation"` of the job in the folder of both files; see `run_stage`.

    Args:
        lines: the text, which is read again in each call.
        selected: the file of the selected lines.
        output: the file of their translations.
        model: the model.
        tokenizer: its tokenizer.
        options: the options of `translate`.
        name: name of the lines in the report.
        max_tokens: a limit on the tokens of a line, below that of the tokenizer and the model; `None` for none.
        **job: `output_format`, `chunk_size`, `restart` and `progress` of `translate_file`.

    Returns:
        The lines that are not selected.

    Raises:
        ValueError: no line can be translated, or a line is not UTF-8.
    """
    pipe, settings = open_pipeline(model, tokenizer, **options)
    tags = LanguageTags(options.get("src_lang"))
    report = call_on_main_process(lambda: select_lines(lines, selected, pipe, tags, name, max_tokens))
    recorded = {key: value for key, value in job.items() if key not in ("restart", "progress")}
    inputs = {"texts": file_digest(selected), "model": model_digest(model, tokenizer), **recorded}
    inputs |= plain_options(pipe, settings)
    work = partial(translate_file, selected, output, model, tokenizer, **job, **options)
    record = selected.with_name(RECORD)
    earlier = call_on_main_process(lambda: Job(record).stages.get("translation"))
    is_finished = earlier is not None and earlier.is_finished
    # An error before the first chunk has no result to protect.
    restarts: dict[str, Any] = {
        "restart": job["restart"],
        "may_change": not is_finished and not Parts(output).has_work(),
    }
    run_stage(record, "translation", inputs, work, [output], everywhere=True, **restarts)
    return report


def select_lines(
    lines: Iterable[str], selected: Path, pipe: Seq2SeqPipeline, tags: LanguageTags, name: str, max_tokens: int | None
) -> ValidationReport:
    """Write the selected lines; see `translate_lines`. A file is replaced only if a line can be translated."""
    report = ValidationReport(name)
    limit, _ = source_limit(pipe.tokenizer, pipe.positions, None)
    limit = min(limit, max_tokens or limit)
    selected.parent.mkdir(parents=True, exist_ok=True)
    with new_files([selected]) as [file], tags.set(pipe.tokenizer):
        for chunk in chunks(map(one_line, lines), CHUNK_SIZE):
            encoded = encode_texts(pipe.tokenizer, chunk, verbose=False)
            for text, ids in zip(chunk, encoded["input_ids"], strict=True):
                report.lines += 1
                if is_blank(text):
                    report.add("blank", report.lines)
                elif len(ids) > limit:
                    report.add(f"of more than {limit:,} tokens", report.lines)
                else:
                    file.writelines(encode_lines([text]))
        if not report.valid:
            raise ValueError(f"{name} must have a line that can be translated, got {report}.")
    return report

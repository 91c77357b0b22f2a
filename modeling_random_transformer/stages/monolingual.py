"""Translates monolingual text and writes pairs as aligned text, for back-translation and distillation."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.compressed_files import create_binaries
from ..base.digests import file_digest, model_digest
from ..base.distributed import call_on_main_process
from ..base.files import StrPath, encode_lines, new_files, one_line
from ..base.formats import file_format
from ..base.jobs import Job
from ..base.saved_files import JOB_RECORD
from ..data.readers import TEXT_KEY
from ..data.sources import Pair
from ..data.validation import ValidationReport
from ..inference.translation import Translator
from ..inference.translation_files import plain_options, translate_file
from ..inputs_random_transformer import CHUNK_SIZE, chunks, encode_texts, source_text
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..tokenization_random_transformer import is_blank


def check_text_key(key: str, paths: Iterable[StrPath]) -> None:
    """Raise a `ValueError` if the key of a column was chosen, but no file has columns."""
    if key != TEXT_KEY and all(file_format(path) == "text" for path in paths):
        raise ValueError(f"text_key must be unset without a file with columns, got {key!r}.")


def write_pairs(pairs: Iterable[Pair], files: Sequence[Path], temporary_folder: Path | None = None) -> int:
    """Write pairs as aligned text, and return their number; see `create_binaries`."""
    files[0].parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with create_binaries(files, temporary_folder) as opened:
        for pair in pairs:
            count += 1
            for file, line in zip(opened, encode_lines(pair), strict=True):
                file.write(line)
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
    max_line_tokens: int | None,
    restart: bool,
    progress: bool | None = None,
    **file_options: Any,
) -> ValidationReport:
    """Select the lines of monolingual text that are neither blank nor too long for a model, and translate them.

    This is the stage `"translation"` of the job in the folder of both files; see `Job.run`.

    Args:
        lines: the text, which is read again in each call.
        selected: the file of the selected lines.
        output: the file of their translations.
        model: the model.
        tokenizer: its tokenizer.
        options: the options of `translate`.
        name: name of the lines in the report.
        max_line_tokens: a limit on the tokens of a line, in addition to the limit of the tokenizer and the model.
        restart: discard the translations of an earlier call.
        progress: see `translate_file`.
        **file_options: `output_format` and `chunk_size` of `translate_file`.

    Returns:
        The report of the lines, with the counts of skipped lines.

    Raises:
        ValueError: no line can be translated, or a line is not UTF-8.
    """
    translator = Translator(model, tokenizer, **options)
    pipe = translator.pipe
    src_lang = options.get("src_lang")
    report = call_on_main_process(lambda: select_lines(lines, selected, pipe, src_lang, name, max_line_tokens))
    inputs = {"texts": file_digest(selected), "model": model_digest(model, tokenizer), **file_options}
    inputs |= plain_options(translator)
    translate = partial(
        translate_file,
        selected,
        output,
        model,
        tokenizer,
        restart=restart,
        progress=progress,
        **file_options,
        **options,
    )
    record = selected.with_name(JOB_RECORD)
    Job(record).run("translation", inputs, translate, [output], everywhere=True, restart=restart)
    return report


def select_lines(
    lines: Iterable[str],
    selected: Path,
    pipe: Seq2SeqPipeline,
    src_lang: str | None,
    name: str,
    max_line_tokens: int | None,
) -> ValidationReport:
    """Write the selected lines; see `translate_lines`. A file is replaced only if a line can be translated."""
    report = ValidationReport(name)
    limit, _ = pipe.source_limit(None)
    limit = min(limit, max_line_tokens or limit)
    selected.parent.mkdir(parents=True, exist_ok=True)
    with new_files([selected]) as [file]:
        for chunk in chunks(map(one_line, lines), CHUNK_SIZE):
            texts = [source_text(text, pipe.tokenizer, pipe.model.config) for text in chunk]
            encoded = encode_texts(pipe.tokenizer, texts, src_lang=src_lang, verbose=False)
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

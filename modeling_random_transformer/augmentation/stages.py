"""A translated file as a stage of back-translation and distillation, which is not repeated when it is finished."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import Languages
from ..inference.jobs import fingerprint
from ..inference.translation import TranslationOptions
from ..inference.translation_files import plain_options, translate_file
from ..pipeline_random_transformer import CHUNK_SIZE, check_positive, tokenizer_languages
from ..utils.atomic_files import write_atomically
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from ..utils.text import read_lines


def translate_once(
    source: Path,
    output: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_format: str = "text",
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    is_in_use: bool = False,
    **options: Any,
) -> None:
    """`translate_file`, which does nothing if the output is the finished translation of an earlier call.

    The file `<output>.json` describes the finished translation.

    Args:
        source: the file to translate.
        output: the file to write.
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        output_format: see `translate_file`, as for the following arguments.
        chunk_size: lines of a chunk.
        restart: translate again from the first line.
        progress: show a progress bar.
        is_in_use: raise an error instead of replacing the output by that of another job.
        **options: those of `translate`.

    Raises:
        ValueError: see `translate_file`; or the output of another job is in use.
        OSError: a file cannot be read or written.
    """
    check_positive(chunk_size=chunk_size)
    settings = TranslationOptions.from_kwargs(**options)
    record = output.with_name(f"{output.name}.json")

    def describe() -> tuple[str, bool]:
        options = plain_options(settings.pipeline(model, tokenizer), settings) | {"chunk_size": chunk_size}
        if output_format != "text":
            options["output_format"] = output_format
        described = {"input": file_digest(source), "model": fingerprint(model, tokenizer), "options": options}
        job = json.dumps(described, sort_keys=True)
        if not restart and output.is_file() and record.is_file() and record.read_text(encoding="utf-8") == job:
            return job, True
        if is_in_use:
            raise ValueError(
                f"{output} must be the translation of the same texts by the same model with the same options, since a "
                "model has been trained on it, got another one or none: use another output folder."
            )
        record.unlink(missing_ok=True)
        return job, False

    job, is_finished = call_on_main_process(describe)
    if not is_finished:
        translate_file(
            source,
            output,
            model,
            tokenizer,
            output_format=output_format,
            chunk_size=chunk_size,
            restart=restart,
            progress=progress,
            **options,
        )
        call_on_main_process(lambda: write_atomically(record, [job.encode()]))


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

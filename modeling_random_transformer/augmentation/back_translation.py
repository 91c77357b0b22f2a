"""Back-translation (Sennrich et al. 2016): synthetic sources for monolingual text of the target language.

The stages: select lines → translate them with a reverse model (resumable) → add noise and the tag → write the files.
The files of the first two stages and their record are in the folder `<output_source>.work`, which exists until the
outputs are complete.
"""

import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.readers import TEXT_KEYS, read_texts
from ..data.validation import ValidationReport
from ..inference.translation import TranslationOptions
from ..utils.compressed_files import check_readable, write_binary
from ..utils.distributed import call_on_main_process, exclusive
from ..utils.text import encode_lines
from .stages import read_translations, translate_once, write_selection

TAG = "<bt>"
# Files of the working folder: the record of the job, its lock, the lines to translate, and their translations.
RECORD, LOCK, SELECTED, TRANSLATED = "job.json", "job.lock", "target.txt", "source.txt"
# A file of the working folder, or the temporary file of an interrupted write.
OWN_FILE = re.compile(r"job\.(json|lock)|(source|target)\.txt(\..+)?|.+\.[0-9a-f]{8}\.tmp")
# The options of `generate()` of each method (Edunov et al. 2018). top_k=0: the complete vocabulary.
METHODS: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 4},
    "sampling": {"num_beams": 1, "do_sample": True, "top_k": 0, "temperature": 1.0},
    "noised_beam": {"num_beams": 4},
}
# Noise: words are deleted, replaced by a filler and reordered (Lample et al. 2018), as often as in Edunov et al. 2018.
DELETION, REPLACEMENT, DISTANCE = 0.1, 0.1, 3
FILLER = "<blank>"  # one token, if it is declared with --special_tokens


@dataclass
class BackTranslationReport:
    """The result of `back_translate`.

    Attributes:
        selection: the lines of the monolingual text, and those that are skipped.
        empty: lines whose translation is empty, which are skipped too.
        pairs: pairs of the synthetic corpus.
        seconds: time of this call.
    """

    selection: ValidationReport
    empty: int
    pairs: int
    seconds: float

    def __str__(self) -> str:
        rate = self.pairs / max(self.seconds, 1e-9)
        return (
            f"{self.pairs:,} synthetic pairs ({rate:,.1f} per second). {self.selection}; {self.empty:,} with an empty "
            "translation."
        )


def back_translate(
    input_file: str | PathLike,
    output_source: str | PathLike,
    output_target: str | PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    text_key: str = TEXT_KEYS[0],
    method: str = "beam",
    tag: str | None = TAG,
    seed: int = 0,
    max_tokens: int | None = None,
    restart: bool = False,
    **options: Any,
) -> BackTranslationReport:
    """Make a synthetic parallel corpus from monolingual text of the target language and a target-to-source model.

    Line n of `output_source` is a translation of line n of `output_target`, which contains the lines of the input in
    their order, without those that are blank, too long for the model or have an empty translation. Both files are
    written when they are complete.

    The same call resumes after an interruption, and `accelerate launch` distributes the translation over processes: see
    `translate_file`. Tag and noise may then differ.

    Args:
        input_file: monolingual UTF-8 text of the target language, one text per line, or in a column of a `.tsv`,
            `.csv`, `.jsonl` or `.parquet` file; `-` is standard input, which a call that resumes reads again. Files may
            be compressed (`.gz`, `.zst`).
        output_source: the file of synthetic sources, to write or to replace.
        output_target: the file of their targets, to write or to replace.
        model: a model that translates the target language to the source language.
        tokenizer: its tokenizer.
        text_key: the column of the text: a name, or a number from 1; see `read_texts`.
        method: `"beam"`; `"sampling"` from the complete distribution; or `"noised_beam"`, which deletes and replaces
            words of the beam's translation with probability 0.1 each, and moves words by up to 3 positions (Edunov et
            al. 2018).
        tag: written before each synthetic source, separated by a space (Caswell et al. 2019); `None` for no tag. The
            tokenizer of the model that is trained on the corpus should have it as a special token.
        seed: random seed of sampling and noise.
        max_tokens: skip lines with more tokens; `None` for the limit of the tokenizer and the model.
        restart: discard the files of an interrupted call with the same outputs.
        **options: `chunk_size` and `progress` of `translate_file`, and the options of `translate`, such as `num_beams`,
            `temperature`, `max_batch_tokens`, `src_lang` and `tgt_lang`.

    Raises:
        ValueError: an argument is invalid, a line is not UTF-8, no line can be translated, another call with one of
            the outputs is in progress, or the files of an earlier call belong to a different job.
        OSError: a file cannot be read or written.
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if tag is not None and (not tag or tag.split() != [tag]):
        raise ValueError(f"tag must be None or text without whitespace, got {tag!r}.")
    monolingual, source, target = Path(input_file), *(Path(os.path.realpath(x)) for x in (output_source, output_target))
    call_on_main_process(lambda: check_files(monolingual, source, target))
    job = {name: options.pop(name) for name in ("chunk_size", "progress") if name in options}
    options = {**METHODS[method], **options} | ({"seed": seed} if method == "sampling" else {})
    pipe = TranslationOptions.from_kwargs(**options).pipeline(model, tokenizer)
    with reserved("output_source", source) as folder, reserved("output_target", target):
        selected, translated = folder / SELECTED, folder / TRANSLATED

        def select() -> ValidationReport:
            report, texts = ValidationReport("input_file"), read_texts(monolingual, text_key)
            shown, code = job.get("progress"), options.get("src_lang")
            write_selection(selected, texts, pipe, report, max_tokens=max_tokens, src_lang=code, progress=shown)
            return report

        selection = call_on_main_process(select)
        translate_once(folder / RECORD, selected, translated, model, tokenizer, restart=restart, **job, **options)
        noise_seed = seed if method == "noised_beam" else None
        count = call_on_main_process(lambda: write_outputs(folder, source, target, tag, noise_seed))
    return BackTranslationReport(selection, selection.valid - count, count, time.perf_counter() - start)


def working_folder(output: Path) -> Path:
    """The folder with the files that exist until an output is complete."""
    return output.with_name(f"{output.name}.work")


def check_files(monolingual: Path, source: Path, target: Path) -> None:
    """Check the paths of the input and of both outputs.

    Raises:
        ValueError: the input is not a file, an output cannot be written, two of them are the same file, or the working
            folder contains files of something else.
    """
    check_readable("input_file", monolingual)
    for name, path in (("output_source", source), ("output_target", target)):
        if not path.parent.is_dir() or (path.exists() and not path.is_file()):
            raise ValueError(f"{name} must be a file, new or not, in a folder that exists, got {str(path)!r}.")
    if len({monolingual.resolve(), source, target}) < 3:
        raise ValueError(
            "input_file, output_source and output_target must be different files, got "
            f"{str(monolingual)!r}, {str(source)!r} and {str(target)!r}."
        )
    folder = working_folder(source)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = sorted(name for name in names if OWN_FILE.fullmatch(name) is None)
    if others:
        raise ValueError(f"{folder} must contain only the files of an earlier call, got others, such as {others[0]}.")


@contextmanager
def reserved(argument: str, output: Path) -> Iterator[Path]:
    """Reserve an output for this call; yields its working folder, which is removed if nothing can be resumed.

    Raises:
        ValueError: another call is in progress that writes the same file.
    """
    folder = working_folder(output)
    message = f"{argument} must not be in use, got {str(output)!r} with another call in progress."
    with exclusive(folder / LOCK, message):
        try:
            yield folder
        finally:
            if PartialState().is_main_process and folder.is_dir() and os.listdir(folder) == [LOCK]:
                shutil.rmtree(folder)


def write_outputs(folder: Path, source: Path, target: Path, tag: str | None, noise_seed: int | None) -> int:
    """Write both outputs, remove the working folder and return the number of pairs; see `add_noise_and_tag`."""

    def pairs() -> Iterator[tuple[str, str]]:
        return read_translations(folder / SELECTED, folder / TRANSLATED)

    count = sum(1 for _ in pairs())
    # The temporary files are in this folder, with which those of a killed process are removed.
    write_binary(target, encode_lines(text for text, _ in pairs()), folder if target.parent == source.parent else None)
    synthetic = add_noise_and_tag((translation for _, translation in pairs()), tag, noise_seed)
    write_binary(source, encode_lines(synthetic), folder)
    shutil.rmtree(folder)  # which contains files of these stages only, see check_files
    return count


def add_noise_and_tag(texts: Iterator[str], tag: str | None, noise_seed: int | None) -> Iterator[str]:
    """The synthetic sources; `noise_seed` is `None` for no noise."""
    for number, text in enumerate(texts, start=1):
        noised = text if noise_seed is None else add_noise(text, f"{noise_seed} {number}")
        yield noised if tag is None else f"{tag} {noised}"


def add_noise(
    text: str,
    seed: int | str,
    *,
    deletion: float = DELETION,
    replacement: float = REPLACEMENT,
    distance: int = DISTANCE,
    filler: str = FILLER,
) -> str:
    """Delete, replace and reorder words of a text; the same seed and text give the same result.

    Words are separated by whitespace, which becomes one space. At least one word is kept.

    Args:
        text: the text.
        seed: the seed of the random numbers.
        deletion: probability of deleting a word.
        replacement: probability of replacing a remaining word by the filler.
        distance: largest number of positions by which a word is moved; 0 keeps the order.
        filler: the text that replaces a word.

    Raises:
        ValueError: a probability is not between 0 and 1, or `distance` is negative.
    """
    for name, probability in (("deletion", deletion), ("replacement", replacement)):
        if not 0 <= probability <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {probability}.")
    if distance < 0:
        raise ValueError(f"distance must be at least 0, got {distance}.")
    draw = random.Random(str(seed))
    words = text.split()
    if not words:
        return ""
    kept = [word for word in words if draw.random() >= deletion] or [draw.choice(words)]
    replaced = [filler if draw.random() < replacement else word for word in kept]
    # Sorting by these positions moves no word by more than `distance`. Equal positions keep their order.
    positions = [index + draw.random() * (distance + 1) for index in range(len(replaced))]
    order = sorted(range(len(replaced)), key=positions.__getitem__)
    return " ".join(replaced[index] for index in order)

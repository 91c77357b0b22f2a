"""Back-translation (Sennrich et al. 2016): synthetic sources for monolingual text of the target language.

The stages: select lines → translate them with a reverse model (resumable) → add noise and the tag → write the files.
The files of the first two stages are in the folder `<output_source>.work`, which exists until the outputs are complete.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.readers import TEXT_KEYS, read_texts
from ..inference.translation import TranslationOptions
from ..pipeline_random_transformer import CHUNK_SIZE, Seq2SeqPipeline
from ..utils.compressed_files import check_readable, write_binary
from ..utils.distributed import call_on_main_process, exclusive
from ..utils.text import encode_lines
from .noise import add_noise
from .selection import Selection, write_selection
from .stages import read_translations, translate_once

TAG = "<bt>"
# A file of the working folder, or the temporary file of an interrupted write.
OWN_FILE = re.compile(r"(job\.lock|target\.txt|source\.txt(\.json)?|.+\.[0-9a-f]{8}\.tmp|source\.txt\.parts)")
# The options of `generate()` of each method (Edunov et al. 2018). top_k=0: the complete vocabulary.
METHODS: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 4},
    "sampling": {"num_beams": 1, "do_sample": True, "top_k": 0, "temperature": 1.0},
    "noised_beam": {"num_beams": 4},
}


@dataclass
class BackTranslationReport:
    """The result of `back_translate`.

    Attributes:
        selection: counts of the lines of the monolingual text.
        empty: lines whose translation is empty, which are skipped.
        pairs: pairs of the synthetic corpus.
        seconds: time of this call.
    """

    selection: Selection
    empty: int
    pairs: int
    seconds: float

    def __str__(self) -> str:
        rate = self.pairs / max(self.seconds, 1e-9)
        return (
            f"{self.pairs:,} synthetic pairs ({rate:,.1f} per second). {self.selection}, "
            f"{self.empty:,} with an empty translation."
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
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
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
            `.jsonl` or `.parquet` file; `-` is standard input, which a call that resumes reads again. Files may be
            compressed (`.gz`, `.zst`).
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
        chunk_size: see `translate_file`, as for the following arguments.
        restart: discard the files of an interrupted call with the same outputs.
        progress: show a progress bar on stderr.
        **options: those of `translate`, such as `num_beams`, `temperature`, `max_batch_tokens`, `src_lang` and
            `tgt_lang`.

    Raises:
        ValueError: an argument is invalid, a line is not UTF-8, no line can be translated, another call with the same
            `output_source` is in progress, or the files of an earlier call belong to a different job.
        OSError: a file cannot be read or written.
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if tag is not None and (not tag or tag.split() != [tag]):
        raise ValueError(f"tag must be None or text without whitespace, got {tag!r}.")
    files = Files(Path(input_file), Path(os.path.realpath(output_source)), Path(os.path.realpath(output_target)))
    call_on_main_process(files.check)
    options = {**METHODS[method], **options} | ({"seed": seed} if method == "sampling" else {})
    pipe = TranslationOptions.from_kwargs(**options).pipeline(model, tokenizer)
    in_use = f"output_source must not be in use, got {str(files.source)!r} with another call in progress."
    with exclusive(files.lock, in_use):
        selection = call_on_main_process(
            lambda: files.select(pipe, text_key, max_tokens, options.get("src_lang"), progress)
        )
        translate_once(
            files.selected,
            files.translated,
            model,
            tokenizer,
            chunk_size=chunk_size,
            restart=restart,
            progress=progress,
            **options,
        )
        noise_seed = seed if method == "noised_beam" else None
        count = call_on_main_process(lambda: files.write(tag, noise_seed))
    return BackTranslationReport(selection, selection.selected - count, count, time.perf_counter() - start)


@dataclass(frozen=True)
class Files:
    """The files of a back-translation, and the stages other than the translation.

    Attributes:
        monolingual: the input.
        source: the output with synthetic sources, not a symbolic link.
        target: the output with their targets, not a symbolic link.
    """

    monolingual: Path
    source: Path
    target: Path

    @property
    def folder(self) -> Path:
        """The folder of the following files."""
        return self.source.with_name(f"{self.source.name}.work")

    @property
    def lock(self) -> Path:
        """The file that a call locks, because other calls would replace the following files."""
        return self.folder / "job.lock"

    @property
    def selected(self) -> Path:
        """The lines to translate."""
        return self.folder / "target.txt"

    @property
    def translated(self) -> Path:
        """Their translations."""
        return self.folder / "source.txt"

    def check(self) -> None:
        """Check the paths.

        Raises:
            ValueError: the input is not a file, an output cannot be written, two of them are the same file, or the
                folder contains files of something else.
        """
        check_readable("input_file", self.monolingual)
        for name, path in (("output_source", self.source), ("output_target", self.target)):
            if not path.parent.is_dir() or (path.exists() and not path.is_file()):
                raise ValueError(f"{name} must be a file, new or not, in a folder that exists, got {str(path)!r}.")
        if len({self.monolingual.resolve(), self.source, self.target}) < 3:
            raise ValueError(
                "input_file, output_source and output_target must be different files, got "
                f"{str(self.monolingual)!r}, {str(self.source)!r} and {str(self.target)!r}."
            )
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        others = sorted(name for name in names if OWN_FILE.fullmatch(name) is None)
        if others:
            raise ValueError(
                f"{self.folder} must contain only the files of an earlier call, got others, such as {others[0]}."
            )

    def select(
        self,
        pipe: Seq2SeqPipeline,
        text_key: str,
        max_tokens: int | None,
        src_lang: str | None,
        progress: bool | None,
    ) -> Selection:
        """Write the lines to translate.

        Raises:
            ValueError: a line is not UTF-8, there is no such column, or no line can be translated.
        """
        lines = read_texts(self.monolingual, text_key)
        try:
            return write_selection(self.selected, lines, pipe, max_tokens, src_lang, "input_file", progress)
        except Exception:
            if [*self.folder.iterdir()] == [self.lock]:  # nothing to resume
                shutil.rmtree(self.folder)
            raise

    def write(self, tag: str | None, noise_seed: int | None) -> int:
        """Write both outputs and return the number of pairs. `noise_seed` is `None` for no noise."""
        count = sum(1 for _ in self.pairs())
        # Temporary files in this folder are removed with it, also those of a killed process.
        scratch = self.folder if self.target.parent == self.source.parent else None
        write_binary(self.target, encode_lines(target for _, target in self.pairs()), scratch)
        write_binary(self.source, encode_lines(self.synthetic_sources(tag, noise_seed)), self.folder)
        shutil.rmtree(self.folder)  # which contains files of these stages only, see check()
        return count

    def synthetic_sources(self, tag: str | None, noise_seed: int | None) -> Iterator[str]:
        """The translations with noise and tag."""
        for number, (text, _) in enumerate(self.pairs(), start=1):
            noised = text if noise_seed is None else add_noise(text, f"{noise_seed} {number}")
            yield noised if tag is None else f"{tag} {noised}"

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The translations that are not empty, and the lines that were translated."""
        return ((translation, text) for text, translation in read_translations(self.selected, self.translated))

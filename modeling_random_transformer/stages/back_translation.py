"""Back-translation (Sennrich et al. 2016): synthetic sources for monolingual text of the target language.

The stages: select lines → translate them with a reverse model (resumable) → add noise and the tag → write the files.
The files of the first two stages and their record are in the folder `<output_source>.work`, which exists until the
outputs are complete.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.distributed import call_on_main_process, exclusive
from ..base.files import STAGES_SUFFIX, StrPath, remove_if_empty, remove_written, work_folder
from ..base.flags import split_values
from ..base.formats import check_plain_text
from ..base.saved_files import JOB_LOCK, JOB_RECORD
from ..base.streams import check_output, check_readable, is_stream
from ..configuration_random_transformer import is_number
from ..data.readers import TEXT_KEY, read_texts
from ..data.sources import Pair, ParallelText, pairs_of
from ..data.validation import ValidationReport
from ..inference.translation import check_options_unset
from ..inputs_random_transformer import CHUNK_SIZE, check_choice, check_positive, check_type
from .monolingual import check_text_key, translate_lines, write_pairs

# Files of the working folder beside the record of the job: its lock, the lines to translate, and their translations.
SELECTED, TRANSLATED = "target.txt", "source.txt"
# The options of `generate()` of each method (Edunov et al. 2018). top_k=0: the complete vocabulary.
METHODS: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 4},
    "sampling": {"num_beams": 1, "do_sample": True, "top_k": 0, "temperature": 1.0},
    "noised_beam": {"num_beams": 4},
}
# Options of `translate_file` with which the lines of its output are not the translations of the lines of its input.
OTHER_OUTPUTS = ("n_best", "confidence", "output_format", "prefix_file")
# Noise: words are deleted, replaced by a filler and reordered (Lample et al. 2018), as often as in Edunov et al. 2018.
DELETION, REPLACEMENT, DISTANCE = 0.1, 0.1, 3
FILLER = "<blank>"  # a single token if --special_tokens declares it


@dataclass(frozen=True)
class BackTranslationOptions:
    """The text to translate, and the conversion of its translations to synthetic sources.

    Args:
        text_key: column of the text in a file with columns: a name, or a number from 1; see `read_texts`.
        method: `"beam"`; `"sampling"` from the complete distribution; or `"noised_beam"`, which deletes and replaces
            words of the beam's translation with probability 0.1 each, and moves words by up to 3 positions (Edunov et
            al. 2018).
        tag: first word of each synthetic source (Caswell et al. 2019); `None` for no tag. The tokenizer of the model
            that is trained on the corpus should have it as a special token.
        seed: random seed of sampling and noise.
        max_tokens: skip lines with more tokens; by default, the limit of the tokenizer and the model.

    Raises:
        ValueError: an option is invalid; the message names it.
    """

    text_key: str = TEXT_KEY
    method: str = "beam"
    tag: str | None = "<bt>"
    seed: int = field(default=0, metadata={"type": int})
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice(METHODS, method=self.method)
        if self.tag is not None and str(self.tag).split() != [self.tag]:
            raise ValueError(f"tag must be None or text without whitespace, got {self.tag!r}.")
        check_positive(or_none=True, max_tokens=self.max_tokens)
        check_type("seed", self.seed, int, "an integer")
        if self.method == "beam" and self.seed:
            raise ValueError(f"seed must be 0 with method 'beam', which draws nothing at random, got {self.seed}.")

    @classmethod
    def split(cls, options: dict[str, Any]) -> "tuple[BackTranslationOptions, dict[str, Any]]":
        """Split the options of `back_translate` into options of this class and options of `translate`."""
        values, search = split_values(cls, options)
        settings = cls(**values)
        check_options_unset(options, OTHER_OUTPUTS, "in a back-translation")
        search = METHODS[settings.method] | search
        if settings.method == "sampling":
            search["seed"] = settings.seed
        temperature = options.get("temperature")
        is_positive = is_number(temperature) and temperature > 0
        if temperature is not None and not (settings.method == "sampling" and is_positive):
            raise ValueError(
                "temperature must be positive and given with method 'sampling', "
                f"got {temperature!r} with method {settings.method!r}."
            )
        return settings, search


@dataclass
class BackTranslationReport:
    """The result of `back_translate`.

    Attributes:
        selection: the counts of lines of the monolingual text, and of skipped lines.
        pairs: number of pairs of the synthetic corpus. Lines with an empty translation are skipped too.
    """

    selection: ValidationReport
    pairs: int

    def __str__(self) -> str:
        empty = self.selection.valid - self.pairs
        return f"{self.pairs:,} synthetic pairs. {self.selection}; {empty:,} with an empty translation."


def back_translate(
    input_file: StrPath,
    output_source: StrPath,
    output_target: StrPath,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    restart: bool = False,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> BackTranslationReport:
    """Create a synthetic parallel corpus from monolingual text of the target language and a target-to-source model.

    Line n of `output_source` is a translation of line n of `output_target`. `output_target` contains the lines of the
    input in their order, without lines that are blank, too long for the model or have an empty translation. Both files
    appear when they are complete.

    The same call resumes after an interruption, with the same or another tag and noise. `accelerate launch` distributes
    the translation over processes; see `translate_file`.

    Args:
        input_file: monolingual UTF-8 text of the target language, see `read_texts`. Each call reads standard input.
        output_source: the file of synthetic sources, to write or to replace.
        output_target: the file of their targets, to write or to replace.
        model: a model that translates the target language to the source language.
        tokenizer: its tokenizer.
        restart: discard the files of an interrupted call with the same outputs.
        chunk_size: lines that are sorted by length together.
        progress: show progress bars on stderr; `None` shows them after a delay.
        **options: the fields of `BackTranslationOptions`, and the options of `translate`, such as `num_beams`,
            `temperature`, `max_batch_tokens`, `src_lang` and `tgt_lang`, except for `n_best` and `confidence`.

    Raises:
        ValueError: an argument is invalid, a line is not UTF-8, no line can be translated, another call with the same
            `output_source` is in progress, or the files of an earlier call belong to a different job.
        OSError: a file cannot be read or written.
    """
    settings, search = BackTranslationOptions.split(options)
    check_files(Path(input_file), settings.text_key, Path(output_source), Path(output_target))
    source, target = (Path(path).resolve() for path in (output_source, output_target))
    folder = work_folder(source, STAGES_SUFFIX)
    call_on_main_process(lambda: check_work_folder(folder))
    message = f"output_source must not be in use, got {str(source)!r} of another call."
    with exclusive(folder / JOB_LOCK, message):
        selection = translate_lines(
            read_texts(input_file, settings.text_key),
            folder / SELECTED,
            folder / TRANSLATED,
            model,
            tokenizer,
            search,
            name="input_file",
            max_line_tokens=settings.max_tokens,
            restart=restart,
            chunk_size=chunk_size,
            progress=progress,
        )
        count = call_on_main_process(lambda: write_outputs(folder, source, target, settings))
    return BackTranslationReport(selection, count)


def check_files(monolingual: Path, text_key: str, source: Path, target: Path) -> None:
    """Check the paths of the input and of both outputs, and the key of a column of the input.

    Raises:
        ValueError: the input is not a file, an output cannot be written, two of them are the same file, or a key was
            chosen for an input without columns.
    """
    check_readable("input_file", monolingual)
    for name, path in {"output_source": source, "output_target": target}.items():
        if is_stream(path):
            raise ValueError(f"{name} must be a file, got {str(path)!r}.")
        check_plain_text(name, path)
        check_output(name, path)
    files = {path.resolve() for path in (monolingual, source, target)}
    if len(files) < 3:
        raise ValueError(f"input_file, output_source and output_target must be different files, got {len(files)}.")
    check_text_key(text_key, [monolingual])


def check_work_folder(folder: Path) -> None:
    """Raise a `ValueError` unless the working folder is new or belongs to an earlier call."""
    if folder.exists() and not (folder / JOB_LOCK).exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} must be new or the folder of an earlier call, got other files.")


def write_outputs(folder: Path, source: Path, target: Path, settings: BackTranslationOptions) -> int:
    """Write both outputs, remove the files of the working folder and return the number of pairs."""
    translated = [ParallelText(folder / SELECTED, folder / TRANSLATED)]  # pairs without a translation are invalid
    # The temporary files are in this folder, with which those of a killed process are removed.
    temporary_folder = folder if target.parent == source.parent else None
    pairs = synthetic_pairs(pairs_of(translated), settings)
    count = write_pairs(pairs, (source, target), temporary_folder)
    remove_written(folder, *map(re.escape, (SELECTED, TRANSLATED, source.name, target.name, JOB_RECORD, JOB_LOCK)))
    remove_if_empty(folder)
    return count


def synthetic_pairs(translated: Iterable[Pair], settings: BackTranslationOptions) -> Iterator[Pair]:
    """Pairs of a synthetic source and a target. A source is a translation with the tag and the method's noise."""
    for number, (text, source) in enumerate(translated, start=1):
        if settings.method == "noised_beam":
            source = add_noise(source, f"{settings.seed} {number}")
        yield source if settings.tag is None else f"{settings.tag} {source}", text


def add_noise(text: str, seed: int | str) -> str:
    """Delete, replace and reorder words of a text; the same seed and text give the same result.

    Words are separated by whitespace, which becomes one space. A word is deleted with probability 0.1, but at least one
    word is kept. A remaining word is replaced by `<blank>` with probability 0.1. Words move by up to 3 positions.
    """
    draw = random.Random(str(seed))
    words = text.split()
    if not words:
        return ""
    kept = [word for word in words if draw.random() >= DELETION] or [draw.choice(words)]
    replaced = [FILLER if draw.random() < REPLACEMENT else word for word in kept]
    # Sorting by these keys moves no word by more than `DISTANCE`. Equal keys keep their order.
    keys = [index + draw.random() * (DISTANCE + 1) for index in range(len(replaced))]
    order = sorted(range(len(replaced)), key=keys.__getitem__)
    return " ".join(replaced[index] for index in order)

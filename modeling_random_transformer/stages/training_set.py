"""The training set of a student: the teacher's translations of texts, and optionally original pairs.

The stages: select the texts → translate them (resumable) → with `interpolate`, choose the translations nearest to
references → add the original pairs. Their files are kept, so that a finished stage is not repeated.

Sequence-level interpolation (Kim & Rush 2016, section 3.3) selects the hypothesis of beam search that is most similar
to the reference. The similarity is chrF (Popović 2015). The paper uses a smoothed sentence-level BLEU.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base import DTYPES
from ..base.digests import file_digest
from ..base.files import encode_lines, write_atomically
from ..base.jobs import Job
from ..base.saved_files import JOB_RECORD
from ..base.streams import check_readable
from ..data.readers import TEXT_KEY, read_texts
from ..data.sources import NO_LANGUAGES, Corpus, Pair, ParallelText, pairs_of
from ..data.validation import ValidationReport
from ..inference.evaluation import sentence_chrf
from ..inputs_random_transformer import MAX_HYPOTHESES, Languages, check_choice, check_positive
from ..tokenization_random_transformer import normalize
from ..training.run_record import fingerprint
from .monolingual import check_text_key, translate_lines, write_pairs


@dataclass
class DistillationArguments:
    """The teacher, the texts that it translates, and the selection of its translations.

    With `interpolate`, the target of a text is the one of the `teacher_num_beams` best translations with the highest
    chrF against a reference. The references are the targets of the original pairs (`source_file` or `train_file`) with
    this source. The target of a text without references is its best translation. `restart` applies to an interrupted
    run with the same `output_dir`.

    Args:
        teacher: saved teacher with its tokenizer; several teachers are an ensemble
        source_text: files of the texts that the teacher translates, or -
        text_key: column of the text in files with columns: a name, or a number
        teacher_dtype: dtype of the teacher: float32, bfloat16 or int8
        teacher_num_beams: beam size of the teacher
        teacher_max_tokens_per_batch: batch size of the teacher: texts × beams × tokens of the longest text
        interpolate: of the best translations, use the one that is most similar to a reference
        restart: discard the translations of an interrupted run, before the student is trained

    Raises:
        ValueError: a value is not allowed.
    """

    teacher: list[str] = field(default_factory=list)
    source_text: list[str] = field(default_factory=list)
    text_key: str = TEXT_KEY
    teacher_dtype: str = "float32"
    teacher_num_beams: int = 4
    teacher_max_tokens_per_batch: int = 4096
    interpolate: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("teacher", "folder"), ("source_text", "file")):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one {kind}, got none.")
        for path in self.source_text:
            check_readable("source_text", path)
        check_text_key(self.text_key, self.source_text)
        check_choice(DTYPES, teacher_dtype=self.teacher_dtype)
        check_positive(limit=MAX_HYPOTHESES, teacher_num_beams=self.teacher_num_beams)
        check_positive(teacher_max_tokens_per_batch=self.teacher_max_tokens_per_batch)
        if self.interpolate and self.teacher_num_beams < 2:
            raise ValueError(f"teacher_num_beams must be at least 2 with interpolate, got {self.teacher_num_beams}.")


@dataclass
class SyntheticReport:
    """Counts of the pairs of a student's training set.

    Attributes:
        selected: texts that the teacher translated.
        skipped: texts that are blank or too long.
        empty: texts with an empty translation, which are dropped.
        original: original pairs.
        interpolated: texts whose translation was chosen by a reference.
    """

    selected: int
    skipped: int
    empty: int
    original: int
    interpolated: int = 0

    @property
    def synthetic(self) -> int:
        """The number of synthetic pairs."""
        return self.selected - self.empty

    def __str__(self) -> str:
        share = self.synthetic / (self.synthetic + self.original)
        return (
            f"{self.synthetic:,} synthetic and {self.original:,} original pairs ({share:.0%} synthetic);"
            f" skipped {self.skipped:,} blank or too long texts and {self.empty:,} with an empty translation;"
            f" chose the translations of {self.interpolated:,} of {self.selected:,} texts by references"
        )


class TrainingSet:
    """The files of a student's training set, and the stages that write them.

    Args:
        folder: the folder of the files.
        arguments: the texts and the options.
        original: the original pairs; invalid lines are skipped.
        is_in_use: whether the training of the student has begun, so that the training set must not change.
    """

    def __init__(self, folder: Path, arguments: DistillationArguments, original: Sequence[Corpus], is_in_use: bool):
        self.folder = folder
        self.arguments = arguments
        self.original = original
        self.is_in_use = is_in_use
        self.selected = folder / "selected.source"  # the texts to translate
        self.candidates = folder / ("candidates.jsonl" if arguments.interpolate else "selected.target")
        self.translated = folder / ("interpolated.target" if arguments.interpolate else "selected.target")
        self.files = folder / "train.source", folder / "train.target"

    def make(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_line_tokens: int,
        languages: Languages = NO_LANGUAGES,
    ) -> SyntheticReport:
        """Write the training set with a teacher, or continue an earlier call.

        Args:
            model: the teacher.
            tokenizer: its tokenizer.
            max_line_tokens: skip texts with more tokens.
            languages: language codes of the texts and of their translations, for a teacher with language tags.

        Raises:
            ValueError: a text is not UTF-8, no text can be translated, or the folder has the files of other inputs.
            OSError: a file cannot be read or written.
        """
        selection = self.translate(model, tokenizer, max_line_tokens, languages)
        counts = {"selected": selection.valid, "skipped": selection.invalid}
        original = {"original": fingerprint([*self.original])}
        job = Job(self.folder / JOB_RECORD)
        repeats_if_changed = not self.is_in_use  # the student is not trained yet
        is_interpolated = self.arguments.interpolate
        if is_interpolated:
            inputs = original | {"candidates": file_digest(self.candidates)}
            counts |= job.run(
                "interpolation", inputs, self.interpolate, [self.translated], repeats_if_changed=repeats_if_changed
            )
        inputs = original | {
            "translations": file_digest(self.translated),
            "interpolate": is_interpolated,
        }
        facts = job.run(
            "training set", inputs, lambda: self.assemble(counts), self.files, repeats_if_changed=repeats_if_changed
        )
        return SyntheticReport(**facts)

    def translate(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_line_tokens: int, languages: Languages
    ) -> ValidationReport:
        """Translate the texts, or continue an earlier call; returns the texts that are skipped."""
        arguments = self.arguments
        search = {"num_beams": arguments.teacher_num_beams, "max_batch_tokens": arguments.teacher_max_tokens_per_batch}
        file_options: dict[str, Any] = {}
        if arguments.interpolate:
            self.check_references()
            search["n_best"] = arguments.teacher_num_beams
            file_options["output_format"] = "jsonl"
        return translate_lines(
            self.texts(),
            self.selected,
            self.candidates,
            model,
            tokenizer,
            {**search, **languages.arguments_for(tokenizer)},
            name="source_text",
            max_line_tokens=max_line_tokens,
            restart=arguments.restart,
            **file_options,
        )

    def texts(self) -> Iterator[str]:
        """The texts to translate."""
        for path in self.arguments.source_text:
            yield from read_texts(path, self.arguments.text_key)

    def check_references(self) -> None:
        """Check that a text has a reference, before the texts are translated."""
        references = targets_by_source(pairs_of(self.original))
        if not any(reference_key(text) in references for text in self.texts()):
            raise ValueError("source_text must contain sources of the original pairs with interpolate, got none.")

    def interpolate(self) -> dict[str, int]:
        """Choose one of several translations; returns the number of texts with a reference."""
        references = targets_by_source(pairs_of(self.original))
        count = sum(reference_key(text) in references for text in read_texts(self.selected))
        write_nearest(self.selected, self.candidates, self.translated, references)
        return {"interpolated": count}

    def assemble(self, counts: dict[str, int]) -> dict[str, Any]:
        """Write the training set: the synthetic pairs, then the original ones."""
        # Pairs without a translation are invalid and are skipped.
        synthetic = [ParallelText(self.selected, self.translated)]
        total = write_pairs(pairs_of([*synthetic, *self.original]), self.files)
        original = sum(1 for _ in pairs_of(self.original))
        return {**counts, "empty": counts["selected"] - (total - original), "original": original}


def targets_by_source(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """The distinct targets of each source, by the key of its text."""
    targets: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(reference_key(source), {})[target] = None
    return {source: list(distinct) for source, distinct in targets.items()}


def reference_key(text: str) -> str:
    """The key of a text in `targets_by_source`, which texts that look equal share."""
    return " ".join(normalize(text).split())


def write_nearest(texts: Path, candidates: Path, output: Path, references: Mapping[str, Sequence[str]]) -> None:
    """Write the translation of each text that is nearest to its references.

    Args:
        texts: the file with one text per line.
        candidates: the translations of the texts, the best first, as `translate_file` writes them with `n_best` and
            `output_format="jsonl"`.
        output: the file to write, with one translation per line.
        references: see `targets_by_source`; a text without references has its best translation.
    """

    @lru_cache(2**16)  # frequent texts have many references
    def nearest(text: str, translations: tuple[str, ...]) -> str:
        if text not in references:
            return translations[0]
        return max(translations, key=lambda translation: sentence_chrf(translation, references[text], word_order=0))

    def chosen() -> Iterator[str]:
        with open(candidates, "rb") as lines:
            groups = groupby(map(json.loads, lines), key=itemgetter("index"))
            for text, (_, records) in zip(read_texts(texts), groups, strict=True):
                yield nearest(reference_key(text), tuple(record["translation"] for record in records))

    write_atomically(output, encode_lines(chosen()))

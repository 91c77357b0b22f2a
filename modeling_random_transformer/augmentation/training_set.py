"""The training set of a student: the teacher's translations of texts, and optionally original pairs.

The stages: select the texts → translate them (resumable) → with `interpolate`, choose the translations nearest to
references → drop the translations with the lowest scores → add the original pairs. Their files are kept, so that a
finished stage is not repeated.

Sequence-level interpolation (Kim & Rush 2016, section 3.3) takes the translation that is most similar to the reference,
of those that beam search finds. The similarity is chrF (Popović 2015); the paper has a smoothed sentence-level BLEU.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.mixing import CorpusSpec
from ..data.readers import TEXT_KEYS, read_texts
from ..data.sources import Languages, ParallelLine, ParallelText
from ..data.validation import ValidationReport
from ..inference import score_file
from ..inference.translation import TranslationOptions
from ..training.manifest import fingerprint
from ..utils import DTYPES
from ..utils.atomic_files import write_atomically
from ..utils.compressed_files import check_readable
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from ..utils.text import encode_lines, one_line, read_lines
from .stages import language_options, read_translations, run_stage, translate_once, write_selection

CACHED_TEXTS = 2**16
RECORD = "job.json"  # of all stages of a distillation


@dataclass
class DistillationArguments:
    """The teacher, the texts that it translates, and the selection of its translations."""

    teacher: list[str] = HfArg(
        default_factory=list, help="Folder of the teacher with its tokenizer; several folders are an ensemble."
    )
    source_text: list[str] = HfArg(
        default_factory=list,
        help="UTF-8 files with the texts that the teacher translates, one per line; or .tsv, .csv, .jsonl or .parquet "
        "files. They may be .gz or .zst; - is standard input.",
    )
    text_key: str = HfArg(
        default=TEXT_KEYS[0], help="Column of the text in source_text with columns: a name, or a number from 1."
    )
    teacher_dtype: str = HfArg(
        default="float32", help="Dtype of the teacher while it translates: float32, bfloat16 or int8."
    )
    teacher_num_beams: int = HfArg(default=4, help="Beam size of the teacher.")
    teacher_max_batch_tokens: int = HfArg(
        default=4096, help="Batch size of the teacher: texts × beams × tokens of the longest text."
    )
    interpolate: bool = HfArg(
        default=False,
        help="Of the teacher_num_beams best translations of a text, use the one that is nearest to its reference by "
        "chrF. The references are the targets of the original pairs (source_file or train_file) with this source; a "
        "text without references has its best translation.",
    )
    drop_worst: float = HfArg(
        default=0.0, help="Share of the translations to drop: those with the lowest log-probability per token."
    )
    restart: bool = HfArg(
        default=False,
        help="Discard the translations of an interrupted run with the same output_dir, whose student has not been "
        "trained.",
    )

    def __post_init__(self) -> None:
        for name, kind in (("teacher", "folder"), ("source_text", "file")):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one {kind}, got none.")
        for path in self.source_text:
            check_readable("source_text", path)
        if self.teacher_dtype not in DTYPES:
            raise ValueError(f"teacher_dtype must be one of {', '.join(DTYPES)}, got {self.teacher_dtype!r}.")
        for name in ("teacher_num_beams", "teacher_max_batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.interpolate and self.teacher_num_beams < 2:
            raise ValueError(f"teacher_num_beams must be at least 2 with interpolate, got {self.teacher_num_beams}.")
        if not 0 <= self.drop_worst < 1:
            raise ValueError(f"drop_worst must be at least 0 and below 1, got {self.drop_worst}.")


@dataclass
class SyntheticReport:
    """Counts of the pairs of a student's training set.

    Attributes:
        selected: texts that the teacher translated.
        skipped: texts that are blank or too long.
        empty: texts with an empty translation, which are dropped.
        dropped: translations dropped for their scores.
        original: original pairs.
        interpolated: texts whose translation was chosen by a reference.
    """

    selected: int
    skipped: int
    empty: int
    dropped: int
    original: int
    interpolated: int = 0

    @property
    def synthetic(self) -> int:
        """The number of synthetic pairs."""
        return self.selected - self.empty - self.dropped

    @property
    def synthetic_share(self) -> float:
        """The share of synthetic pairs, from 0 to 1."""
        return self.synthetic / (self.synthetic + self.original)

    def __str__(self) -> str:
        report = (
            f"{self.synthetic:,} synthetic and {self.original:,} original pairs ({self.synthetic_share:.0%} synthetic);"
            f" skipped {self.skipped:,} blank or too long texts and {self.empty:,} with an empty translation,"
            f" dropped {self.dropped:,} with the lowest scores"
        )
        if not self.interpolated:
            return report
        return f"{report}; chose the translations of {self.interpolated:,} of {self.selected:,} texts by references"


@dataclass(frozen=True)
class TrainingSet:
    """The files of a student's training set, and the stages that make them.

    Attributes:
        folder: their folder.
        arguments: the texts and the options.
        original: the original pairs; invalid lines are skipped.
        is_in_use: the training of the student has begun, so that the training set must not change.
    """

    folder: Path
    arguments: DistillationArguments
    original: Sequence[CorpusSpec] = ()
    is_in_use: bool = False

    @property
    def record(self) -> Path:
        """The record of the job."""
        return self.folder / RECORD

    @property
    def selected(self) -> Path:
        """The texts to translate."""
        return self.folder / "selected.source"

    @property
    def translated(self) -> Path:
        """Their translations."""
        return self.folder / ("interpolated.target" if self.arguments.interpolate else "selected.target")

    @property
    def scores(self) -> Path:
        """The scores of the pairs with a translation that is not empty."""
        return self.folder / "synthetic.scores"

    def sides(self, name: str) -> tuple[Path, Path]:
        """The aligned files of pairs: `"synthetic"`, those with a translation that is not empty, or `"train"`."""
        return self.folder / f"{name}.source", self.folder / f"{name}.target"

    def make(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        languages: Languages | None = None,
    ) -> SyntheticReport:
        """Write the training set with a teacher, or continue an earlier call.

        Args:
            model: the teacher.
            tokenizer: its tokenizer.
            max_tokens: skip texts with more tokens.
            languages: language codes of the texts and of their translations, for a teacher with language tags.

        Raises:
            ValueError: a text is not UTF-8, none can be translated, or the folder has the files of other inputs.
            OSError: a file cannot be read or written.
        """
        arguments, codes = self.arguments, language_options(tokenizer, languages)
        options: dict[str, Any] = {
            "num_beams": arguments.teacher_num_beams,
            "max_batch_tokens": arguments.teacher_max_batch_tokens,
        }
        options |= codes
        pipe = TranslationOptions.from_kwargs(**options).pipeline(model, tokenizer)

        def select() -> tuple[ValidationReport, int]:
            report = ValidationReport("source_text")
            texts = chain.from_iterable(read_texts(path, arguments.text_key) for path in arguments.source_text)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_selection(self.selected, texts, pipe, report, max_tokens=max_tokens, src_lang=codes.get("src_lang"))
            return report, self.count_references() if arguments.interpolate else 0

        selection, references = call_on_main_process(select)
        self.translate(model, tokenizer, options)
        if arguments.drop_worst:
            self.score(model, tokenizer, codes)
        return self.assemble(selection, references)

    def translate(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]) -> None:
        """Translate the texts, and with `interpolate` choose one of several translations."""
        restart = self.arguments.restart
        if not self.arguments.interpolate:
            translate_once(self.record, self.selected, self.translated, model, tokenizer, restart=restart, **options)
            return
        candidates = self.folder / "candidates.jsonl"
        n_best: dict[str, Any] = {"output_format": "jsonl", "n_best": self.arguments.teacher_num_beams}
        n_best |= options | {"restart": restart}
        translate_once(self.record, self.selected, candidates, model, tokenizer, **n_best)

        def choose(_: bool) -> None:
            def write() -> None:
                references = targets_by_source(pairs_of(self.original))
                write_nearest(self.selected, candidates, self.translated, references)

            call_on_main_process(write)

        def inputs() -> dict[str, Any]:
            return {"candidates": file_digest(candidates), "original": fingerprint([*self.original])}

        run_stage(self.record, "interpolation", inputs, choose, [self.translated], may_change=not self.is_in_use)

    def score(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, languages: dict[str, Any]) -> None:
        """Score the pairs with a translation that is not empty."""
        texts, translations = synthetic = self.sides("synthetic")

        def work(is_new: bool) -> None:
            def write() -> None:
                write_atomically(texts, encode_lines(text for text, _ in self.pairs()))
                write_atomically(translations, encode_lines(translation for _, translation in self.pairs()))

            call_on_main_process(write)
            # Training skips translations that are too long; they must not stop the scoring.
            options = {"truncation": True, "restart": is_new, **languages}
            score_file(ParallelText(*synthetic), self.scores, model, tokenizer, **options)

        def inputs() -> dict[str, Any]:
            return {"translations": file_digest(self.translated)}

        run_stage(self.record, "scores", inputs, work, [self.scores], may_change=not self.is_in_use)

    def assemble(self, selection: ValidationReport, references: int) -> SyntheticReport:
        """Write the training set: the synthetic pairs without the worst ones, then the original pairs."""
        source, target = files = self.sides("train")

        def write() -> dict[str, Any]:
            kept = self.best(self.arguments.drop_worst)
            write_atomically(source, encode_lines(text for text, _ in self.training_pairs(kept)))
            write_atomically(target, encode_lines(text for _, text in self.training_pairs(kept)))
            count = sum(1 for _ in self.pairs())
            report = SyntheticReport(
                selection.valid,
                selection.invalid,
                empty=selection.valid - count,
                dropped=0 if kept is None else count - len(kept),
                original=sum(1 for _ in pairs_of(self.original)),
                interpolated=references,
            )
            return asdict(report)

        def inputs() -> dict[str, Any]:
            drop_worst = self.arguments.drop_worst
            digests = {"translations": file_digest(self.translated), "original": fingerprint([*self.original])}
            return {**digests, "drop_worst": drop_worst, "interpolate": self.arguments.interpolate}

        options = {"may_change": not self.is_in_use}
        return SyntheticReport(
            **run_stage(self.record, "training set", inputs, lambda _: call_on_main_process(write), files, **options)
        )

    def count_references(self) -> int:
        """The number of texts that are the source of an original pair.

        Raises:
            ValueError: there is none.
        """
        sources = {key_of(source) for source, _ in pairs_of(self.original)}
        with open(self.selected, "rb") as file:
            count = sum(key_of(text) in sources for text in read_lines(file))
        if not count:
            raise ValueError("source_text must contain sources of the original pairs with interpolate, got none.")
        return count

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The texts and their translations, without empty ones."""
        return read_translations(self.selected, self.translated)

    def training_pairs(self, kept: set[int] | None) -> Iterator[tuple[str, str]]:
        """The synthetic pairs with these numbers (`None`: all), then the original ones."""
        for number, pair in enumerate(self.pairs()):
            if kept is None or number in kept:
                yield pair
        yield from pairs_of(self.original)

    def best(self, drop_worst: float) -> set[int] | None:
        """The numbers of the pairs that remain without this share of the lowest scores; `None` for all."""
        if not drop_worst:
            return None
        with open(self.scores, encoding="utf-8") as file:
            values = [float(total) / int(tokens) for total, tokens in (line.split("\t")[:2] for line in file)]
        order = sorted(range(len(values)), key=values.__getitem__)
        return set(order[int(drop_worst * len(values)) :])


def pairs_of(corpora: Iterable[CorpusSpec]) -> Iterator[tuple[str, str]]:
    """The valid pairs of several corpora."""
    for line in (line for corpus in corpora for line in corpus.text.lines()):
        if isinstance(line, ParallelLine):
            yield line.source, line.target


def targets_by_source(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The distinct targets of each source, as one line without whitespace at its ends."""
    targets: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(key_of(source), {})[target] = None
    return {source: list(distinct) for source, distinct in targets.items()}


def key_of(text: str) -> str:
    """The key of a text in `targets_by_source`."""
    return one_line(text).strip()


def write_nearest(texts: Path, candidates: Path, output: Path, references: Mapping[str, Sequence[str]]) -> None:
    """Write the translation of each text that is nearest to its references.

    Args:
        texts: the file with one text per line.
        candidates: their translations, the best first, as `translate_file` writes them with `n_best` and
            `output_format="jsonl"`.
        output: the file to write, with one translation per line.
        references: see `targets_by_source`; a text without references has its best translation.
    """
    scorer = CHRF()

    @lru_cache(CACHED_TEXTS)  # frequent texts have many references
    def choose(text: str, translations: tuple[str, ...]) -> str:
        return nearest(translations, references.get(text, ()), scorer)

    with open(texts, "rb") as lines, open(candidates, "rb") as records:
        rows = zip(read_lines(lines), read_candidates(records), strict=True)
        write_atomically(output, encode_lines(choose(key_of(text), translations) for text, translations in rows))


def nearest(candidates: Sequence[str], references: Sequence[str], scorer: CHRF) -> str:
    """The candidate with the highest chrF against the references; without references, the first one."""
    if not references:
        return candidates[0]
    return max(candidates, key=lambda candidate: scorer.sentence_score(candidate, references).score)


def read_candidates(records: Iterable[bytes]) -> Iterator[tuple[str, ...]]:
    """The translations of each text."""
    for _, group in groupby(map(json.loads, records), key=lambda record: record["index"]):
        yield tuple(record["translation"] for record in group)

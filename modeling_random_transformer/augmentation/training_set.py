"""The training set of a student: the teacher's translations of texts, and optionally original pairs.

The stages: select the texts → translate them (resumable) → with `interpolate`, choose the translations nearest to
references → drop the translations with the lowest scores → add the original pairs. Their files are kept, so that a
finished stage is not repeated.

Sequence-level interpolation (Kim & Rush 2016, section 3.3) takes the translation that is most similar to the reference,
of those that beam search finds. The similarity is chrF (Popović 2015); the paper has a smoothed sentence-level BLEU.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.mixing import CorpusSpec
from ..data.readers import TEXT_KEY, read_texts
from ..data.sources import NO_LANGUAGES, ParallelLine, ParallelText
from ..inference import score_file
from ..inference.translation import TranslationOptions
from ..inputs_random_transformer import LanguageTags, check_positive
from ..training.manifest import fingerprint
from ..utils import DTYPES
from ..utils.atomic_files import write_atomically
from ..utils.compressed_files import check_readable
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from ..utils.text import encode_lines, one_line, read_lines
from .stages import language_options, read_translations, run_stage, translate_once, write_selection

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
        default=TEXT_KEY, help="Column of the text in source_text with columns: a name, or a number from 1."
    )
    teacher_dtype: str = HfArg(
        default="float32", help="Dtype of the teacher while it translates: float32, bfloat16 or int8."
    )
    teacher_num_beams: int = HfArg(default=4, help="Beam size of the teacher.")
    teacher_max_tokens_per_batch: int = HfArg(
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
        for name in ("teacher_num_beams", "teacher_max_tokens_per_batch"):
            check_positive(**{name: getattr(self, name)})
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

    def __str__(self) -> str:
        share = self.synthetic / (self.synthetic + self.original)
        report = (
            f"{self.synthetic:,} synthetic and {self.original:,} original pairs ({share:.0%} synthetic);"
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
        languages: LanguageTags = NO_LANGUAGES,
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
        beams, size = arguments.teacher_num_beams, arguments.teacher_max_tokens_per_batch
        options: dict[str, Any] = {"num_beams": beams, "max_batch_tokens": size, **codes}
        pipe = TranslationOptions.from_kwargs(**options).pipeline(model, tokenizer)

        def select() -> dict[str, int]:
            self.folder.mkdir(parents=True, exist_ok=True)
            texts = chain.from_iterable(read_texts(path, arguments.text_key) for path in arguments.source_text)
            report = write_selection(self.selected, texts, pipe, "source_text", max_tokens, codes.get("src_lang"))
            interpolated = self.count_references() if arguments.interpolate else 0
            return {"selected": report.valid, "skipped": report.invalid, "interpolated": interpolated}

        counts = call_on_main_process(select)
        candidates = self.folder / "candidates.jsonl" if arguments.interpolate else self.translated
        job: dict[str, Any] = {"restart": arguments.restart}
        if arguments.interpolate:
            options, job = {**options, "n_best": beams}, {**job, "output_format": "jsonl"}
        translate_once(self.folder / RECORD, self.selected, candidates, model, tokenizer, options, **job)
        original = {"original": fingerprint([*self.original])}
        if arguments.interpolate:
            nearest = {"candidates": file_digest(candidates), **original}
            self.stage("interpolation", nearest, lambda: self.interpolate(candidates), [self.translated])
        digest = {"translations": file_digest(self.translated)}
        if arguments.drop_worst:
            self.stage("scores", digest, lambda: self.score(model, tokenizer, codes), [self.scores], everywhere=True)
        inputs = {**digest, **original, "drop_worst": arguments.drop_worst, "interpolate": arguments.interpolate}
        facts = self.stage("training set", inputs, lambda: self.assemble(counts), self.sides("train"))
        return SyntheticReport(**facts)

    def stage(
        self,
        name: str,
        inputs: dict[str, Any],
        work: Callable[[], dict[str, Any] | None],
        files: Sequence[Path],
        everywhere: bool = False,
    ) -> dict[str, Any]:
        """A stage that is repeated with changed inputs, unless the student has been trained on its files."""
        options = {"everywhere": everywhere, "may_change": not self.is_in_use}
        return run_stage(self.folder / RECORD, name, inputs, work, files, **options)

    def interpolate(self, candidates: Path) -> None:
        """Choose one of several translations."""
        references = targets_by_source(pairs_of(self.original))
        write_nearest(self.selected, candidates, self.translated, references)

    def score(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, languages: dict[str, Any]) -> None:
        """Score the pairs with a translation that is not empty."""
        files = self.sides("synthetic")
        call_on_main_process(lambda: write_pairs(files, self.pairs))
        # Training skips translations that are too long; they must not stop the scoring.
        options = {"truncation": True, "restart": True, **languages}
        score_file(ParallelText(*files), self.scores, model, tokenizer, **options)

    def assemble(self, counts: dict[str, int]) -> dict[str, Any]:
        """Write the training set: the synthetic pairs without the worst ones, then the original pairs."""
        kept = self.best(self.arguments.drop_worst)

        def training_pairs() -> Iterator[tuple[str, str]]:
            for number, pair in enumerate(self.pairs()):
                if kept is None or number in kept:
                    yield pair
            yield from pairs_of(self.original)

        write_pairs(self.sides("train"), training_pairs)
        count, original = (sum(1 for _ in pairs) for pairs in (self.pairs(), pairs_of(self.original)))
        dropped = 0 if kept is None else count - len(kept)
        return {**counts, "empty": counts["selected"] - count, "dropped": dropped, "original": original}

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

    def best(self, drop_worst: float) -> set[int] | None:
        """The numbers of the pairs that remain without this share of the lowest scores; `None` for all."""
        if not drop_worst:
            return None
        with open(self.scores, encoding="utf-8") as file:
            values = [float(total) / int(tokens) for total, tokens in (line.split("\t")[:2] for line in file)]
        order = sorted(range(len(values)), key=values.__getitem__)
        return set(order[int(drop_worst * len(values)) :])


def write_pairs(files: tuple[Path, Path], pairs: Callable[[], Iterable[tuple[str, str]]]) -> None:
    """Write two aligned files."""
    for side, file in enumerate(files):
        write_atomically(file, encode_lines(pair[side] for pair in pairs()))


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

    @lru_cache(2**16)  # frequent texts have many references
    def choose(text: str, translations: tuple[str, ...]) -> str:
        return nearest(translations, references.get(text, ()), scorer)

    with open(texts, "rb") as lines, open(candidates, "rb") as records:
        groups = groupby(map(json.loads, records), key=lambda record: record["index"])
        chosen = (
            choose(key_of(text), tuple(record["translation"] for record in group))
            for text, (_, group) in zip(read_lines(lines), groups, strict=True)
        )
        write_atomically(output, encode_lines(chosen))


def nearest(candidates: Sequence[str], references: Sequence[str], scorer: CHRF) -> str:
    """The candidate with the highest chrF against the references; without references, the first one."""
    if not references:
        return candidates[0]
    return max(candidates, key=lambda candidate: scorer.sentence_score(candidate, references).score)

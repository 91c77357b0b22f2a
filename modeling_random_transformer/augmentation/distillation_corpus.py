"""The training set of a student: the teacher's translations of texts, and optionally original pairs.

The stages: select the texts → translate them (resumable) → with `interpolate`, choose the translations nearest to
references → drop the translations with the lowest scores → add the original pairs. Their files are kept, so that a
finished stage is not repeated.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.mixing import CorpusSpec
from ..data.readers import read_texts
from ..data.sources import Languages, ParallelLine, ParallelText
from ..inference import score_file
from ..inference.translation import TranslationOptions
from ..training.manifest import fingerprint
from ..utils.atomic_files import write_atomically
from ..utils.digests import file_digest
from ..utils.distributed import call_on_main_process
from ..utils.text import encode_lines, read_lines
from .distillation_arguments import DistillationArguments
from .interpolation import key_of, targets_by_source, write_nearest
from .selection import Selection, write_selection
from .stages import language_options, read_translations, translate_once


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
class SyntheticCorpus:
    """The files of a student's training set.

    Attributes:
        folder: their folder.
        interpolate: see `DistillationArguments`.
    """

    folder: Path
    interpolate: bool = False

    @property
    def selected(self) -> Path:
        """The texts to translate."""
        return self.folder / "selected.source"

    @property
    def candidates(self) -> Path:
        """Several translations of each, of which one is chosen."""
        return self.folder / "candidates.jsonl"

    @property
    def translated(self) -> Path:
        """Their translations."""
        return self.folder / ("interpolated.target" if self.interpolate else "selected.target")

    @property
    def synthetic_files(self) -> tuple[Path, Path]:
        """The pairs with a translation that is not empty."""
        return self.folder / "synthetic.source", self.folder / "synthetic.target"

    @property
    def scores(self) -> Path:
        """The scores of these pairs."""
        return self.folder / "synthetic.scores"

    @property
    def train(self) -> tuple[Path, Path]:
        """The training set."""
        return self.folder / "train.source", self.folder / "train.target"

    def make(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        arguments: DistillationArguments,
        original: Sequence[CorpusSpec],
        max_tokens: int,
        languages: Languages | None = None,
        is_in_use: bool = False,
    ) -> SyntheticReport:
        """Write the training set, or continue an earlier call.

        Args:
            model: the teacher.
            tokenizer: its tokenizer.
            arguments: the texts and the options.
            original: the original pairs; invalid lines are skipped.
            max_tokens: skip texts with more tokens.
            languages: language codes of the texts and of their translations, for a teacher with language tags.
            is_in_use: the training of the student has begun, so that the training set must not change.

        Raises:
            ValueError: a text is not UTF-8, none can be translated, the folder belongs to a different job, or a
                training set in use would change.
            OSError: a file cannot be read or written.
        """
        codes = language_options(tokenizer, languages)
        options: dict[str, Any] = {
            "num_beams": arguments.teacher_num_beams,
            "max_batch_tokens": arguments.teacher_max_batch_tokens,
            **codes,
        }
        pipe = TranslationOptions.from_kwargs(**options).pipeline(model, tokenizer)

        def select() -> Selection:
            lines = chain.from_iterable(read_texts(path, arguments.text_key) for path in arguments.source_text)
            return write_selection(self.selected, lines, pipe, max_tokens, codes.get("src_lang"), "source_text")

        selection = call_on_main_process(select)
        job: dict[str, Any] = {"restart": arguments.restart, "is_in_use": is_in_use}
        if self.interpolate:
            references = call_on_main_process(lambda: self.count_references(original))
            candidates: dict[str, Any] = {"output_format": "jsonl", "n_best": arguments.teacher_num_beams}
            translate_once(self.selected, self.candidates, model, tokenizer, **job, **candidates, **options)
            call_on_main_process(lambda: self.write_nearest(original, is_in_use))
        else:
            references = 0
            translate_once(self.selected, self.translated, model, tokenizer, **job, **options)
        share = arguments.drop_worst
        if finished := call_on_main_process(lambda: self.finished(self.inputs(original, share), is_in_use)):
            return finished
        if share:
            is_changed = call_on_main_process(self.write_synthetic)
            # Training skips translations that are too long; they must not stop the scoring.
            score_file(
                ParallelText(*self.synthetic_files),
                self.scores,
                model,
                tokenizer,
                truncation=True,
                restart=arguments.restart or is_changed,
                src_lang=codes.get("src_lang"),
                tgt_lang=codes.get("tgt_lang"),
            )
        return call_on_main_process(lambda: self.write_train(selection, references, original, share))

    def count_references(self, original: Sequence[CorpusSpec]) -> int:
        """The number of texts that are the source of an original pair.

        Raises:
            ValueError: there is none.
        """
        sources = {key_of(source) for source, _ in pairs_of(original)}
        with open(self.selected, "rb") as file:
            count = sum(key_of(text) in sources for text in read_lines(file))
        if not count:
            raise ValueError("source_text must contain sources of the original pairs with interpolate, got none.")
        return count

    def write_nearest(self, original: Sequence[CorpusSpec], is_in_use: bool) -> None:
        """Choose the translations that are nearest to the targets of the original pairs."""
        record = self.translated.with_name(f"{self.translated.name}.json")
        inputs = {"candidates": file_digest(self.candidates), "original": fingerprint(list(original))}
        is_finished = self.translated.is_file() and record.is_file()
        if is_finished and (is_in_use or json.loads(record.read_bytes()) == inputs):
            return  # other pairs for a training set in use are an error of `finished`
        record.unlink(missing_ok=True)
        write_nearest(self.selected, self.candidates, self.translated, targets_by_source(pairs_of(original)))
        write_atomically(record, [json.dumps(inputs).encode()])

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The texts and their translations, without empty ones."""
        return read_translations(self.selected, self.translated)

    def write_synthetic(self) -> bool:
        """Write the pairs to score; returns whether they differ from those of an earlier call."""
        earlier = self.synthetic_digests()
        for side, path in enumerate(self.synthetic_files):
            write_atomically(path, encode_lines(pair[side] for pair in self.pairs()))
        return earlier != self.synthetic_digests()

    def synthetic_digests(self) -> list[str]:
        """The contents of the pairs to score."""
        return [file_digest(path) for path in self.synthetic_files if path.is_file()]

    @property
    def record(self) -> Path:
        """The file with the report on the finished training set and what determines it."""
        return self.folder / "train.json"

    def inputs(self, original: Sequence[CorpusSpec], drop_worst: float) -> dict[str, Any]:
        """What determines the training set and the report."""
        inputs = {
            "translations": file_digest(self.translated),
            "original": fingerprint(list(original)),
            "drop_worst": drop_worst,
        }
        return inputs | ({"interpolate": True} if self.interpolate else {})

    def finished(self, inputs: dict[str, Any], is_in_use: bool) -> SyntheticReport | None:
        """The report on the training set of the same inputs, whose scores and cached tokens must not be lost."""
        if not (self.record.is_file() and all(path.is_file() for path in self.train)):
            return None
        earlier = json.loads(self.record.read_bytes())
        if earlier["inputs"] == inputs:
            return SyntheticReport(**earlier["report"])
        if is_in_use:
            changed = [name for name in inputs if earlier["inputs"].get(name) != inputs[name]]
            raise ValueError(
                f"{self.folder} must contain the training set of the same call, since a model has been trained on it, "
                f"got one that differs in {', '.join(changed)}: use another output_dir."
            )
        return None

    def write_train(
        self, selection: Selection, references: int, original: Sequence[CorpusSpec], drop_worst: float
    ) -> SyntheticReport:
        """Write the training set and its record."""
        self.record.unlink(missing_ok=True)
        kept = self.best(drop_worst)
        for side, path in enumerate(self.train):
            write_atomically(path, encode_lines(pair[side] for pair in self.training_pairs(kept, original)))
        count = sum(1 for _ in self.pairs())
        report = SyntheticReport(
            selection.selected,
            selection.lines - selection.selected,
            empty=selection.selected - count,
            dropped=0 if kept is None else count - len(kept),
            original=sum(1 for _ in pairs_of(original)),
            interpolated=references,
        )
        inputs = self.inputs(original, drop_worst)
        write_atomically(self.record, [json.dumps({"inputs": inputs, "report": asdict(report)}).encode()])
        return report

    def training_pairs(self, kept: set[int] | None, original: Sequence[CorpusSpec]) -> Iterator[tuple[str, str]]:
        """The synthetic pairs with these numbers (`None`: all), then the original ones."""
        for number, pair in enumerate(self.pairs()):
            if kept is None or number in kept:
                yield pair
        yield from pairs_of(original)

    def best(self, drop_worst: float) -> set[int] | None:
        """The numbers of the pairs that remain without this share of the lowest scores; `None` for all."""
        if not drop_worst:
            return None
        with open(self.scores, encoding="utf-8") as file:
            values = [float(total) / int(tokens) for total, tokens in (line.split("\t")[:2] for line in file)]
        order = sorted(range(len(values)), key=values.__getitem__)
        return set(order[int(drop_worst * len(values)) :])


def pairs_of(corpora: Sequence[CorpusSpec]) -> Iterator[tuple[str, str]]:
    """The valid pairs of several corpora."""
    for line in (line for corpus in corpora for line in corpus.text.lines()):
        if isinstance(line, ParallelLine):
            yield line.source, line.target

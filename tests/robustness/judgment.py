"""Judging mutants: loaded by the Auto classes, by `examples/translate.py` and, if possible, as a Marian model."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .mutants import MARIAN_NAMES, TRACE, Mutant, NoSuchPlaceError, all_mutants, copied
from .outcomes import Grade, Outcome, by_auto_classes, by_script, is_helpful, save_folders

HELPFUL_SHARE = 0.95


@dataclass
class Report:
    """Counts over all mutants, and a line for each finding."""

    mutants: int = 0
    auto: Counter[str] = field(default_factory=Counter)
    script: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    helpful: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    serious: list[str] = field(default_factory=list)
    unhelpful: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.serious and self.helpful >= HELPFUL_SHARE * self.refused

    def __str__(self) -> str:
        lines = [
            f"mutants: {self.mutants}",
            f"Auto classes: {dict(self.auto)}",
            f"translate.py: {dict(self.script)}",
            f"translate.py, refusals in one line that names file and field: {self.helpful} of {self.refused}",
            f"compared with MarianMTModel: {dict(self.compared)}",
            *(f"UNHELPFUL {line}" for line in self.unhelpful),
            *(f"SERIOUS {line}" for line in self.serious),
        ]
        return "\n".join(lines)


class Bench:
    """Undamaged folders, and a place for damaged copies."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.folders = save_folders(folder)
        self.trace = folder / TRACE
        self.mutants = all_mutants(self.folders["own"], self.folders["own-sharded"])

    def judge(self, mutant: Mutant, report: Report) -> None:
        """Load one mutant in each way and enter the outcomes."""
        report.mutants += 1
        target = self.folder / "damaged"
        self._damage("own", mutant, target)
        auto, script = by_auto_classes(target, self.trace), by_script(target, self.trace)
        report.auto[auto.grade.name] += 1
        report.script[f"{script.grade.name} {script.status}"] += 1
        for way, outcome in (("Auto classes", auto), ("translate.py", script)):
            if outcome.grade >= Grade.SILENT or (outcome is script and outcome.grade > Grade.HANDLED):
                report.serious.append(f"{way}: {outcome.grade.name} {mutant}: {outcome.error} {outcome.message[-300:]}")
        if script.status != 0:
            report.refused += 1
            if is_helpful(script, target, mutant.file, named_keys(mutant)):
                report.helpful += 1
            else:
                report.unhelpful.append(f"{mutant}: {script.status} {script.error} {script.message[-400:]!r}")
        self._compare(mutant, auto, target, report)

    def _compare(self, mutant: Mutant, own: Outcome, target: Path, report: Report) -> None:
        if mutant.hits_one_byte and mutant.file != "tokenizer.json":
            return
        try:
            self._damage("marian", mutant.renamed(MARIAN_NAMES), target)
        except NoSuchPlaceError:
            return
        other = by_auto_classes(target, self.trace)
        order = "equal" if own.grade == other.grade else "better" if own.grade < other.grade else "worse"
        report.compared[order] += 1
        if order == "worse":
            grades = f"{own.grade.name} against {other.grade.name}"
            report.serious.append(
                f"{grades}, {mutant}: {own.error} {own.message[:200]} | {other.error} {other.message[:200]}"
            )

    def _damage(self, architecture: str, mutant: Mutant, target: Path) -> None:
        copied(self.folders[f"{architecture}-sharded" if mutant.sharded else architecture], target)
        mutant.apply(target)


def named_keys(mutant: Mutant) -> tuple[str, ...]:
    """Names of which a refusal must give one; none for damage that is in no field."""
    if mutant.operation == "update":
        return tuple(mutant.value) + tuple(str(value) for value in mutant.value.values())
    if mutant.operation == "header" and mutant.value == "delete":
        return ("tensor", "got none for")  # its name is in no file; the gap is before another tensor
    if mutant.path == ("+",):
        return (mutant.value[0],)
    return tuple(str(key) for key in mutant.path if isinstance(key, str))


def judge_all(verbose: bool = False) -> Report:
    """Every mutant."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        return judged(bench, bench.mutants, verbose)


def judged(bench: Bench, mutants: Sequence[Mutant], verbose: bool = False) -> Report:
    """The report on these mutants."""
    report = Report()
    for number, mutant in enumerate(mutants):
        if verbose and number % 100 == 0:
            print(number, flush=True)
        bench.judge(mutant, report)
    return report

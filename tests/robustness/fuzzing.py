"""Fuzzing: mutants are loaded by the Auto classes, by `translate.py` and, if possible, as a Marian model."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .mutants import MARIAN_NAMES, TRACE, InapplicableMutationError, Mutant, all_mutants, copy_folder
from .outcomes import COMPARED_SECONDS, Grade, Outcome, by_auto_classes, by_script, is_helpful, save_folders

MIN_HELPFUL_SHARE = 0.95


@dataclass
class FuzzReport:
    """Counts over all mutants, and one line per finding."""

    mutants: int = 0
    auto: Counter[str] = field(default_factory=Counter)
    script: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    helpful: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    serious: list[str] = field(default_factory=list)
    unhelpful: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.serious and self.helpful >= MIN_HELPFUL_SHARE * self.rejected

    def __str__(self) -> str:
        lines = [
            f"mutants: {self.mutants}",
            f"Auto classes: {dict(self.auto)}",
            f"translate.py: {dict(self.script)}",
            f"translate.py, errors of one line that names the file: {self.helpful} of {self.rejected}",
            f"compared with MarianMTModel: {dict(self.compared)}",
            *(f"UNHELPFUL {line}" for line in self.unhelpful),
            *(f"SERIOUS {line}" for line in self.serious),
        ]
        return "\n".join(lines)


class Fuzzer:
    """Loads damaged copies of saved folders."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.folders = save_folders(folder)
        self.trace = folder / TRACE
        self.mutants = all_mutants(self.folders["own"], self.folders["own-sharded"])

    def run(self, mutant: Mutant, report: FuzzReport) -> None:
        """Load one mutant in each way and add the outcomes to the report."""
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
            report.rejected += 1
            if is_helpful(script, target, mutant.file):
                report.helpful += 1
            else:
                report.unhelpful.append(f"{mutant}: {script.status} {script.error} {script.message[-400:]!r}")
        self._compare(mutant, auto, target, report)

    def _compare(self, mutant: Mutant, own: Outcome, target: Path, report: FuzzReport) -> None:
        if mutant.changes_one_byte and mutant.file != "tokenizer.json":
            return
        try:
            self._damage("marian", mutant.renamed(MARIAN_NAMES), target)
        except InapplicableMutationError:
            return
        other = by_auto_classes(target, self.trace, COMPARED_SECONDS)
        order = "equal" if own.grade == other.grade else "better" if own.grade < other.grade else "worse"
        report.compared[order] += 1
        if order == "worse":
            grades = f"{own.grade.name} against {other.grade.name}"
            report.serious.append(
                f"{grades}, {mutant}: {own.error} {own.message[:200]} | {other.error} {other.message[:200]}"
            )

    def _damage(self, architecture: str, mutant: Mutant, target: Path) -> None:
        copy_folder(self.folders[f"{architecture}-sharded" if mutant.sharded else architecture], target)
        mutant.apply(target)


def fuzz_all(verbose: bool = False) -> FuzzReport:
    """Run all mutants."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        return fuzz(fuzzer, fuzzer.mutants, verbose)


def fuzz(fuzzer: Fuzzer, mutants: Sequence[Mutant], verbose: bool = False) -> FuzzReport:
    """Run some mutants."""
    report = FuzzReport()
    for number, mutant in enumerate(mutants):
        if verbose and number % 100 == 0:
            print(number, flush=True)
        fuzzer.run(mutant, report)
    return report

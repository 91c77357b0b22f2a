"""Run the conformance and generation tests with pairs of versions; write the results into docs/compatibility.md.

    python .ci/test_matrix.py 5.17.0:2.11.0 5.23.0:2.13.0     # transformers:torch, as `make test-matrix` does

Each pair has its own environment with the Python of this script, `.venv-<transformers>-<torch>-<Python>`, made by the
Makefile. A row replaces an earlier one of the same versions. Exit status: 0 if all tests of all pairs passed; 1
otherwise; 2 if a pair is invalid.
"""

import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
TESTS = ["tests/conformance", "tests/test_generation.py", "tests/test_fast_decoder.py", "tests/test_auto_classes.py"]
START, END = "<!-- matrix -->", "<!-- end of matrix -->"


class Result(NamedTuple):
    """A row of the table."""

    transformers: str
    torch: str
    python: str
    outcome: str
    date: str


def main(pairs: list[str]) -> int:
    if not pairs or not all(re.fullmatch(r"[\w.+]+:[\w.+]+", pair) for pair in pairs):
        print(f"test_matrix.py: error: pairs must be transformers:torch, got {pairs}.", file=sys.stderr)
        return 2
    results = []
    for pair in pairs:
        results.append(run(*pair.split(":")))
        print(" ".join(results[-1]), flush=True)
        PAGE.write_text(with_results(PAGE.read_text(), results))
    return int(any("failed" in result.outcome or "error" in result.outcome for result in results))


def run(transformers: str, torch: str) -> Result:
    """Build the environment of a pair, and run the tests."""
    environment = ROOT / f".venv-{transformers}-{torch}-{platform.python_version()}"
    repin = f"s/^transformers==.*/transformers=={transformers}/; s/^torch==.*/torch=={torch}/; /^huggingface_hub==/d"
    outcome = "installation error"
    installation = ["make", f"{environment.name}/.ready", f"REPIN={repin}", f"PYTHON={sys.executable}"]
    if subprocess.run(installation, cwd=ROOT).returncode == 0:
        command = [environment / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", *TESTS]
        outcome = summary(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout)
    return Result(transformers, torch, platform.python_version(), outcome, datetime.date.today().isoformat())


def summary(output: str) -> str:
    """The counts in pytest's last line, such as `3 failed, 10 passed`."""
    counts = re.findall(r"\d+ (?:passed|failed|errors?)", output.strip().splitlines()[-1] if output.strip() else "")
    return ", ".join(counts) or "error: no test was run"


def with_results(page: str, results: list[Result]) -> str:
    """The page with these rows, sorted by version; earlier rows of other versions are kept."""
    before, _, rest = page.partition(START)
    table, _, after = rest.partition(END)
    earlier = [
        Result(*map(str.strip, line.strip("| ").split("|"))) for line in table.splitlines() if line[2:3].isdigit()
    ]
    rows = {version_key(result): result for result in [*earlier, *results]}
    header = ["| transformers | torch | Python | tests | date |", "|---|---|---|---|---|"]
    ordered = [result for _, result in sorted(rows.items())]
    lines = [f"| {' | '.join(result)} |" for result in ordered]
    return "\n".join([f"{before}{START}", *header, *lines, f"{END}{after}"])


def version_key(result: Result) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, re.findall(r"\d+", version))) for version in result[:3])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The results of the recurrent comparison as a table, sentences and a plot."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .recurrent_comparison import CANDIDATES, LENGTHS, Result
from .report import format_axes, show_table


def show_results(results: Sequence[Result]) -> None:
    rows = [
        (
            result.name,
            f"{result.parameters:,}",
            f"{result.tokens_per_second:,.0f}",
            *(f"{percent:.1f}%" for percent in (result.overall, *result.exact_match.values())),
        )
        for result in results
    ]
    columns = ("model", "parameters", "tokens/s", "all", *map(str, LENGTHS))
    show_table("Parameters, training throughput, and exact match by the number of sentences", columns, rows)


def summarize(results: Sequence[Result]) -> list[str]:
    """Sentences about throughput, overall exact match, and the longest texts."""
    fastest, *slower = sorted(results, key=lambda result: -result.tokens_per_second)
    relative = [f"{result.name} {result.tokens_per_second / fastest.tokens_per_second:.2f} times" for result in slower]
    ranks = [f"{result.name} {result.overall:.1f}%" for result in sorted(results, key=lambda result: -result.overall)]
    shortest, longest = LENGTHS[0], LENGTHS[-1]
    long_texts = [
        f"{result.name} {result.exact_match[longest]:.0f}% "
        f"({100 * (result.exact_match[shortest] / 100) ** longest:.0f}% if errors were independent of the length)"
        for result in results
    ]
    return [
        f"Training throughput: {', '.join([f'{fastest.name} {fastest.tokens_per_second:,.0f} tokens/s', *relative])}.",
        f"Exact match: {', '.join(ranks)}.",
        f"Exact match of {longest} sentences: {', '.join(long_texts)}.",
    ]


def uncertainty(test_size: int) -> str:
    """Twice the standard error of a difference of two percentages at one length, in the worst case."""
    texts = test_size // len(LENGTHS)
    points = min(100, 2 * 100 * math.sqrt(2 * 0.25 / texts))
    return f"One run, {texts} texts per length: differences of up to {points:.0f} points at a length may be chance."


def draw(results: Sequence[Result], source_tokens: dict[int, float]) -> Figure:
    """Plot exact match by length next to the training throughput."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_exact_match(left, results, source_tokens)
    draw_throughput(right, results)
    return figure


def draw_exact_match(axes: Axes, results: Sequence[Result], source_tokens: dict[int, float]) -> None:
    for result in results:
        color = CANDIDATES[result.name].color
        axes.plot(LENGTHS, list(result.exact_match.values()), label=result.name, color=color, linewidth=2, marker="o")
    format_axes(axes, "Exact match by text length")
    axes.set(xlabel="sentences per text (mean source tokens)", ylabel="exact match (%)", ylim=(0, 104))
    axes.set_xticks(LENGTHS, [f"{length}\n({source_tokens[length]:.0f})" for length in LENGTHS])
    axes.legend(frameon=False)


def draw_throughput(axes: Axes, results: Sequence[Result]) -> None:
    names = [result.name for result in results]
    throughput = [result.tokens_per_second for result in results]
    bars = axes.bar(names, throughput, width=0.6, color=[CANDIDATES[name].color for name in names])
    axes.bar_label(bars, fmt="{:,.0f}", padding=2)
    format_axes(axes, "Training throughput")
    axes.set(ylabel="tokens per second", xlim=(-0.7, len(names) - 0.3))
    axes.margins(y=0.12)  # space for the bar labels
    axes.yaxis.set_major_formatter("{x:,.0f}")

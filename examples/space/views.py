"""HTML of the page. Every text is escaped; gradio interprets neither templates nor Markdown in the values of `HTML`."""

import difflib
import math
from html import escape
from typing import Any

from inference import Inside

TOP_TOKENS = 10  # of a next-token distribution
LIGHT, DARK = (255, 255, 255), (31, 90, 148)  # colors of the weights 0 and 1
CSS = """
.scroll {overflow-x: auto; max-width: 100%}
.scroll table {border-collapse: collapse; width: auto}
.scroll caption {text-align: left; padding: 4px 0}
.scroll th, .scroll td {padding: 4px 8px; text-align: right; white-space: nowrap; border: 0}
.scroll th {font-weight: 600}
.scroll .weight {min-width: 2.6em; text-align: center; border: 1px solid white}
.scroll .current th, .scroll .current td {border-block: 3px solid #e3944a}
.scroll .text {text-align: left; white-space: normal; overflow-wrap: anywhere}
.scroll .bar {width: 40%; min-width: 6em; text-align: left}
.scroll .bar div {height: 1em; background: rgb(31, 90, 148); min-width: 1px; border: 1px solid white}
.scroll mark {background: #ffe08a; color: black; padding: 0 2px}
"""


def scrollable(label: str, table: str) -> str:
    """A table that the keyboard can scroll on a narrow screen."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'


def attention_table(inside: Inside, layer: int, head: int | None, step: int) -> str:
    """Cross-attention in percent: a row for each generated token, a column for each source token.

    Args:
        inside: a traced translation.
        layer: index of the decoder layer.
        head: index of the head; `None` for the mean of the heads.
        step: index of the marked row.
    """
    weights = inside.attention[layer].mean(0) if head is None else inside.attention[layer, head]
    heading = "".join(f'<th scope="col">{escape(token)}</th>' for token in inside.source)
    rows = []
    for index, (token, row) in enumerate(zip(inside.target, weights.tolist(), strict=True)):
        cells = "".join(f'<td class="weight" style="{colors(weight)}">{100 * weight:.0f}</td>' for weight in row)
        marked = ' class="current" aria-current="step"' if index == step else ""
        rows.append(f'<tr{marked}><th scope="row">{escape(token)}</th>{cells}</tr>')
    which = "mean of the heads" if head is None else f"head {head}"
    caption = f"Cross-attention in percent, layer {layer}, {which}: rows are generated tokens, columns source tokens"
    body = f"<thead><tr><td></td>{heading}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return scrollable("Cross-attention", f"<table><caption>{caption}</caption>{body}</table>")


def colors(weight: float) -> str:
    """Background and text of a cell, with a contrast of at least 4.5:1 for every weight."""
    red, green, blue = (round(light + (dark - light) * weight) for light, dark in zip(LIGHT, DARK, strict=True))
    return f"background: rgb({red}, {green}, {blue}); color: {'white' if weight > 0.65 else 'black'}"


def distribution_table(inside: Inside, step: int, temperature: float) -> str:
    """The most probable tokens of a step at a temperature, with the generated one marked."""
    found = inside.steps[step]
    rows = []
    listed = zip(found["ids"], found["tokens"], probabilities(found, temperature), strict=True)
    for token_id, token, probability in list(listed)[:TOP_TOKENS]:
        chosen = " ← generated" if token_id == inside.chosen[step] else ""
        bar = f'<div style="width: {100 * probability:.1f}%"></div>'
        rows.append(
            f'<tr><th scope="row">{escape(token)}</th><td>{100 * probability:.1f}%</td>'
            f'<td class="bar">{bar}</td><td>{chosen}</td></tr>'
        )
    prefix = "".join(inside.target[:step]).replace("␣", " ").strip() or "the start"
    caption = f"Next token after “{escape(prefix)}” at temperature {temperature:.1f}"
    heading = "".join(f'<th scope="col">{name}</th>' for name in ("token", "probability", "", ""))
    table = (
        f"<table><caption>{caption}</caption><thead><tr>{heading}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
    return scrollable("Next-token distribution", table)


def probabilities(found: dict[str, Any], temperature: float) -> list[float]:
    """The probabilities of the stored tokens of a distribution at a temperature."""
    largest = found["logits"][0]
    top = [math.exp((logit - largest) / temperature) for logit in found["logits"]]
    others = sum(count * math.exp((logit - largest) / temperature) for logit, count in found["others"])
    return [weight / (sum(top) + others) for weight in top]


def ranking(answer: dict[str, Any]) -> str:
    """All translations of an answer with their scores."""
    rows = "".join(
        f'<tr><th scope="row">{rank}</th><td class="text">{escape(one["text"])}</td><td>{one["score"]:.3f}</td></tr>'
        for rank, one in enumerate(answer["translations"], 1)
    )
    heading = '<td></td><th scope="col" class="text">translation</th><th scope="col">score</th>'
    return scrollable("All translations", f"<table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table>")


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The best translations of two answers and their log-probabilities, with the changed words marked."""
    first, second = (answer["translations"][0] for answer in (before, after))
    rows = [
        ("complete model", escape(first["text"]), first["score"]),
        ("parts off", changes(first["text"], second["text"]), second["score"]),
    ]
    cells = "".join(
        f'<tr><th scope="row">{name}</th><td class="text">{text}</td><td>{score:.2f}</td></tr>'
        for name, text, score in rows
    )
    heading = '<td></td><th scope="col" class="text">translation</th><th scope="col">log-probability</th>'
    return scrollable("Translations", f"<table><thead><tr>{heading}</tr></thead><tbody>{cells}</tbody></table>")


def changes(before: str, after: str) -> str:
    """The second text with its words that the first does not have marked."""
    words, others = after.split(), before.split()
    parts = []
    for kind, _, _, start, end in difflib.SequenceMatcher(None, others, words, autojunk=False).get_opcodes():
        text = escape(" ".join(words[start:end]))
        if text:
            parts.append(text if kind == "equal" else f"<mark>{text}</mark>")
    return " ".join(parts)

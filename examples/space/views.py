"""HTML of the page. Every text is escaped; gradio interprets neither templates nor Markdown in the values of `HTML`."""

import difflib
import math
from html import escape
from typing import Any

from inference import Inside

from modeling_random_transformer.inference.confidence import UNDERLINED_BELOW

TOP_TOKENS = 10  # number of next tokens that are shown
CONFIDENCE = (
    "the probability that it, or its least certain sentence, is as good as the better half of the translations of the "
    "validation set."
)
LEGEND = (
    f"The model gives <u>underlined</u> words a probability below {UNDERLINED_BELOW:.0%} after the words before them."
)
TRANSLATION_HEADING = '<td></td><th scope="col" class="text">translation</th><th scope="col">{}</th>'
LIGHT, DARK = (255, 255, 255), (31, 90, 148)  # colors of the weights 0 and 1
CSS = """
.scroll {overflow-x: auto; max-width: 100%}
.scroll table {border-collapse: collapse; width: auto}
.scroll table, .scroll tr {border: 0 !important}
.scroll th, .scroll td {padding: 4px 8px; text-align: right; white-space: nowrap; border: 0}
.scroll .weight {min-width: 2.6em; text-align: center; border: 1px solid white}
.scroll .current th, .scroll .current td {border-block: 3px solid #c2660a}
.scroll .name {white-space: normal}
.scroll .text {text-align: start; white-space: normal; min-width: 9em}
/* The direction of each text is that of its script, as with dir="auto". */
textarea, .translation, .scroll th, .scroll td {unicode-bidi: plaintext}
textarea, .translation {text-align: start}
.scroll .bar {width: 16em; text-align: left}
.scroll .bar div {height: 1em; background: rgb(31, 90, 148); min-width: 1px; border: 1px solid white}
.translation {font-size: 1.15em; white-space: pre-wrap; overflow-wrap: anywhere}
.translation u, .legend u {text-decoration: underline dotted 2px; text-underline-offset: 3px}
.scroll ins {background: #ffe08a; color: black; padding: 0 2px; text-decoration: none}
iframe.explorer {width: 100%; height: 85vh; border: 0; background: #f6f8fa}
.dark button[role=tab].selected {color: var(--primary-300)}
"""


def scrollable(caption: str, heading: str, rows: str) -> str:
    """A caption and a table that the keyboard can scroll on a narrow screen. `caption` must not be escaped."""
    caption = escape(caption)
    table = f"<table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<p>{caption}</p><div class="scroll" role="region" tabindex="0" aria-label="{caption}">{table}</div>'


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
    caption = f"Cross-attention in percent, layer {layer}, {which}. Rows are generated tokens, columns source tokens."
    return scrollable(caption, f"<td></td>{heading}", "".join(rows))


def colors(weight: float) -> str:
    """Background and text of a cell, with a contrast of at least 4.5:1 for every weight."""
    red, green, blue = (round(light + (dark - light) * weight) for light, dark in zip(LIGHT, DARK, strict=True))
    return f"background: rgb({red}, {green}, {blue}); color: {'white' if weight > 0.82 else 'black'}"


def distribution_table(inside: Inside, step: int, temperature: float) -> str:
    """The most probable tokens of a step at a temperature, with the generated one marked."""
    distribution = inside.steps[step]
    rows = []
    listed = zip(distribution["ids"], distribution["tokens"], probabilities(distribution, temperature), strict=True)
    for token_id, token, probability in list(listed)[:TOP_TOKENS]:
        marked = ' class="current" aria-current="true"' if token_id == inside.chosen[step] else ""
        rows.append(
            f'<tr{marked}><th scope="row">{escape(token)}</th><td>{100 * probability:.1f}%</td>'
            f'<td class="bar"><div style="width: {100 * probability:.1f}%"></div></td></tr>'
        )
    prefix = "".join(inside.target[:step]).replace("␣", " ").strip()
    place = f"Next token after “{prefix}”" if step else "First token"
    caption = f"{place} at temperature {temperature:.1f}. The generated token is marked."
    heading = '<th scope="col">token</th><th scope="col">probability</th><td></td>'
    return scrollable(caption, heading, "".join(rows))


def probabilities(distribution: dict[str, Any], temperature: float) -> list[float]:
    """The probabilities of the stored tokens of a distribution at a temperature."""
    largest = distribution["logits"][0]
    top = [math.exp((logit - largest) / temperature) for logit in distribution["logits"]]
    remaining_weight = sum(count * math.exp((logit - largest) / temperature) for logit, count in distribution["others"])
    return [weight / (sum(top) + remaining_weight) for weight in top]


def best_translation(answer: dict[str, Any]) -> str:
    """The best translation of an answer with its doubtful words underlined, and its confidence, if it has one."""
    best = answer["translations"][0]
    text, spans = best["text"], best.get("doubtful", [])
    marked, position = "", 0
    for start, end in spans:
        marked += f"{escape(text[position:start])}<u>{escape(text[start:end])}</u>"
        position = end
    lines = [f'<p class="translation">{marked}{escape(text[position:])}</p>']
    if "confidence" in best:
        lines.append(f"<p>Confidence: {best['confidence']:.0%}, {CONFIDENCE}</p>")
    if spans:
        lines.append(f'<p class="legend">{LEGEND}</p>')
    if "problems" in best:
        lines.append(f"<p>Doubtful: {'; '.join(best['problems'])}.</p>")
    return "".join(lines)


def ranking(answer: dict[str, Any]) -> str:
    """All translations of an answer with their scores."""
    rows = "".join(
        f'<tr><th scope="row">{rank}</th><td class="text">{escape(one["text"])}</td><td>{one["score"]:.3f}</td></tr>'
        for rank, one in enumerate(answer["translations"], 1)
    )
    return scrollable("All translations with their scores", TRANSLATION_HEADING.format("score"), rows)


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The best translations of two answers and their log-probabilities, with the changes marked."""
    first, second = (answer["translations"][0] for answer in (before, after))
    rows = [
        ("all parts on", escape(first["text"]), first["score"]),
        ("parts off", changes(first["text"], second["text"]), second["score"]),
    ]
    cells = "".join(
        f'<tr><th scope="row" class="name">{name}</th><td class="text">{text}</td><td>{score:.2f}</td></tr>'
        for name, text, score in rows
    )
    caption = "Translations and their log-probabilities"
    return scrollable(caption, TRANSLATION_HEADING.format("log p"), cells)


def changes(before: str, after: str) -> str:
    """The second text with its new words marked, and the words of the first text that it lacks struck through."""
    old, new = before.split(), after.split()
    parts = []
    for kind, i, j, k, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        removed, added = escape(" ".join(old[i:j])), escape(" ".join(new[k:end]))
        if kind == "equal":
            parts.append(added)
        else:
            parts += [f"<del>{removed}</del>"] * bool(removed) + [f"<ins>{added}</ins>"] * bool(added)
    return " ".join(parts)

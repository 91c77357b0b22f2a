"""What mkdocs does with each page, for readers without internet and with narrow screens.

A comment `<!-- fields of package.Class -->` becomes a table of the fields of a dataclass, from its docstring. Mermaid
diagrams are drawn as SVG: the theme would load a script from another host. A click on a picture opens it alone. Code in
a line is broken between its parts: the theme would break names of arguments and files anywhere.
"""

import hashlib
import inspect
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import mermaidx

from modeling_random_transformer.base.flags import help_texts

SETTINGS = '%%{init: {"flowchart": {"htmlLabels": false, "wrappingWidth": 400}, "theme": "neutral"}}%%\n'
IMAGE = re.compile(r'<img alt="[^"]*" src="([^"]*/images/[^"]+)"\s*/?>')
FIELDS = re.compile(r"<!-- fields of ([\w.]+) -->")
INLINE_CODE = re.compile(r"<code>([^<\n]+)</code>")
MAX_UNBROKEN = 20  # characters of a word: in a table, a third of a phone's width


def on_config(config: Any) -> Any:
    """Draw the blocks of Mermaid code."""
    (fence,) = config.mdx_configs["pymdownx.superfences"]["custom_fences"]
    fence["format"] = draw
    return config


def draw(source: str, *_: Any, **__: Any) -> str:
    """The SVG of a diagram. It is as wide as its text needs, and scrolls on a narrow screen."""
    name = f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:8]}"  # the styles of diagrams of a page are separate
    svg = mermaidx.render(SETTINGS + source).svg().replace("my-svg", name)
    box = "overflow-x: auto; background: #fff; padding: 8px; border-radius: 4px"
    return f'<div style="{box}" tabindex="0"><div style="min-width: 620px">{svg}</div></div>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the tables of fields."""
    return FIELDS.sub(lambda found: table_of_fields(resolve_name(found[1])), markdown)


def table_of_fields(kind: Any) -> str:
    """The documented fields of a dataclass itself, not of its base classes, as a table in Markdown."""
    texts = help_texts(kind)
    annotations = inspect.get_annotations(kind)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for entry in fields(kind):
        if entry.name in annotations and entry.name in texts:
            type_ = inspect.formatannotation(annotations[entry.name]).replace("|", "\\|")
            meaning = texts[entry.name].replace("|", "\\|").replace("<", "&lt;")
            rows.append(f"| `{entry.name}` | {type_} | {default_of(entry)} | {meaning} |")
    return "\n".join(rows)


def default_of(entry: Field) -> str:
    """The default of a field, as code; nothing for a required one."""
    return "" if entry.default is MISSING else f"`{entry.default!r}`"


def on_page_content(content: str, config: Any, **_: Any) -> str:
    """Link each picture to its SVG, which can be enlarged, or to itself. Choose where code in a line may be broken."""

    def linked(found: re.Match[str]) -> str:
        source = found[1]
        large = source.replace(".png", ".svg")
        exists = Path(config.docs_dir, "images", Path(large).name).is_file()
        return f'<a href="{large if exists else source}" title="open alone">{found[0]}</a>'

    return INLINE_CODE.sub(breakable, IMAGE.sub(linked, content))


def breakable(code: re.Match[str]) -> str:
    """Code in a line. It is broken between words, and long words but flags also after `_`, `/`, `=`, `,` or `.`."""

    def one(word: re.Match[str]) -> str:
        if len(word[0]) <= MAX_UNBROKEN or re.fullmatch(r"--\w+", word[0]):
            return f'<span style="white-space: nowrap">{word[0]}</span>'
        return re.sub(r"(?<=[_/=,.])", "<wbr>", word[0])

    return f'<code style="word-break: normal">{re.sub(r"[^ ]+", one, code[1])}</code>'

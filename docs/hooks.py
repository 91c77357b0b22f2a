"""What mkdocs does with each page, for readers without internet and with narrow screens.

A comment `<!-- fields of package.Class -->` becomes a table of the fields of a dataclass, from its docstring. The
request to write a prediction down becomes a box to write into, which GitHub would show as text. Mermaid diagrams are
drawn as SVG: the theme would load a script from another host. A click on a picture opens it alone. Code in a line is
broken between its parts: the theme would break names of arguments and files anywhere. Each notebook of
`examples/notebooks` is a page too, with its stored outputs, to which its name in other pages is a link.
"""

import hashlib
import html
import inspect
import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import mermaidx
from mkdocs.structure.files import File, InclusionLevel
from mkdocs.utils import get_relative_url

from modeling_random_transformer.extras.parser import help_texts

SETTINGS = '%%{init: {"flowchart": {"htmlLabels": false, "wrappingWidth": 400}, "theme": "neutral"}}%%\n'
IMAGE = re.compile(r'<img alt="[^"]*" src="([^"]*/images/[^"]+)"\s*/?>')
FIELDS = re.compile(r"<!-- fields of ([\w.]+) -->")
PREDICTION = "*Write your prediction down.*"
BOX = '<textarea rows="2" style="width: 100%" placeholder="Your prediction"></textarea>'
NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOK_NAME = re.compile(r"<code>(?:examples/notebooks/)?(\d\d_\w+)\.ipynb</code>")
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


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        content = "\n\n".join(filter(None, map(cell_in_markdown, cells)))
        page = File.generated(config, f"notebooks/{path.stem}.md", content=content)
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def cell_in_markdown(cell: dict[str, Any]) -> str:
    """A cell of a notebook with its outputs. The cell that installs the package is left out."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source.replace("<details>", '<details markdown="1">')
    if "pip install" in source:
        return ""
    return "\n\n".join([f"```python\n{source}\n```", *map(output_in_html, cell["outputs"])])


def output_in_html(output: dict[str, Any]) -> str:
    """What a cell printed or drew."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="output of the cell" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "image/svg+xml" in data:
        return f"<div>{''.join(data['image/svg+xml'])}</div>"
    lines = output.get("text", data.get("text/plain", []))
    return f"<pre><code>{html.escape(''.join(lines))}</code></pre>"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the tables of fields and the boxes for predictions."""
    with_boxes = markdown.replace(PREDICTION, BOX)
    return FIELDS.sub(lambda found: table_of_fields(resolve_name(found[1])), with_boxes)


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


def on_page_content(content: str, config: Any, page: Any, **_: Any) -> str:
    """Link each picture to its SVG, which can be enlarged, or to itself, and each name of a notebook to its page.

    Choose where code in a line may be broken.
    """

    def linked(found: re.Match[str]) -> str:
        source = found[1]
        large = source.replace(".png", ".svg")
        exists = Path(config.docs_dir, "images", Path(large).name).is_file()
        return f'<a href="{large if exists else source}" title="open alone">{found[0]}</a>'

    def with_page(found: re.Match[str]) -> str:
        return f'<a href="{get_relative_url(f"notebooks/{found[1]}/", page.url)}">{found[0]}</a>'

    return INLINE_CODE.sub(breakable, NOTEBOOK_NAME.sub(with_page, IMAGE.sub(linked, content)))


def breakable(code: re.Match[str]) -> str:
    """Code in a line. It is broken between words, and long words but flags also after `_`, `/`, `=`, `,` or `.`."""

    def one(word: re.Match[str]) -> str:
        if len(word[0]) <= MAX_UNBROKEN or re.fullmatch(r"--\w+", word[0]):
            return f'<span style="white-space: nowrap">{word[0]}</span>'
        return re.sub(r"(?<=[_/=,.])", "<wbr>", word[0])

    return f'<code style="word-break: normal">{re.sub(r"[^ ]+", one, code[1])}</code>'

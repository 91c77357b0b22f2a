"""Build a static site that works offline: documentation, web translator, and the explorer of prepared sentences.

    python examples/build_site.py outputs/quickstart                  # writes outputs/site, as does `make site`
    python -m http.server --directory outputs/site              # any static host can serve it

The explorer shows the sentences that the model card of the model lists (`widget`). Diagrams are drawn when the site is
built, and all scripts are part of it. Requires mkdocs (`pip install -e '.[docs]'`), onnxruntime and npm.

Exit status: 0 on success; 2 if an argument is invalid, the model card lists no sentences, or a page has a broken link.
"""

import html
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plotly
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import MkDocsException

from modeling_random_transformer.commands.command_line import model_folder
from modeling_random_transformer.extras.export import export_web_page
from modeling_random_transformer.extras.export.web import read_greeting
from modeling_random_transformer.extras.inspection.explorer import explore, render
from modeling_random_transformer.inference.loading import load_translator
from tutorials.scripts import exit_status, script_parser

ROOT = Path(__file__).parents[1]
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
NUM_BEAMS, MAX_NEW_TOKENS = 4, 64
TRY_IT = """# Try it

{about}

- [**Watch** a Transformer learn](micro_transformer.html) to write numbers in German, in two minutes.
- <a href="../translator/">**Translate** your own sentence in this browser</a>. It shows what each word attends to, and
  what beam search keeps and discards.
- **Explore** a prepared sentence: every token with its alternatives, why it was preferred, all attention maps, and all
  candidates of the beam search.

{sentences}
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = script_parser("build_site.py", __doc__)
    parser.add_argument("model", type=model_folder, metavar="FOLDER", help="a saved translation model")
    parser.add_argument("--output", type=Path, default=Path("outputs", "site"), help="folder to write")
    parser.add_argument(
        "--npm_cache", type=Path, metavar="FOLDER", help="JavaScript packages that are downloaded already"
    )
    args = parser.parse_args(argv)
    return exit_status(lambda: write_site(args.model, args.output, args.npm_cache), "build_site.py")


def write_site(folder: Path, output: Path, npm_cache: Path | None) -> None:
    """Write the site of a model; existing pages are replaced.

    Raises:
        ValueError: the model card lists no sentences, a page has a broken link, or the model cannot be exported.
    """
    greeting = read_greeting(folder / "README.md")
    if not greeting["examples"]:
        raise ValueError(
            f"{folder / 'README.md'} must list sentences (widget), as that of examples/quickstart.py does."
        )
    print("Documentation …", flush=True)
    write_documentation(output, greeting)
    model, tokenizer = load_translator(folder)
    print("Translator …", flush=True)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # warns that torchvision, which is not used, is missing
    shutil.rmtree(output / "translator", ignore_errors=True)
    export_web_page(model, tokenizer, output / "translator", npm_cache=npm_cache, card=folder / "README.md")
    write_explorer(output / "explorer", model, tokenizer, greeting["examples"])
    print(f"Wrote {output}. Serve it with: python -m http.server --directory {output}")


def write_documentation(output: Path, greeting: dict[str, Any]) -> None:
    """Build the documentation with a page that links to the translator and the explorer."""
    with TemporaryDirectory() as temporary:
        pages = Path(temporary, "docs")
        shutil.copytree(ROOT / "docs", pages)
        links = [f'    1. <a href="../explorer/{page_name(i)}">{html.escape(text)}</a>' for i, text in listed(greeting)]
        page = TRY_IT.format(about=html.escape(greeting["about"]), sentences="\n".join(links))
        (pages / "try_it.md").write_text(page, encoding="utf-8")
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(output.resolve()), strict=True)
        config["nav"].insert(1, {"Try it": "try_it.md"})
        try:
            config.plugins.on_startup(command="build", dirty=False)
            build(config)
        except MkDocsException as error:
            raise ValueError(f"the documentation must be complete, got {error}") from error


def write_explorer(folder: Path, model: Any, tokenizer: Any, sentences: Sequence[str]) -> None:
    """A page for each sentence, all with one copy of plotly.js."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PLOTLY, folder / PLOTLY.name)
    for index, sentence in enumerate(sentences):
        print(f"Explorer: {sentence}", flush=True)
        data = explore(model, tokenizer, sentence, NUM_BEAMS, max_new_tokens=MAX_NEW_TOKENS)
        (folder / page_name(index)).write_text(render(data, PLOTLY.name), encoding="utf-8")


def listed(greeting: dict[str, Any]) -> list[tuple[int, str]]:
    return list(enumerate(greeting["examples"]))


def page_name(index: int) -> str:
    return f"sentence_{index + 1}.html"


if __name__ == "__main__":
    sys.exit(main())

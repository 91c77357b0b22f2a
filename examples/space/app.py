"""A page and an HTTP API for a translation model: translate, look inside, switch parts off.

    python examples/space/app.py outputs/quickstart        # a folder with a saved model
    python examples/space/app.py someone/a-model           # a model on the Hub

Without an argument, the model is that of the environment variable MODEL, or the folder `model` beside this file. The
environment variables GRADIO_SERVER_NAME and GRADIO_SERVER_PORT set the address.
"""

import argparse
import html
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import gradio as gr
except ModuleNotFoundError:
    sys.exit("app.py: error: gradio must be installed: pip install 'random-transformer[space]'.")

import transformers
from inference import Translator, find_model
from model_files import greeting, show_card, show_training
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from tabs import explore_tab, inside_tab, intervene_tab, translate_tab
from views import CSS

MAX_QUEUE = 256  # waiting requests
MAX_BODY = 2**16  # bytes of a request
MAX_SESSIONS = 100  # browser tabs whose traced sentence is kept
CACHE = (3600, 3600)  # seconds between deletions of gradio's temporary files, and their age
# After each request, gradio would summarize all earlier ones for a page of statistics, in more time than a translation.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
# System fonts, and colors whose contrast with the background is at least 4.5:1.
THEME = gr.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]).set(
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover_dark="*primary_800",
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    color_accent="*primary_700",
    color_accent_soft="*primary_50",
)


def main(argv: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("app.py", argparse.SUPPRESS, __doc__, formatter_class=raw)
    default = os.environ.get("MODEL") or str(Path(__file__).parent / "model")
    parser.add_argument("model", nargs="?", default=default, help="folder of a saved model, or its name on the Hub")
    args = parser.parse_args(argv)
    try:
        serve(args.model)
    except (ValueError, FloatingPointError) as error:
        parser.error(str(error))
    return 0


def serve(model: str) -> None:
    """Serve the page of a model until the process is stopped.

    Raises:
        ValueError: the model cannot be loaded.
        FloatingPointError: a weight is not finite.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = find_model(model)
    launch(build_page(Translator(folder), folder))


def launch(page: gr.Blocks, **options: Any) -> tuple[Any, str, Any]:
    """Start the server, with more options of gradio's `launch`; returns the application, its address, and `None`."""
    return page.launch(
        css=CSS,
        theme=THEME,
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        state_session_capacity=MAX_SESSIONS,
        # The page has no upload; gradio's endpoint for it cannot be removed.
        max_file_size=1,
        app_kwargs={"middleware": [Middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY)]},
        _frontend=False,  # no request of gradio to its own page, which ends the process after 3 s on a loaded machine
        **options,
    )


def build_page(translator: Translator, folder: Path) -> gr.Blocks:
    with gr.Blocks(title="Random Transformer", analytics_enabled=False, delete_cache=CACHE) as page:
        about, examples = greeting(folder)
        gr.HTML(f"<h1>Translate with {html.escape(folder.resolve().name)}</h1><p>{html.escape(about)}</p>")
        with gr.Tab("Translate"):
            gr.HTML("<p>Write a text; the model translates sentence by sentence, one token after the other.</p>")
            translate_tab(translator, examples)
        with gr.Tab("Inside"):
            gr.HTML("<p>Which source tokens the model attended to for each token, and what else it could write.</p>")
            inside_tab(translator, examples)
        with gr.Tab("Explore"):
            gr.HTML("<p>Why each token was preferred to others, and what beam search kept and discarded.</p>")
            explore_tab(translator, examples)
        with gr.Tab("Intervene"):
            gr.HTML("<p>Switch heads and layers off, and see which of them the translation needs.</p>")
            intervene_tab(translator, examples)
        with gr.Tab("Training curve"):
            gr.HTML("<p>The loss while the model was trained: the lower, the more probable the correct tokens.</p>")
            show_training(folder)
        with gr.Tab("Model card"):
            gr.HTML("<p>What the model was made for, from which data, and how well it translates.</p>")
            show_card(folder)
    return page.queue(max_size=MAX_QUEUE, api_open=False)


if __name__ == "__main__":
    sys.exit(main())

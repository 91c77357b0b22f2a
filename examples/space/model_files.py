"""Training curve and model card, from the files of a saved model."""

import base64
import html
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd
from huggingface_hub import ModelCard

from modeling_random_transformer.base.errors import reraise_as_value_error
from modeling_random_transformer.extras.export.web import read_greeting

LOSSES = {"loss": "training", "eval_loss": "validation"}
PLOTS = ("training.png", "loss.png")  # written by plot_training.py and quickstart.py


def greeting(folder: Path) -> tuple[str, list[str]]:
    """What the model can translate, and sentences to click, from its model card; empty if the card is damaged."""
    try:
        card = read_greeting(folder / "README.md")
    except ValueError:  # `show_card` reports it
        return "", []
    return card["about"], card["examples"]


def show_training(folder: Path) -> None:
    """The losses in the newest `trainer_state.json`, or a plot that was saved with the model."""
    points = shown_if_valid(lambda: losses(folder))
    plots = [folder / name for name in PLOTS if (folder / name).is_file()]
    if points:
        frame = pd.DataFrame(points, columns=["step", "loss", "set"])
        gr.LinePlot(frame, x="step", y="loss", color="set", title="Loss, nats per token", height=360)
        with gr.Accordion("The same as a table", open=False):
            gr.Dataframe(frame, interactive=False)
    elif plots:
        data = base64.b64encode(plots[0].read_bytes()).decode()
        gr.HTML(f'<img src="data:image/png;base64,{data}" alt="Loss by training step" style="max-width: 100%">')
    elif points is not None:
        gr.HTML("<p>The folder of the model has neither trainer_state.json nor training.png.</p>")


def losses(folder: Path) -> list[tuple[int, float, str]]:
    """Step, loss and set of each log entry; empty without a log."""
    checkpoints = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    for path in (folder / "trainer_state.json", *reversed(checkpoints)):
        if path.is_file():
            with reraise_as_value_error(path.name):
                log = json.loads(path.read_bytes())["log_history"]
                return [
                    (int(entry["step"]), float(entry[key]), name)
                    for key, name in LOSSES.items()
                    for entry in log
                    if key in entry
                ]
    return []


def show_card(folder: Path) -> None:
    """The model card of the folder. Its HTML is sanitized."""
    path = folder / "README.md"
    if not path.is_file():
        gr.HTML("<p>The folder of the model has no model card (README.md).</p>")
    elif text := shown_if_valid(lambda: card_text(path)):
        gr.Markdown(text, latex_delimiters=[])


def card_text(path: Path) -> str:
    """A model card without its metadata."""
    with reraise_as_value_error(path.name):
        return ModelCard.load(path).text


def shown_if_valid(read: Callable[[], Any]) -> Any:
    """What a function reads from a file. If it is damaged, warn on the page and in the terminal, and return `None`."""
    try:
        return read()
    except ValueError as error:
        gr.HTML(f"<p>{html.escape(str(error))}</p>")
        warnings.warn(str(error), stacklevel=2)
        return None

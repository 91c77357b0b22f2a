"""The tabs of the page that use the model."""

import html
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr
from inference import MAX_CHARACTERS, METHODS, RANGES, Inside, Options, Translator
from views import attention_table, best_translation, comparison, distribution_table, ranking

MAX_BATCH_SIZE = 32  # requests of one batch
# Only one event at a time uses the model.
ONE_BY_ONE: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
PRIVATE: dict[str, Any] = {"api_visibility": "private"}


def inputs_of_text(translator: Translator, examples: list[str]) -> list[Any]:
    """The text, sentences to click and, for a model of several languages, its languages."""
    text = gr.Textbox(label="Text", placeholder="a sentence", max_length=MAX_CHARACTERS, max_lines=6)
    if examples:
        gr.Examples([[one] for one in examples], text, label="Sentences to try", cache_examples=False, **PRIVATE)
    codes = translator.languages
    with gr.Row(visible=bool(codes)):
        source = gr.Dropdown(codes, value=codes[0] if codes else None, label="From")
        target = gr.Dropdown(codes, value=codes[:2][-1] if codes else None, label="To")
    return [text, source, target]


def slider(name: str, label: str, value: float, step: float, **options: Any) -> gr.Slider:
    lowest, highest, _ = RANGES[name]
    return gr.Slider(lowest, highest, value=value, step=step, label=label, **options)


def translate_tab(translator: Translator, examples: list[str]) -> None:
    text, source, target = inputs_of_text(translator, examples)
    method = gr.Radio(list(METHODS), value="beam search", label="Method")
    with gr.Row() as of_beams:
        num_beams = slider("num_beams", "Beams", 4, 1)
        penalty = min(translator.model.generation_config.length_penalty, RANGES["length_penalty"][1])
        length_penalty = slider("length_penalty", "Length penalty", penalty, 0.1)
    with gr.Row(visible=False) as of_sampling:
        temperature = slider("temperature", "Temperature", 1.0, 0.1)
        top_p = slider("top_p", "Top p", 1.0, 0.05)
        seed = gr.Number(0, label="Seed", precision=0)
    with gr.Row() as of_both:
        n_best = slider("n_best", "Number of translations", 3, 1)
    button = gr.Button("Translate", variant="primary")
    best = gr.HTML(label="Translation", show_label=True, container=True, padding=True)
    alternatives = gr.HTML()
    with gr.Accordion("Answer of the HTTP API", open=False):
        answer = gr.JSON(label="Answer")

    def translate(  # each argument has one value per request
        text: Any,
        method: Any,
        num_beams: Any,
        n_best: Any,
        length_penalty: Any,
        temperature: Any,
        top_p: Any,
        seed: Any,
        src_lang: Any = None,
        tgt_lang: Any = None,
    ) -> tuple[list[dict[str, Any]]]:
        """Translate a text; returns {"translations": [{"text": …, "score": …}, …]} or {"error": …}.

        With a calibrated model, a translation has "confidence" and "doubtful", the spans of its doubtful words.
        """
        columns = (method, num_beams, n_best, length_penalty, temperature, top_p, seed, src_lang, tgt_lang)
        return (translator.translate(text, [Options(*row) for row in zip(*columns, strict=True)]),)

    def show(answer: dict[str, Any]) -> tuple[str, str]:
        if "error" in answer:
            raise user_error(answer["error"])
        return best_translation(answer), ranking(answer)

    # The values of components are checked by `translate`: gradio would fail the other requests of the batch too.
    inputs = [text, method, num_beams, n_best, length_penalty, temperature, top_p, seed, source, target]
    batched = {"batch": True, "max_batch_size": MAX_BATCH_SIZE, "preprocess": False, **ONE_BY_ONE}
    started = gr.on([button.click, text.submit], translate, inputs, answer, api_name="translate", **batched)
    started.success(show, answer, [best, alternatives], **PRIVATE)
    rows = [of_beams, of_sampling, of_both]
    method.change(
        lambda name: [gr.Row(visible=name in shown) for shown in (METHODS[1:2], METHODS[2:], METHODS[1:])],
        method,
        rows,
        queue=False,
        **PRIVATE,
    )


def inside_tab(translator: Translator, examples: list[str]) -> None:
    inputs = inputs_of_text(translator, examples)
    num_beams = slider("num_beams", "Beams", 4, 1)
    button = gr.Button("Translate and look inside", variant="primary")
    config = translator.model.config
    with gr.Column(visible=False) as results:
        with gr.Row():
            step = gr.Slider(1, 2, value=1, step=1, label="Generated token")
            temperature = slider("temperature", "Temperature", 1.0, 0.1)
        with gr.Row():
            previous, following = gr.Button("Previous token"), gr.Button("Next token")
        distribution = gr.HTML()
        with gr.Row():
            layer = gr.Dropdown(
                list(range(config.decoder_layers)), value=config.decoder_layers - 1, label="Layer, from 0"
            )
            heads = [("mean of the heads", -1), *((f"head {head}", head) for head in range(config.num_heads))]
            head = gr.Dropdown(heads, value=-1, label="Head, from 0")
        attention = gr.HTML()
    inside = gr.State(time_to_live=3600)

    def inspect(text: str, src_lang: str | None, tgt_lang: str | None, num_beams: int) -> list[Any]:
        with errors_for_user():
            inside = translator.inspect(text, Options(num_beams=num_beams, src_lang=src_lang, tgt_lang=tgt_lang))
        return [inside, gr.Slider(maximum=max(2, len(inside.target)), value=1), gr.Column(visible=True)]

    def show(inside: Inside | None, step: int, temperature: float, layer: int, head: int) -> list[str]:
        if inside is None:
            return ["", ""]
        index = min(step, len(inside.target)) - 1
        return [
            distribution_table(inside, index, temperature),
            attention_table(inside, layer, None if head < 0 else head, index),
        ]

    def move(change: int, step: int, inside: Inside) -> int:
        return min(max(step + change, 1), len(inside.target))

    controls: list[Any] = [step, temperature, layer, head]
    shown = [distribution, attention]
    started = gr.on(
        [button.click, inputs[0].submit],
        inspect,
        [*inputs, num_beams],
        [inside, step, results],
        **ONE_BY_ONE,
        **PRIVATE,
    )
    started.success(show, [inside, *controls], shown, queue=False, **PRIVATE)
    for control in controls:
        control.change(
            show, [inside, *controls], shown, queue=False, show_progress="hidden", trigger_mode="always_last", **PRIVATE
        )
    for side, change in ((previous, -1), (following, 1)):
        side.click(partial(move, change), [step, inside], step, queue=False, show_progress="hidden", **PRIVATE)


def explore_tab(translator: Translator, examples: list[str]) -> None:
    """The page of the explorer in a frame, whose scripts cannot access this page."""
    inputs = inputs_of_text(translator, examples)
    num_beams = slider("num_beams", "Beams", 4, 1)
    button = gr.Button("Translate and explore", variant="primary")
    result = gr.HTML()
    plotly = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
    gr.set_static_paths([plotly])

    def show(text: str, src_lang: str | None, tgt_lang: str | None, num_beams: int) -> str:
        with errors_for_user():
            options = Options(num_beams=num_beams, n_best=1, src_lang=src_lang, tgt_lang=tgt_lang)
            page = translator.explore(text, options, f"gradio_api/file={plotly}")
        return (
            f'<iframe class="explorer" sandbox="allow-scripts" title="explorer" srcdoc="{html.escape(page)}"></iframe>'
        )

    gr.on([button.click, inputs[0].submit], show, [*inputs, num_beams], result, **ONE_BY_ONE, **PRIVATE)


def intervene_tab(translator: Translator, examples: list[str]) -> None:
    inputs = inputs_of_text(translator, examples)
    button = gr.Button("Translate", variant="primary")
    result = gr.HTML()
    groups = []
    for number, (label, choices) in enumerate(translator.parts().items()):
        with gr.Accordion(f"Switch off parts of {label}", open=number == 0):
            groups.append(gr.CheckboxGroup(choices, label=label))

    def intervene(text: str, off: list[str], src_lang: str | None = None, tgt_lang: str | None = None) -> list[dict]:
        """Translate greedily with the complete model and with parts of it switched off."""
        with errors_for_user(api=True):
            return list(translator.ablate(text, Options("greedy", src_lang=src_lang, tgt_lang=tgt_lang), off))

    def show(text: str, src_lang: str | None, tgt_lang: str | None, *off: list[str]) -> str:
        with errors_for_user():
            options = Options("greedy", src_lang=src_lang, tgt_lang=tgt_lang)
            return comparison(*translator.ablate(text, options, [path for paths in off for path in paths]))

    def show_if_given(text: str, *arguments: Any) -> str:
        return show(text, *arguments) if text and text.strip() else ""

    gr.api(intervene, api_name="intervene", **ONE_BY_ONE)
    gr.on([button.click, inputs[0].submit], show, [*inputs, *groups], result, **ONE_BY_ONE, **PRIVATE)
    changed = [group.change for group in groups]
    gr.on(changed, show_if_given, [*inputs, *groups], result, trigger_mode="always_last", **ONE_BY_ONE, **PRIVATE)


@contextmanager
def errors_for_user(api: bool = False) -> Iterator[None]:
    """Show the message of a `ValueError` on the page or, with `api`, to clients of the API."""
    try:
        yield
    except ValueError as error:
        raise user_error(str(error), api) from error


def user_error(message: str, api: bool = False) -> gr.Error:
    """An error for the page, which renders messages as HTML, or for clients of the API."""
    return gr.Error(message if api else html.escape(message), print_exception=False)

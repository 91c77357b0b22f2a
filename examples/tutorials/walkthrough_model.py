"""The walk through any saved model: from the words of a sentence to the answer, one layer and one head in full."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer.tracing import Trace, trace
from modeling_random_transformer.utils.command_line import load_translator

from .tokens_as_text import tokens_of
from .walkthrough_display import Display

LIKELIEST = 5  # tokens shown at each step of the output
MAX_NEW_TOKENS = 128


def walk_model(show: Display, folder: Path, sentence: str, layer: int, head: int) -> None:
    """Translate greedily, and show how.

    Raises:
        ValueError: the folder cannot be read, or the model has no such layer or head.
    """
    model, tokenizer = load_translator(folder)
    inputs = tokenizer(sentence, return_tensors="pt")
    with trace(model, layers=[layer], heads=[head]):
        pass  # refuses what cannot be shown, before the work is done
    ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=MAX_NEW_TOKENS)
    with torch.no_grad(), trace(model, heads=[head]) as found:
        model(**inputs, decoder_input_ids=ids[:, :-1])
    source = tokens_of(tokenizer, inputs["input_ids"][0])
    target = tokens_of(tokenizer, ids[0])
    model_tokens(show, source, inputs["input_ids"][0])
    model_embedding(show, found, source)
    model_encoder(show, found, source, layer)
    model_decoder(show, found, target[:-1], source, layer)
    model_depth(show, found)
    model_output(show, found, tokenizer, target)
    show.begin("model_answer")
    show.say("answer", sentence=sentence, answer=tokenizer.decode(ids[0], skip_special_tokens=True))


def model_tokens(show: Display, tokens: list[str], ids: Tensor) -> None:
    show.begin("model_tokens")
    show.table("model_tokens.columns", list(zip(range(len(tokens)), tokens, ids.tolist(), strict=True)))


def model_embedding(show: Display, found: Trace, tokens: list[str]) -> None:
    show.begin("model_embedding")
    show_values(show, found, "encoder.embedding.", tokens)


def model_encoder(show: Display, found: Trace, tokens: list[str], layer: int) -> None:
    show.begin("model_encoder", layer=layer)
    show_values(show, found, f"encoder.layers.{layer}.", tokens)


def model_decoder(show: Display, found: Trace, tokens: list[str], source: list[str], layer: int) -> None:
    show.begin("model_decoder", layer=layer)
    show_values(show, found, f"decoder.layers.{layer}.", tokens, source)


def show_values(show: Display, found: Trace, start: str, tokens: list[str], source: list[str] | None = None) -> None:
    """Every value whose path starts so, a row for each token; keys and values of cross-attention have the source's."""
    for path in found:
        if path.startswith(start) and not path.endswith(".ids"):
            step = found.explain(path)
            of_source = source and "encoder_attn.head" in path and path.endswith((".key", ".value"))
            value = found[path] if path.endswith(".position") else found[path][0]
            rows = source if of_source and source else tokens
            show.array(path.removeprefix(start), column_if_one(value), f"{step.formula}  ({step.section})", rows)


def column_if_one(value: Tensor) -> Tensor:
    """Numbers of tokens, one each, below each other."""
    return value[:, None] if value.dim() == 1 else value


def model_depth(show: Display, found: Trace) -> None:
    """How much each sub-layer adds to the residual stream: root mean squares over tokens and width."""
    show.begin("model_depth")
    rows = []
    for path, value in found.items():
        if path.endswith(".residual"):
            name = path.removesuffix(".residual")
            added, state = found[f"{name}.output"], found[f"{name}.layer_norm"]
            rows.append((name, *(f"{states.square().mean().sqrt().item():.3f}" for states in (added, value, state))))
    show.table("model_depth.columns", rows)


def model_output(show: Display, found: Trace, tokenizer: Any, target: list[str]) -> None:
    show.begin("model_output")
    rows = []
    for step, probabilities in enumerate(found["probabilities"][0]):
        likeliest = probabilities.topk(min(LIKELIEST, len(probabilities)))
        names = tokens_of(tokenizer, likeliest.indices)
        others = "  ".join(f"{name} {value:.3f}" for name, value in zip(names, likeliest.values.tolist(), strict=True))
        rows.append((step, target[step], target[step + 1], others))
    show.table("model_output.columns", rows)

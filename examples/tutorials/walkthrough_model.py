"""The walkthrough of a saved model: from the tokens to the translation, with all values of one layer and head."""

import itertools
from pathlib import Path
from typing import Any

import torch

from modeling_random_transformer.extras.inspection import Trace, trace
from modeling_random_transformer.extras.inspection.explorer import token_texts
from modeling_random_transformer.inference.loading import load_translator
from modeling_random_transformer.inputs_random_transformer import encode_texts

from .walkthrough_display import Display

TOP_TOKENS = 5  # printed for each decoding step
MAX_NEW_TOKENS = 128


def walkthrough_model(display: Display, folder: Path, sentence: str, layer: int, head: int) -> None:
    """Translate greedily and print the intermediate values.

    Raises:
        ValueError: the folder cannot be loaded, or the model has no such layer or head.
    """
    model, tokenizer = load_translator(folder)
    inputs = encode_texts(tokenizer, sentence, return_tensors="pt")
    with trace(model, layers=[layer], heads=[head]):
        pass  # raises for an invalid layer or head before the translation starts
    ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=MAX_NEW_TOKENS)
    with torch.no_grad(), trace(model, heads=[head]) as recorded:
        model(**inputs, decoder_input_ids=ids[:, :-1])
    source_ids = inputs["input_ids"][0]
    source = token_texts(tokenizer, source_ids)
    target = token_texts(tokenizer, ids[0])
    display.begin("model_tokens")
    display.table("model_tokens.columns", list(zip(range(len(source)), source, source_ids.tolist(), strict=True)))
    display.begin("model_embedding")
    show_values(display, recorded, "encoder.embedding.", source)
    display.begin("model_encoder", layer=layer)
    show_values(display, recorded, f"encoder.layers.{layer}.", source)
    display.begin("model_decoder", layer=layer)
    positions = [f"{token} → {predicted}" for token, predicted in itertools.pairwise(target)]
    show_values(display, recorded, f"decoder.layers.{layer}.", positions, source)
    show_residual_stream(display, recorded)
    show_output(display, recorded, tokenizer, target)
    display.begin("model_answer")
    display.print("answer", sentence=sentence, answer=tokenizer.decode(ids[0], skip_special_tokens=True))


def show_values(
    display: Display, recorded: Trace, prefix: str, tokens: list[str], source: list[str] | None = None
) -> None:
    """Print each value whose path has the prefix, one row per token. Cross-attention has keys of `source`."""
    for path in recorded:
        if path.startswith(prefix) and not path.endswith(".ids"):
            step = recorded.explain(path)
            of_source = source and "encoder_attn.head" in path and path.endswith((".key", ".value"))
            value = recorded[path] if path.endswith(".position") else recorded[path][0]
            rows = source if of_source and source else tokens
            if value.dim() == 1:  # one number per token
                value = value[:, None]
            display.array(path.removeprefix(prefix), value, f"{step.formula}  ({step.section})", rows)


def show_residual_stream(display: Display, recorded: Trace) -> None:
    """Print the contribution of each sub-layer to the residual stream: root mean squares over tokens and dimensions."""
    display.begin("model_residual_stream")
    rows = []
    for path, value in recorded.items():
        if path.endswith(".residual"):
            name = path.removesuffix(".residual")
            values = (recorded[f"{name}.output"], value, recorded[f"{name}.layer_norm"])
            rows.append((name, *(f"{states.square().mean().sqrt().item():.3f}" for states in values)))
    display.table("model_residual_stream.columns", rows)


def show_output(display: Display, recorded: Trace, tokenizer: Any, target: list[str]) -> None:
    display.begin("model_output")
    rows = []
    for step, probabilities in enumerate(recorded["probabilities"][0]):
        top = probabilities.topk(min(TOP_TOKENS, len(probabilities)))
        names = token_texts(tokenizer, top.indices)
        candidates = "  ".join(f"{name} {value:.3f}" for name, value in zip(names, top.values.tolist(), strict=True))
        rows.append((step, target[step], target[step + 1], candidates))
    display.table("model_output.columns", rows)

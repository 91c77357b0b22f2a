"""The explorer: a page of beam search, distributions, attribution, attention maps, statistics and positions.

page = render(explore(model, tokenizer, "a sentence", num_beams=4))
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...base.errors import reraise_as_value_error
from ...inference.translation import length_penalty_of
from ...inputs_random_transformer import encode_texts, source_text
from .attribution import logit_attribution, logit_lens
from .beam_search import Hypothesis, record_search, trim_padding
from .record import Trace, trace

EXPLORER_TEMPLATE = Path(__file__).with_suffix(".html")
SEARCH_TREE = Path(__file__).parents[1] / "export" / "page" / "search_tree.js"  # the web page of an export has it too
TOP_TOKENS = 40  # stored individually for each distribution; the others are stored as a histogram
BINS = 50
ATTRIBUTED = 12  # tokens of each step
MAX_POSITIONS, MAX_WIDTH = 64, 512  # size of the heat map of position encodings


def render(data: dict[str, Any], plotly: str | None = None) -> str:
    """The page of the explorer, as one file.

    Args:
        data: what `explore` returns.
        plotly: address of plotly.js; `None` to include its 5 MB in the page.

    Raises:
        ValueError: plotly is not installed.
    """
    with reraise_as_value_error("the page requires plotly: pip install 'random-transformer[explore]'"):
        from plotly.offline import get_plotlyjs
    script = f"<script>{get_plotlyjs()}</script>" if plotly is None else f'<script src="{plotly}"></script>'
    text = json.dumps(
        data,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    page = EXPLORER_TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("<!-- plotly.js -->", script)
    page = page.replace("/* search_tree.js */", SEARCH_TREE.read_text(encoding="utf-8"))
    return page.replace("/* data */", text.replace("<", "\\u003c"))  # no text can close the script element


def explore(
    model: Any, tokenizer: Any, sentence: str, num_beams: int, *, src_lang: str | None = None, **options: Any
) -> dict[str, Any]:
    """Translate a sentence by beam search and trace a forward pass over the best translation.

    `src_lang` is the language code of the sentence; `None` for the tokenizer's. `options` are those of `generate()`,
    such as `max_new_tokens`. The length penalty is that of `translate`.

    Returns:
        The data of the page, in types that JSON supports.

    Raises:
        ValueError: tracing does not support the model, or the sentence is longer than `tokenizer.model_max_length`.
    """
    model = model.eval()
    config = model.config
    text = source_text(sentence, tokenizer, config)
    inputs = encode_texts(tokenizer, text, src_lang=src_lang, return_tensors="pt")
    source_ids = inputs["input_ids"][0]
    if len(source_ids) > tokenizer.model_max_length:
        raise ValueError(f"sentence must have at most {tokenizer.model_max_length} tokens, got {len(source_ids)}.")
    options = {"length_penalty": length_penalty_of(model.generation_config), **options}
    outputs, hypotheses = record_search(model, inputs, num_beams, num_return_sequences=num_beams, **options)
    end_ids = torch.tensor(model.generation_config.eos_token_id).view(-1)
    best = trim_padding(outputs.sequences[0], end_ids)
    chosen = best[1:]
    with torch.no_grad(), trace(model) as recorded:
        passed = model(**inputs, decoder_input_ids=best[None, :-1], output_attentions=True)
    attentions = {  # one tensor per layer, [1, heads, query_len, key_len]
        "encoder": passed.encoder_attentions,
        "decoder": passed.decoder_attentions,
        "cross": passed.cross_attentions,
    }
    target = token_texts(tokenizer, best)
    predicted, source = cross_attention_labels(tokenizer, source_ids, best)
    return {
        "sentence": sentence,
        "translation": tokenizer.decode(best, skip_special_tokens=True),
        "source": source,
        "target": target,
        "labels": {  # labels of the rows and columns of each map
            "encoder": (source, source),
            "decoder": (target[:-1], target[:-1]),
            "cross": (predicted, source),
        },
        "layers": {"encoder": config.encoder_layers, "decoder": config.decoder_layers},
        "heads": config.num_heads,
        "maps": {kind: rounded(torch.cat(layers)) for kind, layers in attentions.items()},
        "steps": [distribution(logits, tokenizer) for logits in passed.logits[0]],
        "chosen": chosen.tolist(),
        "lens": lens(model, recorded, tokenizer, chosen),
        "attribution": attribution(model, recorded, tokenizer, chosen),
        "search": [search_node(hypothesis, tokenizer) for hypothesis in hypotheses],
        "positions": position_map(model),
        "statistics": statistics(recorded),
    }


def rounded(values: Tensor, decimals: int = 5) -> list[Any]:
    """Nested lists of rounded values."""
    return values.double().round(decimals=decimals).tolist()


def distribution(logits: Tensor, tokenizer: Any) -> dict[str, Any]:
    """Logits of the most probable tokens, and a histogram of the others: mean and count of each bin.

    The page computes the probabilities at any temperature from them.
    """
    logits, ids = logits.double().sort(descending=True)
    top_ids = ids[:TOP_TOKENS]
    rest = logits[TOP_TOKENS:]
    histogram = []
    for group in rest.tensor_split(BINS):
        if len(group):
            mean = group.logsumexp(0) - math.log(len(group))
            histogram.append([round(mean.item(), 4), len(group)])
    return {
        "ids": top_ids.tolist(),
        "tokens": token_texts(tokenizer, top_ids),
        "logits": rounded(logits[:TOP_TOKENS], 4),
        "others": histogram,
    }


@torch.no_grad()
def lens(model: Any, recorded: Trace, tokenizer: Any, chosen: Tensor) -> list[dict[str, Any]]:
    """After each sub-layer: the most probable token of each step, its probability, and that of the chosen token."""
    rows = []
    for path, logits in logit_lens(model, recorded):
        probabilities = logits[0].softmax(-1)
        highest, ids = probabilities.max(-1)
        chosen_probabilities = probabilities.gather(1, chosen[:, None])
        row = {
            "name": path,
            "tokens": token_texts(tokenizer, ids),
            "highest": rounded(highest),
            "chosen": rounded(chosen_probabilities[:, 0]),
        }
        rows.append(row)
    return rows


@torch.no_grad()
def attribution(model: Any, recorded: Trace, tokenizer: Any, chosen: Tensor) -> dict[str, Any]:
    """The contributions of the decoder's parts, at each step, to the logits of the chosen token and the best others."""
    logits = recorded["logits"][0]
    ids = logits.scatter(1, chosen[:, None], torch.inf).topk(ATTRIBUTED).indices  # the chosen token is the first
    values = logit_attribution(model, recorded, ids[None])
    first_rows = [value[0] for value in values.values()]
    by_part = torch.stack(first_rows, dim=-1)  # [steps, tokens, parts]
    return {
        "parts": list(values),
        "tokens": [token_texts(tokenizer, row) for row in ids],
        "values": rounded(by_part, 3),
    }


def search_node(hypothesis: Hypothesis, tokenizer: Any) -> dict[str, Any]:
    """A hypothesis of the beam search, with the text of its token."""
    node = asdict(hypothesis)
    [node["token"]] = token_texts(tokenizer, torch.tensor([hypothesis.id]))
    if hypothesis.attention is not None:
        node["attention"] = rounded(hypothesis.attention, decimals=3)
    return node


@torch.no_grad()
def position_map(model: Any) -> list[list[float]] | None:
    """The encoder's position encodings, `[positions, d_model]`, or None if it has none."""
    embed_positions = model.model.encoder.embed_positions
    if embed_positions is None:
        return None
    length = min(MAX_POSITIONS, model.config.max_position_embeddings)
    positions = torch.arange(length)
    encodings = embed_positions(positions, length)
    return rounded(encodings[:, :MAX_WIDTH])


def statistics(recorded: Trace) -> list[dict[str, Any]]:
    """Root mean square of each sub-layer's output, its sum with the residual, and the layer norm of the sum."""
    rows = []
    for path in recorded.select("*.residual"):
        name = path.removesuffix(".residual")
        variance = recorded[f"{name}.variance"].float()
        deviation = variance.sqrt().mean()
        row: dict[str, Any] = {"name": name, "deviation": round(deviation.item(), 5)}
        for part in ("output", "residual", "layer_norm"):
            value = recorded[f"{name}.{part}"].float()
            mean_square = value.square().mean()
            row[part] = round(mean_square.sqrt().item(), 5)
        rows.append(row)
    return rows


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """The text of each token in `ids` `[length]` with visible spaces; part of a multi-byte character becomes `�`."""
    texts = []
    for token in ids.tolist():
        text = tokenizer.decode([token])
        texts.append(text.replace(" ", "␣").replace("\n", "⏎") or "∅")
    return texts


def cross_attention_labels(tokenizer: Any, source: Tensor, target: Tensor) -> tuple[list[str], list[str]]:
    """Labels of the rows and columns of cross-attention weights: target tokens and source tokens.

    A row is that of the token which its logits predict. The token at its position of the decoder's input is the
    previous one.

    Args:
        tokenizer: the model's tokenizer.
        source: source ids, `[source_len]`.
        target: target ids with the start token, `[target_len + 1]`. All but the last are the decoder's input.
    """
    return token_texts(tokenizer, target[1:]), token_texts(tokenizer, source)

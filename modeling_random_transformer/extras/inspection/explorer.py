"""The data of the explorer page: beam search, distributions, attribution, attention maps, statistics, positions."""

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ...inputs_random_transformer import encode_texts
from ..inspection import Trace, trace
from .attribution import logit_attribution, logit_lens
from .beam_search import Candidate, record_search, trim_padding

TOP_TOKENS = 40  # stored individually for each distribution; the others are stored as a histogram
BINS = 50
ATTRIBUTED = 12  # tokens of each step
MAX_POSITIONS, MAX_WIDTH = 64, 512  # of the heat map of position encodings
MAPS = {"encoder": ("encoder", "self_attn"), "decoder": ("decoder", "self_attn"), "cross": ("decoder", "encoder_attn")}


def explore(model: Any, tokenizer: Any, sentence: str, num_beams: int, **options: Any) -> dict[str, Any]:
    """Translate a sentence by beam search and trace a forward pass over the best translation.

    `options` are those of `generate()`, such as `max_new_tokens`.

    Returns:
        The data of the page, in types that JSON supports.

    Raises:
        ValueError: tracing does not support the model, or the sentence is longer than `tokenizer.model_max_length`.
    """
    model = model.eval()
    inputs = encode_texts(tokenizer, sentence, return_tensors="pt")
    if (length := inputs["input_ids"].shape[1]) > tokenizer.model_max_length:
        raise ValueError(f"sentence must have at most {tokenizer.model_max_length} tokens, got {length}.")
    outputs, candidates = record_search(model, inputs, num_beams, num_return_sequences=num_beams, **options)
    best = trim_padding(outputs.sequences[0], torch.tensor(model.generation_config.eos_token_id).view(-1))
    with torch.no_grad(), trace(model) as recorded:
        model(**inputs, decoder_input_ids=best[None, :-1])
    target = token_texts(tokenizer, best)
    predicted, source = cross_attention_labels(tokenizer, inputs["input_ids"][0], best)
    return {
        "sentence": sentence,
        "translation": tokenizer.decode(best, skip_special_tokens=True),
        "source": source,
        "target": target,
        "labels": {  # of the rows and columns of each map
            "encoder": (source, source),
            "decoder": (target[:-1], target[:-1]),
            "cross": (predicted, source),
        },
        "layers": {"encoder": model.config.encoder_layers, "decoder": model.config.decoder_layers},
        "heads": model.config.num_heads,
        "maps": {name: rounded(attention_maps(recorded, *path, model.config)) for name, path in MAPS.items()},
        "steps": [distribution(logits, tokenizer) for logits in recorded["logits"][0]],
        "chosen": best[1:].tolist(),
        "lens": lens(model, recorded, tokenizer, best[1:]),
        "attribution": attribution(model, recorded, tokenizer, best[1:]),
        "search": [search_node(one, tokenizer) for one in candidates],
        "positions": position_map(model),
        "statistics": statistics(recorded),
    }


def rounded(values: Tensor, decimals: int = 5) -> list[Any]:
    """Nested lists of rounded values."""
    return values.double().round(decimals=decimals).tolist()


def attention_maps(recorded: Trace, stack: str, name: str, config: Any) -> Tensor:
    """Weights of the first source, `[layers, heads, query_len, key_len]`."""
    weights = recorded.select(f"{stack}.layers.*.{name}.head.*.weights")
    return torch.stack([each[0] for each in weights.values()]).unflatten(0, (-1, config.num_heads))


def distribution(logits: Tensor, tokenizer: Any) -> dict[str, Any]:
    """Logits of the most probable tokens, and a histogram of the others: mean and count of each bin.

    The page computes the probabilities at any temperature from them.
    """
    logits, ids = logits.double().sort(descending=True)
    kept, others = logits[:TOP_TOKENS], logits[TOP_TOKENS:]
    bins = [group for group in others.tensor_split(min(BINS, len(others))) if len(group)] if len(others) else []
    return {
        "ids": ids[:TOP_TOKENS].tolist(),
        "tokens": token_texts(tokenizer, ids[:TOP_TOKENS]),
        "logits": [round(value, 4) for value in kept.tolist()],
        "others": [[round(group.logsumexp(0).item() - math.log(len(group)), 4), len(group)] for group in bins],
    }


@torch.no_grad()
def lens(model: Any, recorded: Trace, tokenizer: Any, chosen: Tensor) -> list[dict[str, Any]]:
    """After each sub-layer: the most probable token of each step, its probability, and that of the chosen token."""
    rows = []
    for path, logits in logit_lens(model, recorded):
        probabilities = logits[0].softmax(-1)
        highest, ids = probabilities.max(-1)
        of_chosen = probabilities.gather(1, chosen[:, None])[:, 0]
        tokens = token_texts(tokenizer, ids)
        rows.append({"name": path, "tokens": tokens, "highest": rounded(highest), "chosen": rounded(of_chosen)})
    return rows


@torch.no_grad()
def attribution(model: Any, recorded: Trace, tokenizer: Any, chosen: Tensor) -> dict[str, Any]:
    """At each step, what each part of the decoder adds to the logits of the chosen token and of the best others."""
    best = recorded["logits"][0].topk(ATTRIBUTED).indices
    others = [torch.cat([one[None], row[row != one]]) for one, row in zip(chosen, best, strict=True)]
    ids = torch.stack([row[:ATTRIBUTED] for row in others])
    values = logit_attribution(model, recorded, ids[None])
    return {
        "parts": list(values),
        "tokens": [token_texts(tokenizer, row) for row in ids],
        "values": rounded(torch.stack([value[0] for value in values.values()], dim=-1), 3),  # [steps, tokens, parts]
    }


def search_node(candidate: Candidate, tokenizer: Any) -> dict[str, Any]:
    """A candidate of the beam search, with the text of its token."""
    attention = None if candidate.attention is None else rounded(candidate.attention, 3)
    token = token_texts(tokenizer, torch.tensor([candidate.id]))[0]
    return asdict(candidate) | {"token": token, "attention": attention}


def position_map(model: Any) -> list[list[float]] | None:
    """The encoder's position encodings, `[positions, d_model]`, or None if it has none."""
    positions, config = model.model.encoder.embed_positions, model.config
    if positions is None:
        return None
    length = min(MAX_POSITIONS, config.max_position_embeddings)
    with torch.no_grad():
        return rounded(positions(torch.arange(length), length)[:, :MAX_WIDTH])


def statistics(recorded: Trace) -> list[dict[str, Any]]:
    """Root mean square of each sub-layer's output, its sum with the residual, and the layer norm of the sum."""
    rows = []
    for path in recorded.select("*.residual"):
        name = path.removesuffix(".residual")
        values = {part: recorded[f"{name}.{part}"].float() for part in ("output", "residual", "layer_norm")}
        squares = {part: round(value.square().mean().sqrt().item(), 5) for part, value in values.items()}
        deviation = recorded[f"{name}.variance"].float().sqrt().mean().item()
        rows.append({"name": name, "deviation": round(deviation, 5), **squares})
    return rows


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """The text of each token in `ids` `[length]` with visible spaces; part of a multi-byte character becomes `�`."""
    return [tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎") or "∅" for token in ids.tolist()]


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

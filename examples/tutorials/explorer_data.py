"""What the explorer shows of a translation: attention, beam search, distributions, positions, statistics."""

import base64
import math
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from modeling_random_transformer.tracing import Trace, trace

from .tokens_as_text import tokens_of

LIKELIEST = 40  # tokens kept of each distribution one by one; the others only as a histogram
BINS = 50
POSITIONS, WIDTH = 64, 512  # of the heat map of positions, at most
MAPS = {
    "encoder": ("encoder", "self_attn"),
    "decoder": ("decoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
}


def explore(model: Any, tokenizer: Any, sentence: str, num_beams: int, max_new_tokens: int) -> dict[str, Any]:
    """Translate a sentence by beam search, look at the best translation again with a trace, and pack what was seen.

    Raises:
        ValueError: the model is of another kind, or the sentence too long for its positions.
    """
    model = model.eval()
    inputs = tokenizer(sentence, return_tensors="pt")
    with trace(model, heads=[]):
        pass  # refuses what cannot be shown, before the work is done
    search = BeamSearch()
    outputs = model.generate(
        **inputs,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        do_sample=False,
        max_new_tokens=max_new_tokens,
        logits_processor=LogitsProcessorList([search]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    ends = torch.tensor(model.generation_config.eos_token_id).view(-1)
    finished = [trimmed(ids, ends) for ids in outputs.sequences]
    best = finished[0]
    with torch.no_grad(), trace(model) as found:
        model(**inputs, decoder_input_ids=best[None, :-1])
    return {
        "sentence": sentence,
        "translation": tokenizer.decode(best, skip_special_tokens=True),
        "source": tokens_of(tokenizer, inputs["input_ids"][0]),
        "target": tokens_of(tokenizer, best),
        "layers": {"encoder": model.config.encoder_layers, "decoder": model.config.decoder_layers},
        "heads": model.config.num_heads,
        "maps": {name: attention_maps(found, *path, model.config) for name, path in MAPS.items()},
        "steps": [distribution(logits, tokenizer) for logits in found["logits"][0]],
        "chosen": best[1:].tolist(),
        "tree": search.tree(finished, tokenizer),
        "positions": position_map(model),
        "statistics": statistics(found),
    }


def trimmed(ids: Tensor, ends: Tensor) -> Tensor:
    """Without the padding behind the first of the end tokens; the start token may be one."""
    found = torch.isin(ids[1:], ends).nonzero()
    return ids[: int(found[0]) + 2] if len(found) else ids


def packed(values: Tensor, lowest: float, highest: float) -> dict[str, Any]:
    """Numbers between two bounds in 16 bits each, as base64 of little-endian integers."""
    steps = ((values.float() - lowest) / (highest - lowest) * 65535).round().clamp(0, 65535)
    integers = steps.to(torch.int32).numpy().astype("<u2")
    data = base64.b64encode(integers.tobytes()).decode()
    return {"shape": list(values.shape), "lowest": lowest, "highest": highest, "data": data}


def attention_maps(found: Trace, stack: str, name: str, config: Any) -> dict[str, Any]:
    """Weights `[layers, heads, query_len, key_len]`."""
    layers = range(getattr(config, f"{stack}_layers"))
    path = f"{stack}.layers.{{}}.{name}.head.{{}}.weights"
    maps = [[found[path.format(layer, head)][0] for head in range(config.num_heads)] for layer in layers]
    return packed(torch.stack([torch.stack(heads) for heads in maps]), 0.0, 1.0)


def distribution(logits: Tensor, tokenizer: Any) -> dict[str, Any]:
    """Logits of the likeliest tokens, and a histogram of the others': mean and count of each bin.

    At any temperature, these give the likeliest tokens' probabilities.
    """
    logits, ids = logits.double().sort(descending=True)
    kept, others = logits[:LIKELIEST], logits[LIKELIEST:]
    bins = [group for group in others.tensor_split(min(BINS, len(others))) if len(group)] if len(others) else []
    return {
        "ids": ids[:LIKELIEST].tolist(),
        "tokens": tokens_of(tokenizer, ids[:LIKELIEST]),
        "logits": [round(value, 4) for value in kept.tolist()],
        "others": [[round(group.logsumexp(0).item() - math.log(len(group)), 4), len(group)] for group in bins],
    }


def position_map(model: Any) -> dict[str, Any] | None:
    """The encoder's position encodings `[positions, width]`, if it has any."""
    positions, config = model.model.encoder.embed_positions, model.config
    if positions is None:
        return None
    length = min(POSITIONS, config.max_position_embeddings)
    with torch.no_grad():
        values = positions(0, length, length)[:, :WIDTH].float()
    bound = values.abs().max().item() or 1.0
    return packed(values, -bound, bound)


def statistics(found: Trace) -> list[dict[str, Any]]:
    """Root mean squares, of each sub-layer: what it adds, the sum with its input, what its layer norm gives."""
    rows = []
    for path, residual in found.items():
        if path.endswith(".residual"):
            name = path.removesuffix(".residual")
            values = {"adds": found[f"{name}.output"], "residual": residual, "layer_norm": found[f"{name}.layer_norm"]}
            squares = {key: round(value.float().square().mean().sqrt().item(), 5) for key, value in values.items()}
            deviation = found[f"{name}.variance"].float().sqrt().mean().item()
            rows.append({"name": name, "deviation": round(deviation, 5), **squares})
    return rows


class BeamSearch(LogitsProcessor):
    """Watches a beam search over one source: which beginnings were alive at each step, and what they expected next."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.steps.append((input_ids.clone(), scores.log_softmax(-1)))
        return scores

    def tree(self, finished: list[Tensor], tokenizer: Any) -> list[dict[str, Any]]:
        """Every beginning that was alive, and the finished translations: parents before children.

        A node has its token, the log-probability of the token and of all so far, its depth and a place beside the
        others; `rank` numbers the finished translations.
        """
        expected = {
            tuple(ids.tolist()): row for sequences, rows in self.steps for ids, row in zip(sequences, rows, strict=True)
        }
        ranks = {tuple(ids.tolist()): rank for rank, ids in reversed(list(enumerate(finished)))}
        start = tuple(self.steps[0][0][0].tolist())
        prefixes = set(expected) | {ids[:end] for ids in ranks for end in range(len(start), len(ids) + 1)}
        nodes: dict[tuple[int, ...], dict[str, Any]] = {}
        for ids in sorted(prefixes, key=lambda ids: (len(ids), ids)):
            above = nodes.get(ids[:-1])
            own = expected[ids[:-1]][ids[-1]].item() if above else 0.0
            nodes[ids] = {
                "parent": above["index"] if above else None,
                "index": len(nodes),
                "depth": len(ids) - len(start),
                "token": tokens_of(tokenizer, torch.tensor(ids[-1:]))[0],
                "log_probability": round(own, 5),
                "score": round(own + (above["score"] if above else 0.0), 5),
                "rank": ranks.get(ids),
            }
        place(list(nodes.values()))
        return list(nodes.values())


def place(nodes: list[dict[str, Any]]) -> None:
    """Give each node a place beside the others: leaves one after the other, parents amid their children."""
    children: dict[int, list[dict[str, Any]]] = {node["index"]: [] for node in nodes}
    for node in nodes[1:]:
        children[node["parent"]].append(node)
    leaves = iter(range(len(nodes)))
    order, stack = [], [nodes[0]]
    while stack:  # depth first, the likelier child first
        order.append(stack.pop())
        stack += sorted(children[order[-1]["index"]], key=lambda node: node["score"])
    for node in order:
        if not children[node["index"]]:
            node["place"] = float(next(leaves))
    for node in reversed(order):
        below = [child["place"] for child in children[node["index"]]]
        if below:
            node["place"] = sum(below) / len(below)

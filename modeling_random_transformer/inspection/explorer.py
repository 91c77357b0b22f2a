"""The data of the explorer page: attention maps, beam search, distributions, position encodings, statistics."""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..inputs_random_transformer import encode_texts
from ..inspection import Trace, trace

TOP_TOKENS = 40  # stored individually for each distribution; the others are stored as a histogram
BINS = 50
MAX_POSITIONS, MAX_WIDTH = 64, 512  # of the heat map of position encodings
MAPS = {
    "encoder": ("encoder", "self_attn"),
    "decoder": ("decoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
}


def explore(model: Any, tokenizer: Any, sentence: str, num_beams: int, max_new_tokens: int) -> dict[str, Any]:
    """Translate a sentence by beam search and trace a forward pass over the best translation.

    Returns:
        The data of the page, in types that JSON supports.

    Raises:
        ValueError: tracing does not support the model, or the sentence exceeds its positions.
    """
    model = model.eval()
    inputs = encode_texts(tokenizer, sentence, return_tensors="pt")
    recorder = BeamSearchRecorder()
    sequences = model.generate(
        **inputs,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        do_sample=False,
        max_new_tokens=max_new_tokens,
        logits_processor=LogitsProcessorList([recorder]),
    )
    eos_ids = torch.tensor(model.generation_config.eos_token_id).view(-1)
    finished = [trim_padding(ids, eos_ids) for ids in sequences]
    best = finished[0]
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
        "tree": recorder.tree(finished, tokenizer),
        "positions": position_map(model),
        "statistics": statistics(recorded),
    }


def trim_padding(ids: Tensor, eos_ids: Tensor) -> Tensor:
    """The sequence up to its first end token. The start token may have the same id and does not count."""
    ends = torch.isin(ids[1:], eos_ids).nonzero()
    return ids[: int(ends[0]) + 2] if len(ends) else ids


def rounded(values: Tensor) -> list[Any]:
    """Nested lists of the values, rounded to five decimals."""
    return values.double().round(decimals=5).tolist()


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


class BeamSearchRecorder(LogitsProcessor):
    """Records the hypotheses of each step of a beam search over one source, and their next-token distributions."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.steps.append((input_ids.clone(), scores.log_softmax(-1)))
        return scores

    def tree(self, finished: list[Tensor], tokenizer: Any) -> list[dict[str, Any]]:
        """All hypotheses of the search and the finished translations as a prefix tree, parents before children.

        A node has its token, the log-probability of the token and of the complete prefix, its depth, and its vertical
        position in the plot. `rank` orders the finished translations, the best one first.
        """
        distributions = {
            tuple(ids.tolist()): row for sequences, rows in self.steps for ids, row in zip(sequences, rows, strict=True)
        }
        ranks = {tuple(ids.tolist()): rank for rank, ids in reversed(list(enumerate(finished)))}
        start = tuple(self.steps[0][0][0].tolist())
        prefixes = set(distributions) | {ids[:end] for ids in ranks for end in range(len(start), len(ids) + 1)}
        nodes: dict[tuple[int, ...], dict[str, Any]] = {}
        for ids in sorted(prefixes, key=lambda ids: (len(ids), ids)):
            parent = nodes.get(ids[:-1])
            log_probability = distributions[ids[:-1]][ids[-1]].item() if parent else 0.0
            nodes[ids] = {
                "parent": parent["index"] if parent else None,
                "index": len(nodes),
                "depth": len(ids) - len(start),
                "token": token_texts(tokenizer, torch.tensor(ids[-1:]))[0],
                "log_probability": round(log_probability, 5),
                "score": round(log_probability + (parent["score"] if parent else 0.0), 5),
                "rank": ranks.get(ids),
            }
        assign_rows(list(nodes.values()))
        return list(nodes.values())


def assign_rows(nodes: list[dict[str, Any]]) -> None:
    """Set the vertical position of each node: consecutive for leaves, the mean of the children for others."""
    children: dict[int, list[dict[str, Any]]] = {node["index"]: [] for node in nodes}
    for node in nodes[1:]:
        children[node["parent"]].append(node)
    leaves = iter(range(len(nodes)))
    order, stack = [], [nodes[0]]
    while stack:  # depth first; the more probable child first
        order.append(stack.pop())
        stack += sorted(children[order[-1]["index"]], key=lambda node: node["score"])
    for node in order:
        if not children[node["index"]]:
            node["row"] = float(next(leaves))
    for node in reversed(order):
        rows = [child["row"] for child in children[node["index"]]]
        if rows:
            node["row"] = sum(rows) / len(rows)


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

"""All candidates of a beam search: which were kept, which were discarded, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from .hooks import Observer, instrument

Ids = tuple[int, ...]
CROSS_ATTENTION = "decoder.layers.*.encoder_attn.head.*.weights"


@dataclass
class Candidate:
    """A hypothesis that a beam search has considered.

    Attributes:
        index: its place in the list of all candidates; the first one is the start token.
        parent: index of the candidate that it continues by one token; `None` for the start.
        depth: number of tokens after the start.
        rank: its place among the candidates of its step, from 0.
        id: the last token.
        log_probability: that of the last token.
        total: the sum over all tokens.
        status: `"kept"` for the next step, `"finished"` and returned, or why it was discarded: `"low"` (as many better
            ones as there are beams were kept), `"late"` (it has an end, but is not among the best `num_beams`),
            `"displaced"` (as many better ones finished) or `"stopped"` (the search ended at this step).
        score: `total / depth ** length_penalty`, as in `sequences_scores`, if it has an end or is returned.
        place: its place among the returned sequences, from 0.
        attention: the cross-attention while its continuations were predicted, the mean over the heads,
            `[layers, source_len]`; `None` if it was not continued.
    """

    index: int
    parent: int | None
    depth: int
    rank: int
    id: int
    log_probability: float
    total: float
    status: str = "kept"
    score: float | None = None
    place: int | None = None
    attention: Tensor | None = None


def record_search(model: Any, inputs: Any, num_beams: int, **options: Any) -> tuple[Any, list[Candidate]]:
    """Run `generate()` for one source, greedily or with beam search, and list the candidates of each step.

    The candidates of a step are the best continuations, among which the search chooses: twice as many as beams, or more
    with several end tokens.

    Args:
        model: a translation model of this package.
        inputs: the encoded source, a batch of one row.
        num_beams: beam size.
        options: other options of `generate()`, except those for sampling.

    Returns:
        The output of `generate()` with `return_dict_in_generate=True`, and the candidates, parents before children.

    Raises:
        ValueError: there are several sources.
    """
    if (sources := len(inputs["input_ids"])) != 1:
        raise ValueError(f"inputs must be one row, got {sources}.")
    recorder = SearchRecorder(model.config.decoder_layers)
    options |= {"num_beams": num_beams, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    with instrument(model, recorder):
        outputs = model.generate(**inputs, **options, logits_processor=LogitsProcessorList([recorder]))
    used, _ = model._prepare_generation_config(options.pop("generation_config", None), **options)
    end_ids = torch.tensor(used.eos_token_id).view(-1)
    places = {(*trim_padding(ids, end_ids).tolist(),): place for place, ids in enumerate(outputs.sequences.cpu())}
    scores = outputs.scores if num_beams > 1 else [logits.log_softmax(-1) for logits in outputs.scores]
    found = list_candidates(recorder, scores, places, set(end_ids.tolist()))
    penalty = 1.0 if used.length_penalty is None else used.length_penalty
    for one in found[1:]:
        if one.place is not None or one.id in end_ids:
            one.score = one.total / one.depth**penalty
    return outputs, found


class SearchRecorder(Observer):
    """Records the hypotheses at each step of a search over one source, and their cross-attention.

    It is an observer of the model and a logits processor of `generate()`.

    Attributes:
        hypotheses: of each step, the row of each hypothesis in the batch.
        weights: of each step, those of all layers and heads at the last position, `[num_beams, source_len]`.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.hypotheses: list[dict[Ids, int]] = []
        self.weights: list[list[Tensor]] = []

    def start(self, stack: str) -> None:
        super().start(stack)
        if stack == "decoder":
            self.weights.append([])

    def record(self, path: str, value: Tensor) -> None:
        if fnmatchcase(path, CROSS_ATTENTION):
            self.weights[-1].append(value[:, -1].detach().clone())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.hypotheses.append({(*ids,): row for row, ids in enumerate(input_ids.tolist())})
        return scores

    def attention(self, step: int) -> Tensor:
        """The means over the heads, `[num_beams, layers, source_len]`."""
        return torch.stack(self.weights[step]).unflatten(0, (self.layers, -1)).mean(1).transpose(0, 1)


def list_candidates(
    recorder: SearchRecorder, scores: Sequence[Tensor], places: dict[Ids, int], end_ids: set[int]
) -> list[Candidate]:
    """The candidates of each step, without their scores.

    Args:
        recorder: the record of the search.
        scores: log-probabilities of the next tokens at each step, `[num_beams, vocab_size]`.
        places: the places of the returned sequences.
        end_ids: the end tokens.
    """
    steps = recorder.hypotheses
    (start,) = steps[0]  # all rows are equal
    nodes = {start: Candidate(0, None, 0, 0, start[-1], 0.0, 0.0)}
    num_beams = len(scores[0])
    for step, (hypotheses, rows) in enumerate(zip(steps, scores, strict=True)):
        beams = {ids: row for ids, row in hypotheses.items() if ids in nodes}  # the others have the probability 0
        attention = recorder.attention(step)
        for ids, row in beams.items():
            nodes[ids].attention = attention[row]
        totals = {ids: nodes[ids].total for ids in beams}
        best = best_continuations(totals, rows[[*beams.values()]], max(2, 1 + len(end_ids)) * num_beams)
        for rank, (ids, log_probability) in enumerate(best):
            if ids in places:
                status = "finished"
            elif ids[-1] in end_ids:
                status = "displaced" if rank < num_beams else "late"
            elif step + 1 == len(steps):
                status = "stopped"
            else:
                status = "kept" if ids in steps[step + 1] else "low"
            parent = nodes[ids[:-1]]
            total = parent.total + log_probability
            found = (len(nodes), parent.index, step + 1, rank, ids[-1], log_probability, total, status)
            nodes[ids] = Candidate(*found, place=places.get(ids))
    return list(nodes.values())


def best_continuations(totals: dict[Ids, float], rows: Tensor, count: int) -> Iterator[tuple[Ids, float]]:
    """The best continuations of hypotheses by one token, the best first, and the token's log-probability.

    Args:
        totals: the sum of each hypothesis.
        rows: log-probabilities of the next token of each one, `[hypotheses, vocab_size]`.
        count: most continuations.
    """
    sums = rows + torch.tensor([*totals.values()], device=rows.device)[:, None]
    prefixes = [*totals]
    for index in sums.flatten().topk(min(count, int(sums.isfinite().sum()))).indices.tolist():
        beam, token = divmod(index, rows.shape[1])
        yield (*prefixes[beam], token), rows[beam, token].item()


def trim_padding(ids: Tensor, end_ids: Tensor) -> Tensor:
    """The sequence up to its first end token. The start token may have the same id and does not count."""
    ends = torch.isin(ids[1:], end_ids).nonzero()
    return ids[: int(ends[0]) + 2] if len(ends) else ids

"""All hypotheses of a beam search: which were kept, which were discarded, and why."""

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
class Hypothesis:
    """A hypothesis that a beam search has considered.

    Attributes:
        index: its place in the list of all hypotheses; the first one is the start token.
        parent: index of the hypothesis that it continues by one token; `None` for the start.
        depth: number of tokens after the start.
        rank: its place among the hypotheses of its step, from 0.
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


def record_search(model: Any, inputs: Any, num_beams: int, **options: Any) -> tuple[Any, list[Hypothesis]]:
    """Run `generate()` for one source, greedily or with beam search, and list the hypotheses of each step.

    The hypotheses of a step are the best continuations, among which the search chooses: twice as many as beams, or more
    with several end tokens.

    Args:
        model: a translation model of this package.
        inputs: the encoded source, a batch of one row.
        num_beams: beam size.
        options: other options of `generate()`, except those for sampling.

    Returns:
        The output of `generate()` with `return_dict_in_generate=True`, and the hypotheses, parents before children.

    Raises:
        ValueError: there are several sources.
    """
    if len(inputs["input_ids"]) != 1:
        raise ValueError(f"inputs must be one row, got {len(inputs['input_ids'])}.")
    recorder = SearchRecorder(model.config.decoder_layers)
    options |= {"num_beams": num_beams, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    with instrument(model, recorder):
        outputs = model.generate(**inputs, **options, logits_processor=LogitsProcessorList([recorder]))
    config, _ = model._prepare_generation_config(options.pop("generation_config", None), **options)
    end_ids = torch.tensor(config.eos_token_id).view(-1)
    places = {}
    for place, ids in enumerate(outputs.sequences.cpu()):
        places[tuple(trim_padding(ids, end_ids).tolist())] = place
    scores = outputs.scores
    if num_beams == 1:  # those of greedy search are not normalized
        scores = [logits.log_softmax(-1) for logits in scores]
    hypotheses = list_hypotheses(recorder, scores, places, set(end_ids.tolist()))
    length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
    for hypothesis in hypotheses[1:]:
        if hypothesis.place is not None or hypothesis.id in end_ids:
            hypothesis.score = hypothesis.total / hypothesis.depth**length_penalty
    return outputs, hypotheses


class SearchRecorder(Observer):
    """Records the beams at each step of a search over one source, and their cross-attention.

    It is an observer of the model and a logits processor of `generate()`.

    Attributes:
        beams: of each step, the row of each hypothesis in the batch.
        weights: of each step, those of all layers and heads at the last position, `[num_beams, source_len]`.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.beams: list[dict[Ids, int]] = []
        self.weights: list[list[Tensor]] = []

    def start(self, stack: str) -> None:
        super().start(stack)
        if stack == "decoder":
            self.weights.append([])

    def record(self, path: str, value: Tensor) -> None:
        if fnmatchcase(path, CROSS_ATTENTION):
            self.weights[-1].append(value[:, -1].detach().clone())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.beams.append({tuple(ids): row for row, ids in enumerate(input_ids.tolist())})
        return scores

    def attention(self, step: int) -> Tensor:
        """The means over the heads, `[num_beams, layers, source_len]`."""
        of_heads = torch.stack(self.weights[step]).unflatten(0, (self.layers, -1))
        return of_heads.mean(1).transpose(0, 1)


def list_hypotheses(
    recorder: SearchRecorder, scores: Sequence[Tensor], places: dict[Ids, int], end_ids: set[int]
) -> list[Hypothesis]:
    """The hypotheses of each step, without their scores.

    Args:
        recorder: the record of the search.
        scores: log-probabilities of the next tokens at each step, `[num_beams, vocab_size]`.
        places: the places of the returned sequences.
        end_ids: the end tokens.
    """
    (start,) = recorder.beams[0]  # all rows are equal
    known = {start: Hypothesis(0, None, 0, 0, start[-1], 0.0, 0.0)}
    num_beams = len(scores[0])
    count = max(2, 1 + len(end_ids)) * num_beams
    for step, rows in enumerate(scores):
        beams = {ids: row for ids, row in recorder.beams[step].items() if ids in known}  # others have probability 0
        attention = recorder.attention(step)
        for ids, row in beams.items():
            known[ids].attention = attention[row]
        totals = {ids: known[ids].total for ids in beams}
        next_beams = recorder.beams[step + 1] if step + 1 < len(scores) else None
        for rank, (ids, log_probability) in enumerate(best_continuations(totals, rows[[*beams.values()]], count)):
            parent = known[ids[:-1]]
            hypothesis = Hypothesis(
                index=len(known),
                parent=parent.index,
                depth=step + 1,
                rank=rank,
                id=ids[-1],
                log_probability=log_probability,
                total=parent.total + log_probability,
                place=places.get(ids),
            )
            if hypothesis.place is not None:
                hypothesis.status = "finished"
            elif hypothesis.id in end_ids:
                hypothesis.status = "displaced" if rank < num_beams else "late"
            elif next_beams is None:
                hypothesis.status = "stopped"
            elif ids not in next_beams:
                hypothesis.status = "low"
            known[ids] = hypothesis
    return list(known.values())


def best_continuations(totals: dict[Ids, float], rows: Tensor, count: int) -> Iterator[tuple[Ids, float]]:
    """The best continuations of hypotheses by one token, the best first, and the token's log-probability.

    Args:
        totals: the sum of each hypothesis.
        rows: log-probabilities of the next token of each one, `[hypotheses, vocab_size]`.
        count: most continuations.
    """
    prefixes = list(totals)
    sums = rows + torch.tensor(list(totals.values()), device=rows.device)[:, None]
    possible = int(sums.isfinite().sum())
    for index in sums.flatten().topk(min(count, possible)).indices.tolist():
        beam, token = divmod(index, rows.shape[1])
        yield (*prefixes[beam], token), rows[beam, token].item()


def trim_padding(ids: Tensor, end_ids: Tensor) -> Tensor:
    """The sequence up to its first end token. The start token may have the same id and does not count."""
    ends = torch.isin(ids[1:], end_ids).nonzero()
    return ids[: int(ends[0]) + 2] if len(ends) else ids

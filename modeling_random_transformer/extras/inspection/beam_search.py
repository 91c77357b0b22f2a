"""All hypotheses of a beam search: which were kept, which were discarded, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ...inputs_random_transformer import MAX_HYPOTHESES, check_positive
from ...verification_random_transformer import generation_option
from ..pairs.alignments import eager_attention

BeamIds = tuple[int, ...]


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
        options: other options of `generate()`.

    Returns:
        The output of `generate()` with `return_dict_in_generate=True`, and the hypotheses, parents before children.

    Raises:
        ValueError: there are several sources, more than 1,000 beams, or `do_sample`.
    """
    check_positive(limit=MAX_HYPOTHESES, num_beams=num_beams)
    if options.get("do_sample"):
        raise ValueError("do_sample must be False for a beam search, got True.")
    if len(inputs["input_ids"]) != 1:
        raise ValueError(f"inputs must be one row, got {len(inputs['input_ids'])}.")
    recorder = BeamRecorder()
    options |= {"num_beams": num_beams, "do_sample": False}
    recorded = {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True}
    with eager_attention(model):
        outputs = model.generate(**inputs, **options, **recorded, logits_processor=LogitsProcessorList([recorder]))
    end_ids = torch.tensor(generation_option(model, options, "eos_token_id")).view(-1)
    places = {}
    for place, ids in enumerate(outputs.sequences.cpu()):
        places[tuple(trim_padding(ids, end_ids).tolist())] = place
    hypotheses = list_hypotheses(recorder.beams, outputs, places, end_ids.tolist())
    length_penalty = generation_option(model, options, "length_penalty")
    if length_penalty is None:
        length_penalty = 1.0
    for hypothesis in hypotheses[1:]:
        if hypothesis.place is not None or hypothesis.id in end_ids:
            hypothesis.score = hypothesis.total / hypothesis.depth**length_penalty
    return outputs, hypotheses


class BeamRecorder(LogitsProcessor):
    """Records the beams at each step of a search over one source, as a logits processor that changes nothing.

    Attributes:
        beams: of each step, the row of each hypothesis in the batch.
    """

    def __init__(self) -> None:
        self.beams: list[dict[BeamIds, int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.beams.append({tuple(ids): row for row, ids in enumerate(input_ids.tolist())})
        return scores


def list_hypotheses(
    beams: list[dict[BeamIds, int]], outputs: Any, places: dict[BeamIds, int], end_ids: Sequence[int]
) -> list[Hypothesis]:
    """The hypotheses of each step, without their scores.

    Args:
        beams: the record of the search.
        outputs: the output of the search, with the scores and the cross-attention of each step.
        places: the places of the returned sequences.
        end_ids: the end tokens.
    """
    (start,) = beams[0]  # all rows are equal
    root = Hypothesis(
        index=0,
        parent=None,
        depth=0,
        rank=0,
        id=start[-1],
        log_probability=0.0,
        total=0.0,
    )
    known = {start: root}
    for step, scores in enumerate(outputs.scores):
        parents = {ids: row for ids, row in beams[step].items() if ids in known}  # the others have probability 0
        attention = torch.stack(outputs.cross_attentions[step])  # [layers, beams, heads, query_len, source_len]
        for ids, row in parents.items():
            known[ids].attention = attention[:, row, :, -1].mean(1)
        totals = {ids: known[ids].total for ids in parents}
        num_beams = len(scores)
        count = max(2, 1 + len(end_ids)) * num_beams
        log_probabilities = scores.log_softmax(-1) if num_beams == 1 else scores  # greedy search has logits
        best = best_continuations(totals, log_probabilities[list(parents.values())], count)
        continued = beams[step + 1] if step + 1 < len(beams) else None
        for rank, (ids, log_probability) in enumerate(best):
            parent = known[ids[:-1]]
            if ids in places:
                status = "finished"
            elif ids[-1] in end_ids:
                status = "displaced" if rank < num_beams else "late"
            elif continued is None:
                status = "stopped"
            else:
                status = "kept" if ids in continued else "low"
            known[ids] = Hypothesis(
                index=len(known),
                parent=parent.index,
                depth=step + 1,
                rank=rank,
                id=ids[-1],
                log_probability=log_probability,
                total=parent.total + log_probability,
                status=status,
                place=places.get(ids),
            )
    return list(known.values())


def best_continuations(totals: dict[BeamIds, float], rows: Tensor, count: int) -> Iterator[tuple[BeamIds, float]]:
    """The best continuations of hypotheses by one token, the best first, and the token's log-probability.

    Args:
        totals: the sum of each hypothesis.
        rows: log-probabilities of the next token of each one, `[hypotheses, vocab_size]`.
        count: most continuations.
    """
    prefixes = list(totals)
    so_far = rows.new_tensor(list(totals.values()))
    sums = rows + so_far[:, None]
    possible = int(sums.isfinite().sum())
    best = sums.flatten().topk(min(count, possible))
    for index in best.indices.tolist():
        beam, token = divmod(index, rows.shape[1])
        yield (*prefixes[beam], token), rows[beam, token].item()


def trim_padding(ids: Tensor, end_ids: Tensor) -> Tensor:
    """The sequence up to its first end token. The start token may have the same id and does not count."""
    ends = torch.isin(ids[1:], end_ids).nonzero()
    if not len(ends):
        return ids
    return ids[: int(ends[0]) + 2]

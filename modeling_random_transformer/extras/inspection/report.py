"""A report on a model and a test set, as one HTML file: where translations are bad, and where the training data is.

    report = make_report(model, tokenizer, ParallelText("test.en", "test.de"))
    Path("report.html").write_text(report.html())

The functions need the extra `train`.
"""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.filters import WORD, text_key
from ...data.sources import Corpus, pairs_of, valid_lines
from ...inference.evaluation import make_scorers, score
from ...inference.scoring import PairScore, score_pairs
from ...inference.translation import Candidate, translate_n_best
from ...inputs_random_transformer import LanguageTags, encode_texts
from . import trace
from .explorer import attention_maps, cross_attention_labels

WORST = 10  # pairs that are shown
LENGTHS = (10, 20, 30, 50)  # limits of the groups by the number of words of a source
FREQUENCIES = (0, 4, 19, 99)  # of those by the frequency of its rarest word in the training set
REPEATED = re.compile(r"(.{3,40}?)\1{2,}", re.DOTALL)  # a part that follows itself at least twice
TEMPLATE = Path(__file__).with_suffix(".html")


@dataclass
class Pairs:
    """A group of pairs: its name, their number and their scores by name."""

    name: str
    size: int
    scores: dict[str, float]


@dataclass
class Example:
    """A pair of the test set and its translation.

    Attributes:
        number: the number of its line in the test set, from 1.
        source: its source.
        reference: its target.
        candidate: the model's translation.
        chrf: chrF++ of the translation, 0 to 100.
        attention: the labels of the rows and columns, and the cross-attention of the last layer, averaged over its
            heads, `[target_len][source_len]`; of the worst pairs only.
    """

    number: int
    source: str
    reference: str
    candidate: Candidate
    chrf: float
    attention: tuple[list[str], list[str], list[list[float]]] | None = None


@dataclass
class Report:
    """What the HTML file shows.

    Attributes:
        title: the name of the model.
        scores: the result of `score` on the test set.
        groups: groups of pairs, by what distinguishes them.
        problems: the numbers of the lines whose translation is empty, repeats a part, copies the source, or ends
            without the end token.
        worst: the pairs with the lowest chrF++.
        losses: the training pairs with the highest loss: loss per token, number of the line and texts of each.
        curves: name and points (step, value) of each learning curve.
    """

    title: str
    scores: dict[str, dict[str, Any]]
    groups: dict[str, list[Pairs]]
    problems: dict[str, list[int]]
    worst: list[Example]
    losses: list[tuple[float, int, str, str]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def html(self) -> str:
        """The page. It contains no script and loads nothing."""
        page = Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
        return page.render(report=self, shown=WORST)


def make_report(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test: Corpus,
    training: Corpus | None = None,
    *,
    title: str = "",
    history: Sequence[dict[str, Any]] = (),
    progress: bool | None = None,
    **options: Any,
) -> Report:
    """Translate a test set, and find the pairs with bad translations and the training pairs that the model cannot fit.

    Args:
        model: a Random Transformer.
        tokenizer: its tokenizer.
        test: the test set; invalid lines are skipped.
        training: the training set, for the frequencies of words and the highest losses.
        title: the name of the model.
        history: the entries of the Trainer's log, `log_history` in `trainer_state.json`.
        progress: see `translate`.
        **options: those of `translate`, such as `num_beams`, `src_lang` and `tgt_lang`.

    Raises:
        ValueError: an argument is invalid, or a text is too long.
    """
    lines = list(valid_lines([test]))
    sources = [line.source for line in lines]
    found = translate_n_best(sources, model, tokenizer, n_best=None, progress=progress, **options)
    sentence_score = make_scorers("chrf", {})["chrf"].sentence_score
    examples = [
        Example(line.number, line.source, line.target, best, sentence_score(best.translation, [line.target]).score)
        for line, [best, *_] in zip(lines, found, strict=True)
    ]
    worst = sorted(examples, key=lambda example: example.chrf)[:WORST]
    for example in worst:
        if example.candidate.tokens:
            example.attention = attention(model, tokenizer, example, options.get("src_lang"))
    groups = {"length": grouped(examples, lambda example: len(words(example.source)), LENGTHS, "words")}
    losses = []
    if training is not None:
        counts = Counter(word for source, _ in pairs_of([training]) for word in words(source))
        groups["frequency of the rarest word"] = grouped(
            examples, lambda example: min((counts[word] for word in words(example.source)), default=0), FREQUENCIES
        )
        languages: dict[str, Any] = {name: options[name] for name in ("src_lang", "tgt_lang") if name in options}
        flags: dict[str, Any] = {"progress": progress, "truncation": True, **languages}
        losses = highest_losses(training, score_pairs(model, tokenizer, pairs_of([training]), **flags))
    suspicious = problems(examples, tokenizer)
    return Report(title, scores_of(examples), groups, suspicious, worst, losses, curves(history))


def words(text: str) -> list[str]:
    """The words of a text; characters of scripts without spaces are counted with their neighbors."""
    return WORD.findall(text.casefold())


def scores_of(examples: Sequence[Example]) -> dict[str, dict[str, Any]]:
    """The scores of the translations."""
    return score([each.candidate.translation for each in examples], [each.reference for each in examples])


def grouped(
    examples: Iterable[Example], value: Callable[[Example], int], limits: Sequence[int], unit: str = ""
) -> list[Pairs]:
    """The scores of the examples in each range of a value; empty groups are left out."""
    bounds, groups = [-1, *limits], []
    for low, high in zip(bounds, [*limits, None], strict=True):
        chosen = [each for each in examples if value(each) > low and (high is None or value(each) <= high)]
        if chosen:
            name = f"over {low}" if high is None else f"{low + 1} to {high}" if high > low + 1 else str(high)
            name = f"up to {high}" if low < 0 and high else name
            values = {metric: each["score"] for metric, each in scores_of(chosen).items()}
            groups.append(Pairs(f"{name} {unit}".strip(), len(chosen), values))
    return groups


def problems(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """The numbers of the lines with each kind of suspicious translation."""
    repeats = REPEATED.search
    checks: dict[str, Callable[[Example], Any]] = {
        "empty": lambda each: not each.candidate.translation.strip(),
        "repeats a part": lambda each: repeats(each.candidate.translation) and not repeats(each.source),
        "copies the source": lambda each: text_key(each.source) == text_key(each.candidate.translation),
        "without an end token": lambda each: each.candidate.tokens[-1:] not in ([], [tokenizer.eos_token]),
    }
    return {name: [each.number for each in examples if check(each)] for name, check in checks.items()}


@torch.no_grad()
def attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, example: Example, src_lang: str | None
) -> tuple[list[str], list[str], list[list[float]]]:
    """Labels and cross-attention of the last layer for a translation, see `Example`."""
    with LanguageTags(src_lang).set(tokenizer):
        inputs = encode_texts(tokenizer, example.source, return_tensors="pt").to(model.device)
    start = model.config.decoder_start_token_id
    ids = torch.tensor([start, *tokenizer.convert_tokens_to_ids(example.candidate.tokens)], device=model.device)
    with trace(model) as recorded:
        model(**inputs, decoder_input_ids=ids[None, :-1])
    weights = attention_maps(recorded, "decoder", "encoder_attn", model.config)[-1].mean(0)
    return *cross_attention_labels(tokenizer, inputs["input_ids"][0], ids), weights.tolist()


def highest_losses(training: Corpus, scores: Iterable[PairScore]) -> list[tuple[float, int, str, str]]:
    """The training pairs with the highest loss per token, see `Report`, by the scores of all pairs."""
    scored = zip(valid_lines([training]), scores, strict=True)
    rows = ((-score.log_probability / score.tokens, line.number, line.source, line.target) for line, score in scored)
    return heapq.nlargest(WORST, rows)


def curves(history: Iterable[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """The learning curves in the Trainer's log."""
    names = {"loss": "Training loss", "eval_loss": "Validation loss", "eval_bleu": "BLEU", "eval_chrf": "chrF++"}
    found: dict[str, list[tuple[float, float]]] = {}
    for entry in history:
        for key in names.keys() & entry.keys():
            found.setdefault(names[key], []).append((entry["step"], entry[key]))
    return {name: found[name] for name in names.values() if len(found.get(name, ())) > 1}

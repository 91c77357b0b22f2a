"""Writes an HTML report on a model: the worst translations of a test set, and suspicious training pairs.

    report = make_report(model, tokenizer, ParallelText("test.en", "test.de"))
    Path("report.html").write_text(report.html())

The functions need the extra `train`.
"""

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.sources import Corpus, pairs_of, parallel_lines
from ...data.validation import read_valid, validate
from ...inference.candidates import Candidate
from ...inference.confidence import UNDERLINED_BELOW, find_calibration
from ...inference.evaluation import score, sentence_chrf
from ...inference.scoring import score_pairs
from ...inference.translation import translate, translate_n_best
from ...inputs_random_transformer import (
    drop_none,
    encode_texts,
    name_lines_in_errors,
    renumber_errors,
    source_text,
)
from ...pipeline_random_transformer import evaluation_mode
from ...training.checkpoints import STATE, newest_complete, state_of
from ..pairs.alignments import eager_attention
from ..wrappers.problems import PROBLEMS, Detector, casefolded_words, detector_of
from .explorer import cross_attention_labels
from .robustness import disturbances

WORST = 10  # pairs that are shown
LENGTHS = (10, 20, 30, 50)  # limits of the groups by the number of words of a source
FREQUENCIES = (0, 4, 19, 99)  # limits of the groups by the frequency of a source's rarest word in the training set
CONFIDENT_SHARES = (1, 0.9, 0.75, 0.5, 0.25, 0.1)  # shares of the most confident translations
CURVES = {"loss": "Training loss", "eval_loss": "Validation loss", "eval_bleu": "BLEU", "eval_chrf": "chrF++"}
REPORT_TEMPLATE = Path(__file__).with_suffix(".html")


@dataclass
class Group:
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
    """The contents of the HTML report.

    Attributes:
        title: the name of the model.
        scores: the result of `score` on the test set.
        groups: groups of pairs, by what distinguishes them.
        problems: the numbers of the lines whose translation has each of `PROBLEMS`.
        worst: the pairs with the lowest chrF++, whose translation is not the reference.
        losses: the training pairs with the highest loss: loss per token, number of the line and texts of each.
        curves: name and points (step, value) of each learning curve.
    """

    title: str
    scores: dict[str, dict[str, Any]]
    groups: dict[str, list[Group]]
    problems: dict[str, list[int]]
    worst: list[Example]
    losses: list[tuple[float, int, str, str]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def html(self) -> str:
        """The page. It contains no script and loads nothing."""
        page = Environment(autoescape=True).from_string(REPORT_TEMPLATE.read_text(encoding="utf-8"))
        return page.render(report=self, shown=WORST, doubtful=UNDERLINED_BELOW)


def make_report(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test: Corpus,
    training: Corpus | None = None,
    *,
    title: str = "",
    history: Sequence[dict[str, Any]] = (),
    robustness: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Report:
    """Translate a test set, and find the pairs with bad translations and the training pairs that the model cannot fit.

    Args:
        model: a Random Transformer.
        tokenizer: its tokenizer.
        test: the test set; invalid lines are skipped.
        training: the training set, for the frequencies of words and the highest losses; invalid lines are skipped.
        title: the name of the model.
        history: the entries of the Trainer's log, see `read_history`.
        robustness: translate the test set again with each of `disturbances`, for their scores.
        progress: see `translate`.
        **options: those of `translate`, such as `num_beams`, `src_lang` and `tgt_lang`.

    Raises:
        ValueError: an argument is invalid, a set is not UTF-8, or a text is too long.
    """
    if training is not None:
        validate(training, "skip")
    languages = drop_none(src_lang=options.get("src_lang"), tgt_lang=options.get("tgt_lang"))
    language = languages.get("tgt_lang", getattr(tokenizer, "tgt_lang", None))
    is_calibrated = find_calibration(model, tokenizer, **languages) is not None
    examples = translated(test, model, tokenizer, progress=progress, confidence=is_calibrated, **options)
    unequal = [example for example in examples if example.candidate.translation != example.reference]
    worst = sorted(unequal, key=lambda example: example.chrf)[:WORST]
    for example in worst:
        if example.candidate.tokens:
            example.attention = attention(model, tokenizer, example, options.get("src_lang"))
    by_length = grouped(examples, language, lambda example: len(casefolded_words(example.source)), LENGTHS, "words")
    report = Report(
        title=title,
        scores=scores_of(examples, language),
        groups={"length": by_length},
        problems=problems(examples, detector_of(model, tokenizer, **languages)),
        worst=worst,
        curves=curves(history),
    )
    if is_calibrated:
        report.groups["share of the surest translations"] = surest(examples, language)
    if robustness:
        report.groups["disturbance of the sources"] = disturbed(
            examples, language, model, tokenizer, progress=progress, **options
        )
    if training is not None:
        report.groups["frequency of the rarest word"] = by_rarest_word(examples, language, training)
        report.losses = highest_losses(training, model, tokenizer, progress=progress, **languages)
    return report


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The entries of the Trainer's log in a model's folder, or in its newest checkpoint; empty if there are none."""
    checkpoint = newest_complete(folder) or folder
    return state_of(checkpoint).log_history if (checkpoint / STATE).is_file() else []


def translated(
    test: Corpus, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> list[Example]:
    """The valid pairs of a test set with their best translations."""
    lines = read_valid(test)
    sources = [line.source for line in lines]
    with name_lines_in_errors(str(test)), renumber_errors([line.number - 1 for line in lines]):
        candidates = list(translate_n_best(sources, model, tokenizer, n_best=None, **options))
    examples = []
    for line, [best] in zip(lines, candidates, strict=True):
        chrf = sentence_chrf(best.translation, [line.target])
        examples.append(Example(line.number, line.source, line.target, best, chrf))
    return examples


def scores_of(examples: Sequence[Example], language: str | None) -> dict[str, dict[str, Any]]:
    """The scores of the translations into a language, which selects the tokenizer of BLEU."""
    translations = [example.candidate.translation for example in examples]
    return score(translations, [example.reference for example in examples], language=language)


def grouped(
    examples: Iterable[Example],
    language: str | None,
    value: Callable[[Example], int],
    limits: Sequence[int],
    unit: str = "",
) -> list[Group]:
    """The scores of the examples in each range of a value, up to each of the limits; empty groups are left out."""
    ranges: list[list[Example]] = [[] for _ in [*limits, None]]
    for example in examples:
        ranges[bisect_left(limits, value(example))].append(example)
    groups = []
    for index, members in enumerate(ranges):
        if members:
            name = f"{range_name(limits, index)} {unit}".strip()
            groups.append(group_of(name, members, language))
    return groups


def by_rarest_word(examples: Iterable[Example], language: str | None, training: Corpus) -> list[Group]:
    """The scores of the examples by the frequency of the source's rarest word in the training set."""
    frequency = Counter(word for source, _ in pairs_of([training]) for word in casefolded_words(source))

    def lowest_frequency(example: Example) -> int:
        return min((frequency[word] for word in casefolded_words(example.source)), default=0)

    return grouped(examples, language, lowest_frequency, FREQUENCIES)


def surest(examples: Iterable[Example], language: str | None) -> list[Group]:
    """The scores of the most confident shares of the examples. Examples without a confidence are omitted."""
    rated = [example for example in examples if example.candidate.confidence is not None]
    rated.sort(key=lambda example: example.candidate.confidence or 0.0, reverse=True)
    groups = []
    for share in CONFIDENT_SHARES:
        if members := rated[: round(share * len(rated))]:
            groups.append(group_of(f"{share:.0%}", members, language))
    return groups


def disturbed(
    examples: Sequence[Example],
    language: str | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    **options: Any,
) -> list[Group]:
    """The scores of the translations, and of the translations of each disturbed test set."""
    groups = [group_of("none", examples, language)]
    pairs = [(example.source, example.reference) for example in examples]
    for name, changed in disturbances(pairs, tokenizer).items():
        sources, references = zip(*changed, strict=True)
        translations = translate(sources, model, tokenizer, **options)
        scores = score(translations, references, language=language)
        groups.append(Group(name, len(changed), values_of(scores)))
    return groups


def group_of(name: str, members: Sequence[Example], language: str | None) -> Group:
    """A group of examples with their scores."""
    return Group(name, len(members), values_of(scores_of(members, language)))


def values_of(scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The values of the result of `score`, by name."""
    return {metric: result["score"] for metric, result in scores.items()}


def range_name(limits: Sequence[int], index: int) -> str:
    """The name of the numbers above one limit, and up to the next one."""
    if index == len(limits):
        return f"over {limits[-1]}"
    low = limits[index - 1] + 1 if index else 0
    high = limits[index]
    if low == high:
        return str(high)
    return f"{low} to {high}" if low else f"up to {high}"


def problems(examples: Sequence[Example], detector: Detector) -> dict[str, list[int]]:
    """The line numbers of the translations with each kind of problem."""
    numbers: dict[str, list[int]] = {problem: [] for problem in PROBLEMS}
    for example in examples:
        for problem in detector(example.source, example.candidate):
            numbers[problem].append(example.number)
    return numbers


@torch.no_grad()
def attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, example: Example, src_lang: str | None
) -> tuple[list[str], list[str], list[list[float]]]:
    """Labels and cross-attention of the last layer for a translation, see `Example`."""
    text = source_text(example.source, tokenizer, model.config)
    encoded = encode_texts(tokenizer, text, src_lang=src_lang, return_tensors="pt")
    inputs = encoded.to(model.device)
    start = model.config.decoder_start_token_id
    target = tokenizer.convert_tokens_to_ids(example.candidate.tokens)
    ids = torch.tensor([start, *target], device=model.device)
    with evaluation_mode(model), eager_attention(model):
        outputs = model(**inputs, decoder_input_ids=ids[None, :-1], output_attentions=True)
    last_attention = outputs.cross_attentions[-1]
    weights = last_attention[0].mean(0)
    rows, columns = cross_attention_labels(tokenizer, inputs["input_ids"][0], ids)
    return rows, columns, weights.tolist()


def highest_losses(
    training: Corpus, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> list[tuple[float, int, str, str]]:
    """The training pairs with the highest loss per token, see `Report`. `options` are options of `score_pairs`."""

    def losses() -> Iterator[tuple[float, int, str, str]]:
        scores = score_pairs(model, tokenizer, pairs_of([training]), truncation=True, **options)
        for line, pair in zip(parallel_lines([training]), scores, strict=True):
            loss = -pair.log_probability / pair.tokens
            yield loss, line.number, line.source, line.target

    return heapq.nlargest(WORST, losses())


def curves(history: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """The learning curves in the Trainer's log, of at least two points."""
    shown = {}
    for key, name in CURVES.items():
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        if len(points) > 1:
            shown[name] = points
    return shown

"""Exercise 10: what the heads do, and one head against eight of the same size in total (paper 3.2.2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForTokenClassification
from modeling_random_transformer.extras.inspection import intervene

from .. import sample_data as data
from ..pruning import KINDS, Head
from ..report import BLUE, save_plot, show_table
from ..training_helpers import Pairs
from .tasks import FIRST_SYMBOL, Batch, train
from .trained import Translator, load_trained

SENTENCES = 200
ALIGNMENT, SYNTAX = "noun to its translation", "determiner to its noun"
POSITIONS = {"previous token": -1, "same token": 0, "next token": 1}
ROLES = (*POSITIONS, SYNTAX, ALIGNMENT)
# Naming two symbols at once, with one layer.
HEADS, SYMBOLS, LENGTH, OFFSETS = (1, 2, 4, 8), 4, 12, (-1, 2)
DETERMINERS = {word for words in data.DETERMINERS for word in words.split()} | {"an"}


@dataclass
class RoleResult:
    """Measurements of heads.

    Attributes:
        shares: by head and role, the fraction of the queries of this role whose largest weight is on the role's key.
        loss: the increase of the loss without the head, in nats per token.
        exact_match: of translations, complete and without the best head of each role.
        number_of_heads: the accuracy of trained models, by their number of heads.
        parameters: the number of parameters of each of these models.
    """

    shares: dict[Head, dict[str, float]]
    loss: dict[Head, float] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)
    number_of_heads: dict[int, float] = field(default_factory=dict)
    parameters: set[int] = field(default_factory=set)


def experiment(seed: int, folder: Path, sentences: int = SENTENCES, steps: int = 400) -> RoleResult:
    translator = load_trained(folder)
    pairs = translator.test[:sentences]
    result = RoleResult(measure_roles(translator, pairs))
    complete = mean_loss(translator, pairs)
    for head in result.shares:
        with intervene(translator.model, {f"{path_of(head)}.output": 0}):
            result.loss[head] = mean_loss(translator, pairs) - complete
    result.exact_match["complete"] = translator.exact_match(pairs[:100])
    for role in ROLES:
        with intervene(translator.model, {f"{path_of(best_head(result.shares, role))}.output": 0}):
            result.exact_match[role] = translator.exact_match(pairs[:100])
    for heads in HEADS:
        model, result.number_of_heads[heads] = train_heads(heads, seed, steps)
        result.parameters.add(model.num_parameters())
    return result


# Roles


def path_of(head: Head) -> str:
    stack, attention = KINDS[head.kind]
    return f"{stack}.layers.{head.layer}.{attention}.head.{head.index}"


def all_heads(translator: Translator) -> Iterator[Head]:
    config = translator.model.config
    for kind, (stack, _) in KINDS.items():
        layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
        yield from (Head(kind, layer, index) for layer in range(layers) for index in range(config.num_heads))


def measure_roles(translator: Translator, pairs: Pairs) -> dict[Head, dict[str, float]]:
    """The share of each role that applies to the head's kind of attention."""
    hits: dict[Head, dict[str, list[bool]]] = {head: {} for head in all_heads(translator)}
    for inputs, trace in translator.traces(pairs):
        links = {kind: expected_keys(translator, inputs, kind) for kind in KINDS}
        for head, role_hits in hits.items():
            keys = trace[f"{path_of(head)}.weights"].argmax(dim=-1)  # [sentences, query_len]
            for role, expected in links[head.kind].items():
                role_hits.setdefault(role, []).extend(keys[row, query].item() == key for row, query, key in expected)
    return {head: {role: mean(matches) for role, matches in role_hits.items()} for head, role_hits in hits.items()}


def expected_keys(
    translator: Translator, inputs: dict[str, Tensor], kind: str
) -> dict[str, list[tuple[int, int, int]]]:
    """By role, the sentence, the query and the key that a head with this role attends to."""
    sources = [translator.tokens(row[row != translator.tokenizer.pad_token_id].tolist()) for row in inputs["input_ids"]]
    targets = [translator.tokens(row[row != -100].tolist()) for row in inputs["labels"]]
    if kind == "encoder-decoder attention":
        # The query at a position predicts the label of this position.
        pairs = enumerate(zip(sources, targets, strict=True))
        return {ALIGNMENT: [(row, *link) for row, pair in pairs for link in noun_links(*pair)]}
    sentences = sources if kind == "encoder self-attention" else targets
    first = 1 if kind == "encoder self-attention" else 2  # the decoder's first query has one key only
    roles = {
        role: [
            (row, query, query + offset)
            for row, tokens in enumerate(sentences)
            for query in range(first, len(tokens) - 1)
        ]
        for role, offset in POSITIONS.items()
    }
    if kind == "decoder self-attention":
        del roles["next token"]  # hidden by the causal mask
        return roles
    return {**roles, SYNTAX: [(row, *link) for row, tokens in enumerate(sources) for link in determiner_links(tokens)]}


def noun_forms() -> dict[str, str]:
    """The Spanish form of each English form of a noun."""
    pairs = [pair for nouns in data.NOUNS.values() for pair in data.entries(nouns)]
    return dict(pairs) | {data.english_plural(english): data.spanish_plural(spanish) for english, spanish in pairs}


NOUNS = noun_forms()


def noun_links(source: Sequence[str], target: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of a noun in the target and in the source, if it occurs once in both."""
    for position, token in enumerate(source):
        translation = NOUNS.get(token)
        if translation and source.count(token) == target.count(translation) == 1:
            yield target.index(translation), position


def determiner_links(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of a determiner and of its noun, one or two tokens later."""
    for position, token in enumerate(tokens):
        if token.lower() in DETERMINERS:
            nouns = [later for later in range(position + 1, min(position + 3, len(tokens))) if tokens[later] in NOUNS]
            yield from ((position, noun) for noun in nouns[:1])


def best_head(shares: dict[Head, dict[str, float]], role: str) -> Head:
    return max(shares, key=lambda head: shares[head].get(role, 0.0))


@torch.no_grad()
def mean_loss(translator: Translator, pairs: Pairs) -> float:
    """In nats per token, with the correct target as decoder input; the mean over batches."""
    return mean(translator.model(**inputs).loss.item() for inputs in translator.batches(pairs))


# One head against several


def train_heads(heads: int, seed: int, steps: int) -> tuple[RandomTransformerForTokenClassification, float]:
    """Train one layer to name, at each token, the symbols at both `OFFSETS` in one label. The accuracy on new ones."""
    torch.manual_seed(seed)
    config = RandomTransformerConfig(
        vocab_size=FIRST_SYMBOL + SYMBOLS,
        num_labels=SYMBOLS**2,
        d_model=64,
        d_ff=128,
        num_heads=heads,  # each head has width 64 / heads
        encoder_layers=1,
        dropout=0.0,
    )
    model = RandomTransformerForTokenClassification(config)
    train(model, lambda: sample_neighbors(64), steps)
    with torch.no_grad():
        ids, labels = sample_neighbors(500)
        correct = model(input_ids=ids).logits.argmax(dim=-1) == labels
    return model, correct.float().mean().item()


def sample_neighbors(count: int) -> Batch:
    """Random symbols, and labels for the pairs of symbols at `OFFSETS`, counted cyclically: both `[count, LENGTH]`."""
    symbols = torch.randint(SYMBOLS, (count, LENGTH))
    first, second = (symbols.roll(-offset, dims=1) for offset in OFFSETS)
    return FIRST_SYMBOL + symbols, first * SYMBOLS + second


# Output


def show(result: RoleResult, folder: Path) -> None:
    rows = [
        (
            short_name(head),
            *(f"{shares[role]:.0%}" if role in shares else "" for role in ROLES),
            f"{result.loss[head]:.3f}",
        )
        for head, shares in result.shares.items()
    ]
    title = "Queries whose largest weight is on the key of the role, and increase of the loss without the head"
    show_table(title, ("layer.head", *ROLES, "loss"), rows)
    best = {role: best_head(result.shares, role) for role in ROLES}
    rows = [("complete", "", f"{result.exact_match['complete']:.1%}")]
    rows += [(role, short_name(head), f"{result.exact_match[role]:.1%}") for role, head in best.items()]
    show_table("Exact match without the best head of each role", ("role", "layer.head", "exact match"), rows)
    rows = [(str(heads), str(64 // heads), f"{share:.1%}") for heads, share in result.number_of_heads.items()]
    (parameters,) = result.parameters
    title = f"One layer with {parameters:,} parameters, trained to name the symbols at offsets {OFFSETS}"
    show_table(title, ("heads", "d_k", "accuracy"), rows)
    save_plot(draw(result), folder / "head_roles.png")


def draw(result: RoleResult) -> Figure:
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    table = torch.tensor([[shares.get(role, torch.nan) for role in ROLES] for shares in result.shares.values()])
    cells = left.pcolormesh(table.numpy(), cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1)
    left.set_facecolor("#dddddd")  # the role does not exist in this kind of attention
    figure.colorbar(cells, ax=left, format=PercentFormatter(1), pad=0.01, aspect=40)
    left.invert_yaxis()
    left.set_xticks([index + 0.5 for index in range(len(ROLES))], [role.replace(" ", "\n", 1) for role in ROLES])
    left.set_yticks([index + 0.5 for index in range(len(table))], [short_name(head) for head in result.shares])
    left.set_ylabel("layer.head, from 0")
    left.tick_params(labelsize=8, length=0)
    left.set_title("Share of queries", fontsize=11, fontweight="bold")
    shares = [100 * share for share in result.number_of_heads.values()]
    bars = right.bar([str(heads) for heads in result.number_of_heads], shares, color=BLUE)
    right.bar_label(bars, fmt="%.0f%%")
    right.set(xlabel="heads", ylim=(0, 110), yticks=[])
    right.set_title("Naming two symbols", fontsize=11, fontweight="bold")
    right.spines[["top", "right", "left"]].set_visible(False)
    return figure


def short_name(head: Head) -> str:
    """For example, `encoder 1.2`: layer 1, head 2, counted from 0."""
    names = dict(zip(KINDS, ("encoder", "decoder", "cross"), strict=True))
    return f"{names[head.kind]} {head.layer}.{head.index}"

"""Exercise 14: words, characters and subwords (paper 5.1 uses byte-pair encoding)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import sacrebleu
import torch
from matplotlib.figure import Figure
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, set_seed

from ..report import BLUE, GRAY, GREEN, ORANGE, RED, format_axes, save_plot, show_table
from ..sample_data import held_out_sample
from ..training_helpers import MAX_TOKENS, Pairs, build_translator, train_briefly, translate

VOCAB_SIZE = 300
PAIRS = 4000  # includes the test pairs
TRANSLATOR = {"d_model": 96, "d_ff": 192, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
STEPS = 400
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SPACE = "▁"  # marks the start of each word, so that the spaces of a text can be restored
SENTENCE = "The tortoises are in the classroom."  # "tortoises" is not in the training data
COLORS = {"word": GRAY, "character": BLUE, "WordPiece": ORANGE, "BPE": GREEN, "unigram": RED}


@dataclass
class TokenizerResult:
    """Measurements of one kind of token on the held-out sentences of both languages.

    Attributes:
        vocab_size: number of different tokens.
        length: mean number of tokens per sentence, without the end token.
        unknown: the fraction of tokens that are `<unk>`.
        sentence: the tokens of `SENTENCE`.
        bleu: of greedy translations of a trained model, 0 to 100.
    """

    vocab_size: int
    length: float
    unknown: float
    sentence: list[str]
    bleu: float


@dataclass
class SubwordResult:
    """Measurements by kind of token."""

    kinds: dict[str, TokenizerResult] = field(default_factory=dict)


def experiment(seed: int, kinds: Sequence[str] = tuple(COLORS), steps: int = STEPS) -> SubwordResult:
    train_pairs, test = held_out_sample(PAIRS)
    result = SubwordResult()
    for kind in kinds:
        tokenizer = train_tokenizer(kind, [*chain(*train_pairs)])
        bleu = train_translator(tokenizer, train_pairs, test, seed, steps)
        result.kinds[kind] = measure(tokenizer, [*chain(*test)], bleu)
    return result


# Tokenizers


def train_tokenizer(kind: str, texts: Sequence[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocab_size` tokens. All kinds split a text into words and punctuation first."""
    model, trainer = untrained(kind, vocab_size)
    backend = Tokenizer(model)
    splits = [pre_tokenizers.Metaspace(SPACE), pre_tokenizers.Punctuation()]
    if kind == "character":
        splits.append(pre_tokenizers.Split(Regex("."), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.Sequence([decoders.Replace("##", ""), decoders.Metaspace(SPACE)])
    backend.train_from_iterator(texts, trainer)
    end = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, backend.token_to_id(end))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=MAX_TOKENS, **SPECIAL_TOKENS)


def untrained(kind: str, vocab_size: int) -> tuple[Any, Any]:
    """Model and trainer of the tokenizers library."""
    unknown = SPECIAL_TOKENS["unk_token"]
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": [*SPECIAL_TOKENS.values()],
        "show_progress": False,
    }
    if kind in ("word", "character"):
        return models.WordLevel(unk_token=unknown), trainers.WordLevelTrainer(**options)
    if kind == "WordPiece":
        return models.WordPiece(unk_token=unknown), trainers.WordPieceTrainer(**options)
    if kind == "BPE":
        return models.BPE(unk_token=unknown), trainers.BpeTrainer(**options)
    return models.Unigram(), trainers.UnigramTrainer(unk_token=unknown, **options)


def measure(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], bleu: float) -> TokenizerResult:
    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    unknown = [index == tokenizer.unk_token_id for sentence in ids for index in sentence]
    return TokenizerResult(len(tokenizer), mean(map(len, ids)), mean(unknown), tokenizer.tokenize(SENTENCE), bleu)


# Translators


def train_translator(
    tokenizer: PreTrainedTokenizerFast, train_pairs: Pairs, test: Pairs, seed: int, steps: int
) -> float:
    """BLEU of a small model that is trained for a number of steps."""
    set_seed(seed)
    model = build_translator(tokenizer, **TRANSLATOR)
    train_briefly(model, tokenizer, train_pairs, seed, steps)
    sources, references = map(list, zip(*test, strict=True))
    with torch.no_grad():
        translations = translate(model, tokenizer, sources, do_sample=False)
    return sacrebleu.corpus_bleu(translations, [references]).score


# Output


def show(result: SubwordResult, folder: Path) -> None:
    rows = [
        (kind, f"{of.vocab_size:,}", f"{of.length:.1f}", f"{of.unknown:.1%}", f"{of.bleu:.1f}")
        for kind, of in result.kinds.items()
    ]
    columns = ("tokens", "vocabulary", "tokens per sentence", "unknown tokens", "BLEU")
    show_table(f"Held-out sentences, with vocabularies of at most {VOCAB_SIZE} tokens", columns, rows)
    examples = [(kind, " ".join(of.sentence)) for kind, of in result.kinds.items()]
    show_table(f"“{SENTENCE}”", ("tokens", "sentence"), examples)
    save_plot(draw(result), folder / "subwords.png")


def draw(result: SubwordResult) -> Figure:
    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = {"Tokens per sentence": "length", "Unknown tokens, %": "unknown", "BLEU": "bleu"}
    for axes, (title, attribute) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        factor = 100 if attribute == "unknown" else 1
        values = [factor * getattr(of, attribute) for of in result.kinds.values()]
        bars = axes.bar(list(result.kinds), values, color=[COLORS[kind] for kind in result.kinds])
        axes.bar_label(bars, fmt="%.1f", fontsize=9)
        axes.tick_params(axis="x", labelrotation=30)
        format_axes(axes, title, grid=False)
    return figure

"""Exercise 7: from the decoder's output to probabilities (paper 3.4)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper

from modeling_random_transformer.tracing import trace

from .blog_model import BLOG, blog_model, blog_tokenizer
from .report import console, show_table

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
SENTENCE = "hello world"


@dataclass
class OutputResult:
    """The step from the decoder's first state to the first word.

    Attributes:
        shapes: of the decoder's output, the logits and the probabilities.
        by_hand: the largest difference between the logits and output · W + b.
        logits: `[vocab_size]`.
        probabilities: by temperature, `[vocab_size]`.
    """

    shapes: dict[str, tuple[int, ...]]
    by_hand: float
    logits: Tensor
    probabilities: dict[float, Tensor]


@torch.no_grad()
def examine_output(seed: int) -> OutputResult:
    model, tokenizer = blog_model(seed), blog_tokenizer()
    start = torch.tensor([[model.config.decoder_start_token_id]])
    with trace(model) as found:
        model(**tokenizer(SENTENCE, return_tensors="pt"), decoder_input_ids=start)
    logits = found["logits"]
    by_hand = found["decoder.output"] @ model.lm_head.weight.T + model.lm_head.bias
    return OutputResult(
        shapes={path: tuple(found[path].shape) for path in ("decoder.output", "logits", "probabilities")},
        by_hand=(by_hand - logits).abs().max().item(),
        logits=logits[0, -1],
        probabilities={temperature: soften(logits[:, -1], temperature) for temperature in TEMPERATURES},
    )


def soften(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature), by what `generate(temperature=…)` uses: `[1, vocab_size]` → `[vocab_size]`."""
    no_ids = torch.empty(1, 0, dtype=torch.long)  # of the text so far, which has no say in it
    return TemperatureLogitsWarper(temperature)(no_ids, logits).softmax(dim=-1)[0]


def entropy(probabilities: Tensor) -> float:
    """In nats; 0 if one word is sure, ln(vocab_size) if all are alike."""
    return torch.special.entr(probabilities).sum().item()


def show_output(result: OutputResult, _folder: Path) -> None:
    shapes = [(path, str(list(shape))) for path, shape in result.shapes.items()]
    show_table(f"The seed's model reads {SENTENCE!r}", ("value", "shape"), shapes)
    console.print(f"logits and decoder.output · W + b: differ by {result.by_hand:.1g} at most")
    columns = ("word", "logit", *(f"T = {temperature:g}" for temperature in result.probabilities))
    words = zip(BLOG["vocabulary"], result.logits.tolist(), *result.probabilities.values(), strict=True)
    rows = [(word, f"{logit:.3f}", *(f"{p:.4f}" for p in of_word)) for word, logit, *of_word in words]
    summed = [f"{of_all.sum():.4f}" for of_all in result.probabilities.values()]
    chosen = [BLOG["vocabulary"][of_all.argmax()] for of_all in result.probabilities.values()]
    entropies = [f"{entropy(of_all):.3f}" for of_all in result.probabilities.values()]
    rows += [("sum", "", *summed), ("most probable", "", *chosen), ("entropy, nats", "", *entropies)]
    show_table("softmax(logits / T)", columns, rows)

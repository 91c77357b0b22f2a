"""Exercise 7: from the decoder's output to probabilities (paper 3.4)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper

from modeling_random_transformer.extras.inspection import trace

from ..blog_model import BLOG, blog_model, blog_tokenizer
from ..report import console, show_table

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
SENTENCE = "hello world"


@dataclass
class OutputResult:
    """The computation of the first word's probabilities from the decoder's output.

    Attributes:
        shapes: shapes of the decoder's output, the logits and the probabilities.
        difference: the largest difference between the logits and output · W + b.
        logits: `[vocab_size]`.
        probabilities: by temperature, `[vocab_size]`.
    """

    shapes: dict[str, tuple[int, ...]]
    difference: float
    logits: Tensor
    probabilities: dict[float, Tensor]


@torch.no_grad()
def experiment(seed: int) -> OutputResult:
    model, tokenizer = blog_model(seed), blog_tokenizer()
    start = torch.tensor([[model.config.decoder_start_token_id]])
    with trace(model) as recorded:
        model(**tokenizer(SENTENCE, return_tensors="pt"), decoder_input_ids=start)
    logits = recorded["logits"]
    expected = recorded["decoder.output"] @ model.lm_head.weight.T + model.lm_head.bias
    return OutputResult(
        shapes={path: tuple(recorded[path].shape) for path in ("decoder.output", "logits", "probabilities")},
        difference=(expected - logits).abs().max().item(),
        logits=logits[0, -1],
        probabilities={temperature: apply_temperature(logits[:, -1], temperature) for temperature in TEMPERATURES},
    )


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) by the class that `generate()` uses: `[1, vocab_size]` → `[vocab_size]`."""
    no_ids = torch.empty(1, 0, dtype=torch.long)  # previous tokens, which have no effect
    return TemperatureLogitsWarper(temperature)(no_ids, logits).softmax(dim=-1)[0]


def entropy(probabilities: Tensor) -> float:
    """In nats: 0 if one word is certain, ln(vocab_size) for a uniform distribution."""
    return torch.special.entr(probabilities).sum().item()


def show(result: OutputResult, _folder: Path) -> None:
    shapes = [(path, str(list(shape))) for path, shape in result.shapes.items()]
    show_table(f"The blog post's model with the source {SENTENCE!r}", ("value", "shape"), shapes)
    console.print(f"Largest difference between logits and decoder.output · W + b: {result.difference:.1g}")
    columns = ("word", "logit", *(f"T = {temperature:g}" for temperature in result.probabilities))
    words = zip(BLOG["vocabulary"], result.logits.tolist(), *result.probabilities.values(), strict=True)
    rows = [
        (word, f"{logit:.3f}", *(f"{p:.4f}" for p in word_probabilities)) for word, logit, *word_probabilities in words
    ]
    summed = [f"{distribution.sum():.4f}" for distribution in result.probabilities.values()]
    chosen = [BLOG["vocabulary"][distribution.argmax()] for distribution in result.probabilities.values()]
    entropies = [f"{entropy(distribution):.3f}" for distribution in result.probabilities.values()]
    rows += [("sum", "", *summed), ("most probable", "", *chosen), ("entropy, nats", "", *entropies)]
    show_table("softmax(logits / T)", columns, rows)

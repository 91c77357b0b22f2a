"""Exercise 20: one matrix for embedding and output layer (paper 3.4; Press and Wolf 2017)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from modeling_random_transformer import RandomTransformerTokenizer

from ..report import console, show_table
from ..sample_data import held_out_sample
from ..training_helpers import build_translator, train_briefly, translate

PAIRS = 3000  # includes the test pairs
TRANSLATOR = {"d_model": 96, "d_ff": 192, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
VARIANTS = {"one matrix": True, "two matrices": False}


@dataclass
class TyingResult:
    """Two translators that differ in the output layer.

    Attributes:
        difference: the largest difference between a logit and the product of the last state and the token's embedding,
            in the model with one matrix.
        parameters: by variant.
        exact_match: by variant, the fraction of held-out sentences that are translated exactly.
        own_row: in the model with two matrices, the fraction of tokens whose row of the output layer is most similar to
            their own row of the embedding.
        similarity: the mean cosine of these two rows.
    """

    difference: float = 0.0
    parameters: dict[str, int] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)
    own_row: float = 0.0
    similarity: float = 0.0


def experiment(seed: int, steps: int = 400, sentences: int = 300) -> TyingResult:
    train, test = held_out_sample(PAIRS)
    tokenizer = RandomTransformerTokenizer.train((text for pair in train for text in pair), 1000, model_max_length=64)
    sources, references = map(list, zip(*test[:sentences], strict=True))
    result = TyingResult()
    for name, tied in VARIANTS.items():
        torch.manual_seed(seed)
        model: Any = build_translator(tokenizer, tie_word_embeddings=tied, **TRANSLATOR)
        result.parameters[name] = model.num_parameters()
        train_briefly(model, tokenizer, train, seed, steps)
        translations = translate(model, tokenizer, sources)
        result.exact_match[name] = sum(map(str.__eq__, translations, references)) / len(sources)
        embedding, output = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
        if tied:
            result.difference = product_difference(model, embedding, tokenizer(sources[:20], padding=True))
        else:
            cosines = normalize(output) @ normalize(embedding).T  # [vocab_size, vocab_size]
            result.own_row = (cosines.argmax(dim=1) == torch.arange(len(cosines))).float().mean().item()
            result.similarity = cosines.diagonal().mean().item()
    return result


@torch.no_grad()
def product_difference(model: Any, embedding: Tensor, inputs: Any) -> float:
    """The largest difference of the logits from `state · embedding row`."""
    ids = {name: torch.tensor(values) for name, values in inputs.items()}
    start = torch.full((len(ids["input_ids"]), 1), model.config.decoder_start_token_id)
    state = model.model(**ids, decoder_input_ids=start).last_hidden_state
    return (model(**ids, decoder_input_ids=start).logits - state @ embedding.T).abs().max().item()


def show(result: TyingResult, _folder: Path) -> None:
    rows = [(name, f"{result.parameters[name]:,}", f"{result.exact_match[name]:.1%}") for name in VARIANTS]
    show_table("Translators after the same training", ("embedding and output layer", "parameters", "exact match"), rows)
    console.print(f"Largest difference of a logit from state · embedding: {result.difference:.1g}")
    console.print(
        f"Two matrices: {result.own_row:.1%} of the output rows are most similar to their own embedding "
        f"(mean cosine {result.similarity:.2f})"
    )

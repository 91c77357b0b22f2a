"""Exercise 19: continuous inputs. A Transformer for pictures and one for text differ in the input layer only.

The model is a small Vision Transformer (Dosovitskiy et al., 2021): the sequence is the patches of a picture. It
classifies by the mean of the hidden states instead of an additional class token.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from transformers.modeling_outputs import SequenceClassifierOutput

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForSequenceClassification

from ..report import console, save_plot, show_table
from .tasks import Batch, train

GLYPHS = (
    "###|#.#|#.#|#.#|###", ".#.|##.|.#.|.#.|###", "###|..#|###|#..|###", "###|..#|###|..#|###", "#.#|#.#|###|..#|..#",
    "###|#..|###|..#|###", "###|#..|###|#.#|###", "###|..#|..#|..#|..#", "###|#.#|###|#.#|###", "###|#.#|###|..#|###",
)  # fmt: skip
SCALE, SIDE, PATCH = 2, 16, 4  # pixels per cell of a glyph; width and height of a picture and of a patch in pixels
GRID = SIDE // PATCH  # patches per row
NOISE, SHOWN, TESTED = 0.2, 6, 1000


@dataclass
class PatchResult:
    """Measurements of the trained models on new pictures.

    Attributes:
        accuracy: by model, the fraction of correct digits.
        parameters: of the Transformer: by part, the number of weights and biases that are used.
        text_difference: max |logits of token ids - logits of their one-hot vectors in a linear input layer|.
        attention_ratio: the mean attention to a patch with ink, divided by the mean attention to one without.
        pictures: `[SHOWN, SIDE, SIDE]`.
        attention: to the patches of these pictures in the last layer, `[SHOWN, GRID, GRID]`.
    """

    accuracy: dict[str, float]
    parameters: dict[str, int]
    text_difference: float
    attention_ratio: float
    pictures: Tensor
    attention: Tensor


def experiment(seed: int, steps: int = 800) -> PatchResult:
    torch.manual_seed(seed)
    model, baseline = PatchTransformer(), PixelClassifier()
    for classifier in (model, baseline):
        train(classifier, lambda: sample(64), steps)
    clean, digits = draw_digits(TESTED)
    pictures = add_noise(clean)
    with torch.no_grad():
        output, order = model(pictures, output_attentions=True), torch.randperm(GRID**2)
        logits = {
            "Transformer": output.logits,
            "Transformer, patches in another order": model.classify(split_patches(pictures)[:, order]).logits,
            "linear classifier of the pixels": baseline(pictures).logits,
        }
    attention = output.attentions[-1].mean(dim=(1, 2))  # over heads and queries: [TESTED, GRID ** 2]
    ink = split_patches(clean).amax(dim=-1) > 0
    layers = model.transformer.model.encoder.layers
    return PatchResult(
        accuracy={
            name: (class_logits.argmax(dim=-1) == digits).float().mean().item() for name, class_logits in logits.items()
        },
        parameters={
            "input layer": count_parameters(model.input_layer),
            "positions": count_parameters(model.transformer.get_submodule("model.encoder.embed_positions")),
            "encoder layers": count_parameters(layers),
            "output layer": count_parameters(model.transformer.score),
        },
        text_difference=text_difference(model.transformer),
        attention_ratio=(attention[ink].mean() / attention[~ink].mean()).item(),
        pictures=pictures[:SHOWN],
        attention=attention[:SHOWN].unflatten(1, (GRID, GRID)),
    )


def draw_digits(count: int) -> Batch:
    """Digits at random places: pictures `[count, SIDE, SIDE]` of zeros and ones, and the digits `[count]`."""
    cells = [[[cell == "#" for cell in row] for row in glyph.split("|")] for glyph in GLYPHS]
    glyphs = torch.tensor(cells).float().repeat_interleave(SCALE, dim=1).repeat_interleave(SCALE, dim=2)
    _, height, width = glyphs.shape
    digits = torch.randint(len(GLYPHS), (count,))
    tops, lefts = torch.randint(SIDE - height + 1, (count,)), torch.randint(SIDE - width + 1, (count,))
    pictures = torch.zeros(count, SIDE, SIDE)
    for picture, digit, top, left in zip(pictures, digits, tops, lefts, strict=True):
        picture[top : top + height, left : left + width] = glyphs[digit]
    return pictures, digits


def add_noise(pictures: Tensor) -> Tensor:
    return pictures + NOISE * torch.randn_like(pictures)


def sample(count: int) -> Batch:
    """Pictures with noise and their digits."""
    pictures, digits = draw_digits(count)
    return add_noise(pictures), digits


def split_patches(pictures: Tensor) -> Tensor:
    """The pixels of each patch, row by row: `[batch, SIDE, SIDE]` → `[batch, GRID ** 2, PATCH ** 2]`."""
    return pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)


class PatchTransformer(nn.Module):
    """The sequence classifier for text, with a linear layer of the pixels instead of the embedding matrix."""

    def __init__(self) -> None:
        super().__init__()
        config = RandomTransformerConfig(
            d_model=64, d_ff=128, num_heads=4, encoder_layers=2, dropout=0.0, num_labels=len(GLYPHS),
            position_embedding="learned", max_position_embeddings=GRID**2, scale_embedding=False,
            vocab_size=10, attn_implementation="eager",  # eager attention returns weights
        )  # fmt: skip
        self.input_layer = nn.Linear(PATCH**2, config.d_model)
        self.transformer = RandomTransformerForSequenceClassification(config)

    def forward(self, pictures: Tensor, labels: Tensor | None = None, **kwargs: Any) -> SequenceClassifierOutput:
        """Logits `[batch, 10]` of pictures `[batch, SIDE, SIDE]`."""
        return self.classify(split_patches(pictures), labels=labels, **kwargs)

    def classify(self, patches: Tensor, **kwargs: Any) -> SequenceClassifierOutput:
        return self.transformer(inputs_embeds=self.input_layer(patches), **kwargs)


class PixelClassifier(nn.Linear):
    """One linear layer of all pixels."""

    def __init__(self) -> None:
        super().__init__(SIDE**2, len(GLYPHS))

    def forward(self, pictures: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        logits = super().forward(pictures.flatten(1))
        return SequenceClassifierOutput(loss=None if labels is None else cross_entropy(logits, labels), logits=logits)


@torch.no_grad()
def text_difference(model: RandomTransformerForSequenceClassification) -> float:
    """Compare the embedding of token ids with a linear layer of their one-hot vectors: it is the same input layer."""
    embedding = model.get_input_embeddings().weight  # [vocab_size, d_model]
    ids = torch.randint(len(embedding), (8, GRID**2))
    vectors = one_hot(ids, num_classes=len(embedding)).float()  # [8, GRID ** 2, vocab_size]
    return (model(ids).logits - model(inputs_embeds=vectors @ embedding).logits).abs().max().item()


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def show(result: PatchResult, folder: Path) -> None:
    parameters = [(part, f"{count:,}") for part, count in result.parameters.items()]
    show_table(f"A Transformer for pictures of {GRID} × {GRID} patches", ("part", "parameters"), parameters)
    accuracy = [(name, f"{share:.1%}") for name, share in result.accuracy.items()]
    show_table(f"Digits in {TESTED:,} new pictures", ("model", "accuracy"), accuracy)
    console.print(f"Text: token ids and one-hot vectors in a linear layer differ by {result.text_difference:.2g}")
    console.print(f"Attention to a patch with ink, relative to one without: {result.attention_ratio:.1f}")
    save_plot(draw(result), folder / "patches.png")


def draw(result: PatchResult) -> Figure:
    figure = Figure(figsize=(1.7 * SHOWN, 3.6), layout="constrained")
    rows = figure.subplots(2, SHOWN)
    for picture, attention, (above, below) in zip(result.pictures, result.attention, rows.T, strict=True):
        above.imshow(picture, cmap="Greys", vmin=0, vmax=1)
        below.imshow(attention, cmap="Blues", vmin=0, extent=(-0.5, SIDE - 0.5, SIDE - 0.5, -0.5))
        below.contour(picture, levels=[0.5], colors="black", linewidths=0.6)
        for axes in (above, below):
            lines = [PATCH * index - 0.5 for index in range(GRID + 1)]
            axes.set_xticks(lines, [])
            axes.set_yticks(lines, [])
            axes.tick_params(length=0)
            axes.grid(color="#bbbbbb", linewidth=0.5)
    rows[0, 0].set_ylabel("patches", fontweight="bold")
    rows[1, 0].set_ylabel("attention", fontweight="bold")
    return figure

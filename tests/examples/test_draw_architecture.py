"""The figure of the architecture: its content compared with the modules, its layout in a browser, its files."""

import re
from pathlib import Path
from xml.etree import ElementTree

import draw_architecture
import pytest
import torch

import modeling_random_transformer
from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from tests.helpers.browser import errors
from tutorials.architecture import draw

FIGURE = Path(__file__).parents[2] / "docs" / "images" / "architecture.svg"
TRANSLATOR = "RandomTransformerForConditionalGeneration"
# By model: class, preset and overrides; texts in the figure; texts that are not in it.
CASES = {
    "base": (
        TRANSLATOR,
        "base",
        {},
        [
            *("63,082,496 parameters (in the boxes on the right)", "input_ids", "decoder_input_ids"),
            *("[batch, target_len, 37,000]", "37,000 × 512, times √512", "512 → 8 × 64", "8 × 64 → 512"),
            *("softmax(Q·Kᵀ / √64)·V in 8 heads", "2,048 → 512", "6 × layers.0 … 5", "Cross-attention"),
            *("18,944,000, tied", "post-norm: LayerNorm(x + sublayer(x))"),
        ],
        [],
    ),
    "pre-norm, large": (
        TRANSLATOR,
        "12-1",
        {"norm_order": "pre", "position_embedding": "learned", "d_model": 16384, "num_heads": 128, "d_k": 5},
        ["LayerNorm layer_norm", "learned, 1,024 × 16,384", "1 × layers.0", "16,384 → 128 × 5"],
        ["sinusoidal"],
    ),
    "separate": (
        TRANSLATOR,
        "tiny",
        {"share_embeddings": False, "activation_function": "prelu", "num_heads": 1},
        ["PReLU", "tied weights: model.decoder.embed_tokens, lm_head", "softmax(Q·Kᵀ / √128)·V in 1 head"],
        [],
    ),
    "masked": (
        "RandomTransformerForMaskedLM",
        "tiny",
        {"position_embedding": "none"},
        ["Self-attention", "lm_head"],
        ["Masked self-attention", "embed_positions"],
    ),
    "causal": (
        "RandomTransformerForCausalLM",
        "big",
        {"norm_order": "pre", "attention_scale": 0.1},
        ["Masked self-attention", "softmax(Q·Kᵀ · 0.1)·V in 16 heads"],
        ["Cross-attention"],
    ),
    "classifier": (
        "RandomTransformerForSequenceClassification",
        "base",
        {"num_labels": 3},
        ["mean over tokens", "score", "[batch, 3]"],
        ["lm_head"],
    ),
    "no head": (
        "RandomTransformerModel",
        "iwslt",
        {"sinusoid_layout": "concatenated"},
        ["concatenated sinusoids", "encoder", "last_hidden_state"],
        ["lm_head", "model.encoder"],
    ),
}


def build(class_name: str, preset: str, **overrides):
    with torch.device("meta"):
        return getattr(modeling_random_transformer, class_name)(
            RandomTransformerConfig.from_preset(preset, **overrides)
        )


def texts(svg: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("case", CASES)
def test_figure_shows_the_modules(case):
    """The boxes add up to the number of parameters: the first layer is drawn, a tied weight counts once."""
    class_name, preset, overrides, present, absent = CASES[case]
    model = build(class_name, preset, **overrides)
    shown = texts(draw(model))
    assert {class_name, *present} <= set(shown)
    assert not set(absent) & set(shown)
    for name, _ in model.named_parameters():
        assert re.search(rf"\b{name.split('.')[-2]}\b", "\n".join(shown)), name
    number = re.compile(r"([\d,]+)(, tied)?")
    counts = [match for text in shown if (match := number.fullmatch(text))]
    boxes = [int(match[1].replace(",", "")) for match in counts if not match[2]]
    tied = {int(match[1].replace(",", "")) for match in counts if match[2]}
    stacks = [stack for name, stack in model.base_model.named_children() if name in ("encoder", "decoder")]
    sizes = [sum(value.numel() for value in layer.parameters()) for stack in stacks for layer in stack.layers[1:]]
    assert sum(boxes) + sum(tied) + sum(sizes) == model.num_parameters()


@pytest.mark.parametrize("class_name", MODEL_CLASSES.values())
def test_every_class_can_be_drawn(class_name):
    assert {class_name, "10 × 4, not scaled"} <= set(texts(draw(build(class_name, "blog"))))


def test_figure_of_the_documentation():
    """`python examples/draw_architecture.py FOLDER --output docs/images/architecture.svg` writes it."""
    assert FIGURE.read_text(encoding="utf-8") == draw(build(TRANSLATOR, "base"))
    root = ElementTree.fromstring(FIGURE.read_bytes())
    title, description = list(root)[:2]
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == [title.get("id"), description.get("id")]
    assert TRANSLATOR in title.text
    assert "6 layers of masked self-attention, cross-attention, feed-forward network" in description.text
    assert not re.search(rb"href|url\((?!#)|<script|<image", FIGURE.read_bytes())


@pytest.mark.parametrize("class_name", [None, "RandomTransformerForCausalLM"])
def test_command_needs_the_configuration_only(class_name, tmp_path, capsys):
    config = RandomTransformerConfig.from_preset("tiny", architectures=class_name and [class_name])
    config.save_pretrained(tmp_path)
    output = tmp_path / "new" / "figure.svg"
    assert draw_architecture.main([str(tmp_path), "--output", str(output)]) == 0
    assert f"Wrote {output}" in capsys.readouterr().out
    assert output.read_text(encoding="utf-8") == draw(build(class_name or TRANSLATOR, "tiny"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"num_heads": 0', "config.json: num_heads must be an integer from 1 to"),
        ('"architectures": ["<b>"]', "architectures must contain one of RandomTransformerModel, .*, got '<b>'"),
    ],
)
def test_invalid_configurations(fields, message, tmp_path, capsys):
    (tmp_path / "config.json").write_text(f'{{"model_type": "random_transformer", {fields}}}')
    assert draw_architecture.main([str(tmp_path), "--output", str(tmp_path / "figure.svg")]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_output_must_be_an_svg_file(tmp_path, capsys):
    RandomTransformerConfig.from_preset("tiny").save_pretrained(tmp_path)
    assert draw_architecture.main([str(tmp_path), "--output", "a.html"]) == 2
    assert "--output must be an .svg file, got a.html" in capsys.readouterr().err


def test_texts_are_escaped():
    model = build("RandomTransformerForMaskedLM", "blog")
    model.__class__ = type("<script>alert(1)</script> & more", (type(model),), {})
    svg = draw(model)
    assert "<script" not in svg
    assert "<script>alert(1)</script> & more" in texts(svg)


BOXES = """
const boxes = (selector) => [...document.querySelectorAll(selector)].map((element) => {
    const {x, y, width, height} = element.getBBox();
    return [element.textContent, x, y, width, height];
});
return [boxes("text"), boxes("rect")];
"""


def overlap(first, second) -> bool:
    (_, x, y, width, height), (_, other_x, other_y, other_width, other_height) = first, second
    across = min(x + width, other_x + other_width) - max(x, other_x)
    return across > 0.5 and min(y + height, other_y + other_height) - max(y, other_y) > 3


def crosses(text, box) -> bool:
    """Whether a text starts in a box and ends outside."""
    (_, x, y, width, height), (_, left, top, box_width, box_height) = text, box
    inside_vertically = top < y + height / 2 < top + box_height
    ends = [left <= end <= left + box_width for end in (x, x + width)]
    return inside_vertically and any(ends) and not all(ends)


@pytest.mark.long
def test_text_fits_into_its_box(browser, tmp_path):
    """The lines of text do not overlap and cross no border, with the fonts of this machine."""
    for class_name, preset, overrides, *_ in CASES.values():
        (tmp_path / "figure.svg").write_text(draw(build(class_name, preset, **overrides)), encoding="utf-8")
        browser.get((tmp_path / "figure.svg").as_uri())
        shown, boxes = browser.execute_script(BOXES)
        assert len(shown) > 20
        for index, text in enumerate(shown):
            assert not [earlier[0] for earlier in shown[:index] if overlap(text, earlier)], text[0]
            assert not [box for box in boxes if crosses(text, box)], text[0]
        assert errors(browser) == []

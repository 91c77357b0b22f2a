"""The figure of the architecture: its content compared with the modules, its layout in a browser, its files."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import modeling_random_transformer
from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.commands import explore
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from modeling_random_transformer.inspection.architecture import build_architecture, load_architecture
from modeling_random_transformer.inspection.architecture_drawing import draw
from tests.helpers.browser import chromium

FIGURE = Path(__file__).parents[2] / "docs" / "images" / "architecture.svg"
TRANSLATOR = "RandomTransformerForConditionalGeneration"
CASES = {
    "base": (TRANSLATOR, "base", {}),
    "pre-norm": (TRANSLATOR, "tiny", {"norm_order": "pre", "position_embedding": "learned", "vocab_size": 1472}),
    "blog": (TRANSLATOR, "blog", {}),
    "large": (TRANSLATOR, "12-1", {"d_model": 16384, "num_heads": 128, "d_ff": 65536, "vocab_size": 250_000}),
    "separate": (TRANSLATOR, "tiny", {"share_embeddings": False, "activation_function": "prelu", "num_heads": 1}),
    "masked": ("RandomTransformerForMaskedLM", "tiny", {"position_embedding": "none"}),
    "causal": ("RandomTransformerForCausalLM", "big", {"norm_order": "pre", "attention_scale": 0.1}),
    "classifier": ("RandomTransformerForSequenceClassification", "base", {"num_labels": 3}),
    "no head": ("RandomTransformerModel", "iwslt", {"sinusoid_layout": "concatenated"}),
}
by_case = pytest.mark.parametrize("case", CASES)


def architecture(case):
    class_name, preset, overrides = CASES[case]
    return build_architecture(RandomTransformerConfig.from_preset(preset, **overrides), class_name)


def model(case):
    class_name, preset, overrides = CASES[case]
    with torch.device("meta"):
        return getattr(modeling_random_transformer, class_name)(
            RandomTransformerConfig.from_preset(preset, **overrides)
        )


def all_blocks(described):
    for stack in described.stacks:
        yield from (stack.embedding, stack.positions, stack.final_norm)
        for sub_layer in stack.sub_layers:
            yield from (sub_layer.block, sub_layer.norm)
    yield from (described.shared, described.head)


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# Content


@by_case
def test_every_parameter_is_in_one_block(case):
    """Of the layers, the first is drawn."""
    parameters = dict(model(case).named_parameters(remove_duplicate=False))
    blocks = [block for block in all_blocks(architecture(case)) if block]
    drawn = [name for block in blocks for name in block.parameters]
    assert sorted(drawn) == sorted(name for name in parameters if not re.search(r"layers\.[1-9]", name))
    for block in blocks:
        assert block.count == sum(parameters[name].numel() for name in block.parameters)


@by_case
def test_counts_add_up(case):
    described = architecture(case)
    sizes = {name: value.numel() for name, value in model(case).named_parameters()}
    assert described.count == sum(sizes.values())
    outside = [block for block in all_blocks(described) if block and ".layers." not in "".join(block.parameters)]
    tied = {f"{name}.weight" for name in described.tied[1:]}
    counted = sum(sizes[name] for block in outside for name in block.parameters if name not in tied)
    layers = sum(stack.layers * stack.layer_count for stack in described.stacks)
    assert counted + layers == described.count


def test_base_model():
    shown = texts(draw(architecture("base")))
    for text in (
        TRANSLATOR,
        "63,082,496 parameters",
        "input_ids",
        "decoder_input_ids",
        "[batch, target_len, 37,000]",
        "37,000 × 512, times √512",
        "512 → 8 × 64",
        "out_proj: 8 × 64 → 512",
        "softmax(Q·Kᵀ / √64)·V in 8 heads",
        "2,048 → 512",
        "encoder_attn_layer_norm",
        "model.shared",
        "tied",
        "post-norm: LayerNorm(x + sublayer(x))",
    ):
        assert text in shown, text
    assert shown.count("6 ×") == 2
    assert shown.count("Cross-attention") == 1
    assert shown.count("LayerNorm") == 5


@pytest.mark.parametrize(
    ("case", "present", "absent"),
    [
        ("pre-norm", ["layer_norm", "1,024 × 128"], ["sinusoidal"]),
        ("blog", ["10 × 4, not scaled", "4 → 2 × 3", "softmax(Q·Kᵀ / √3)·V in 2 heads"], ["tied"]),
        ("separate", ["PReLU", "tied", "softmax(Q·Kᵀ / √128)·V in 1 head"], ["model.shared"]),
        ("masked", ["Self-attention", "lm_head", "tied"], ["Masked self-attention", "embed_positions"]),
        ("causal", ["Masked self-attention", "softmax(Q·Kᵀ · 0.1)·V in 16 heads"], ["Cross-attention"]),
        ("classifier", ["mean over tokens", "score", "[batch, 3]"], ["tied", "lm_head"]),
        ("no head", ["concatenated sinusoids", "encoder", "last_hidden_state"], ["lm_head", "model.encoder"]),
    ],
)
def test_other_models(case, present, absent):
    shown = texts(draw(architecture(case)))
    assert set(present) <= set(shown)
    assert not set(absent) & set(shown)


@pytest.mark.parametrize("class_name", MODEL_CLASSES.values())
def test_every_class_can_be_drawn(class_name):
    svg = draw(build_architecture(RandomTransformerConfig.from_preset("blog"), class_name))
    assert class_name in texts(svg)


def test_layers_are_those_of_the_modules():
    """All layers have the shapes of the first one."""
    for stack in (model("base").model.encoder, model("base").model.decoder):
        shapes = [[(name, value.shape) for name, value in layer.named_parameters()] for layer in stack.layers]
        assert all(layer == shapes[0] for layer in shapes)


# Layout


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


BOXES = """
const boxes = (selector) => [...document.querySelectorAll(selector)].map((element) => {
    const {x, y, width, height} = element.getBBox();
    return [element.textContent, x, y, width, height];
});
return [boxes("text"), boxes("rect")];
"""


def overlap(first, second):
    (_, x, y, width, height), (_, other_x, other_y, other_width, other_height) = first, second
    across = min(x + width, other_x + other_width) - max(x, other_x)
    return across > 0.5 and min(y + height, other_y + other_height) - max(y, other_y) > 3


def crosses(text, box):
    """Whether a text starts in a box and ends outside."""
    (_, x, y, width, height), (_, left, top, box_width, box_height) = text, box
    inside_vertically = top < y + height / 2 < top + box_height
    ends = [left <= end <= left + box_width for end in (x, x + width)]
    return inside_vertically and any(ends) and not all(ends)


@by_case
def test_text_fits_into_its_box(case, browser, tmp_path):
    """The lines of text do not overlap and cross no border, with the fonts of this machine."""
    (tmp_path / "figure.svg").write_text(draw(architecture(case)), encoding="utf-8")
    browser.get((tmp_path / "figure.svg").as_uri())
    shown, boxes = browser.execute_script(BOXES)
    assert len(shown) > 20
    for index, text in enumerate(shown):
        assert not [other[0] for other in shown[:index] if overlap(text, other)], text[0]
        assert not [box for box in boxes if crosses(text, box)], text[0]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


# Files


def test_figure_of_the_documentation_is_current():
    """`random-transformer explore --architecture FOLDER --output docs/images/architecture.svg` writes it."""
    assert FIGURE.read_text(encoding="utf-8") == draw(architecture("base"))


def test_figure_is_accessible_and_independent_of_other_files():
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
    assert explore.main(["--architecture", str(tmp_path), "--output", str(output)]) == 0
    assert f"Wrote {output}" in capsys.readouterr().out
    expected = build_architecture(RandomTransformerConfig.from_preset("tiny"), class_name or TRANSLATOR)
    assert output.read_text(encoding="utf-8") == draw(expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "random_transformer", "num_heads": 0}', "config.json: num_heads must be a positive integer"),
        (
            '{"model_type": "random_transformer", "architectures": ["<b>"]}',
            "architectures must contain one of RandomTransformerModel, .*, got '<b>'",
        ),
        ('{"model_type": "random_transformer", "architectures": []}', None),
    ],
)
def test_invalid_configurations(content, message, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    status = explore.main(["--architecture", str(tmp_path), "--output", str(tmp_path / "figure.svg")])
    assert status == (2 if message else 0)
    assert re.search(message or "^$", capsys.readouterr().err)


def test_texts_are_escaped():
    described = architecture("masked")
    object.__setattr__(described, "title", "<script>alert(1)</script> & more")
    svg = draw(described)
    assert "<script" not in svg
    assert "<script>alert(1)</script> & more" in texts(svg)


def test_loaded_architecture_equals_that_of_the_model(tmp_path):
    RandomTransformerConfig.from_preset("tiny", architectures=[CASES["masked"][0]]).save_pretrained(tmp_path)
    loaded = load_architecture(tmp_path)
    assert loaded == build_architecture(RandomTransformerConfig.from_preset("tiny"), CASES["masked"][0])

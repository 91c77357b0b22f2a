"""The findings of docs/how_to/intervene.md about the quickstart's translator."""

import re
from pathlib import Path

import pytest

from tutorials.exercises import ablations, trained

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "intervene.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exact_match(quickstart_folder):
    """The fraction of correct translations with some replacements."""
    translator = trained.load_trained(quickstart_folder)

    def measure(replacements):
        return ablations.exact_match_with(translator, replacements, translator.test[:60])

    return measure


@pytest.fixture(scope="module")
def page(quickstart_folder, tmp_path_factory):
    """The variables of the page's code, run with the trained model."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "outputs").mkdir()
    (folder / "outputs" / "quickstart").symlink_to(quickstart_folder)
    variables = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in PYTHON.findall(PAGE.read_text(encoding="utf-8")):
            exec(compile(code, PAGE, "exec"), variables)
    return variables


def test_heads_of_the_last_layer_align(page, exact_match):
    links = page["links"]["decoder.layers.1.encoder_attn.head.0.weights"]
    assert ("manzanas", "apples") in links
    complete = exact_match({})
    assert complete > 0.9
    assert exact_match({"decoder.layers.1.encoder_attn.output": 0}) < 0.05
    assert exact_match({"decoder.layers.0.encoder_attn.output": 0}) > 0.4
    assert exact_match({"decoder.layers.1.encoder_attn.head.0.output": 0}) > 0.4


def test_decoder_needs_the_feed_forward_network(exact_match):
    decoder = exact_match({"decoder.*.ffn.output": 0})
    assert decoder < 0.2
    assert exact_match({"encoder.*.ffn.output": 0}) > decoder + 0.15


def test_unit_promotes_the_next_token(page):
    activations = page["complete"]["decoder.layers.1.ffn.activation"][0, :, page["unit"]]
    assert activations.argmax() == 0
    logits, without = (page[name]["logits"][0, 0, page["token"]] for name in ("complete", "without"))
    assert logits > without


def test_order_is_unknown_without_positions(page, exact_match):
    assert page["with_positions"] == ["El niño ayuda al médico.", "El médico ayuda al niño."]
    first, second = page["without_positions"]
    assert first == second  # the sources are equal as sets
    assert exact_match({"*.embedding.position": 0}) < exact_match({}) - 0.2


def test_a_patched_state_of_a_noun_changes_the_translation(page):
    assert "coches" in page["patched"]
    assert "manzanas" not in page["patched"]

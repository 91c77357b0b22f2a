"""The explorer: the data of the page compared with the model, and the page in a browser."""

import html
import json
import math
import sys

import pytest
import torch
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from modeling_random_transformer import cli
from modeling_random_transformer.extras.inspection import explorer
from modeling_random_transformer.extras.inspection.explorer import token_texts
from tests.helpers.browser import errors, requests
from tests.helpers.models import tiny_model
from tests.helpers.processes import WAIT_LIMIT
from tutorials import report

SENTENCE = "the <script>alert(1)</script> cat & a <b>dog</b>"
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def data(translator, tokenizer):
    return explorer.explore(translator, tokenizer, SENTENCE, num_beams=3, max_new_tokens=7)


@pytest.fixture(scope="module")
def outputs(translator, tokenizer):
    """The same beam search without the explorer."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6, "max_new_tokens": 7}
    return translator.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)


# Data


def test_attention_maps_and_their_labels(translator, tokenizer, monkeypatch, tmp_path):
    """The row with the label of a token is the one whose logits predict it."""
    drawn = {}
    monkeypatch.setattr(report, "draw_heat_map", lambda weights, **options: drawn.update(options, weights=weights))
    monkeypatch.setattr(translator.generation_config, "max_new_tokens", 7)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    ids = translator.generate(**inputs, do_sample=False)
    translator.set_attn_implementation("eager")
    report.draw_attention(translator, tokenizer, SENTENCE, tmp_path / "attention.png")
    data = explorer.explore(translator, tokenizer, SENTENCE, num_beams=1, max_new_tokens=7)
    with torch.no_grad():
        outputs = translator(**inputs, decoder_input_ids=ids[:, :-1], output_attentions=True)
    translator.set_attn_implementation("sdpa")
    for name in ("encoder", "decoder", "cross"):
        expected = torch.cat(outputs[f"{name}_attentions"])
        torch.testing.assert_close(torch.tensor(data["maps"][name]), expected, rtol=0, atol=1e-5)
    predicted = token_texts(tokenizer, outputs.logits[0].argmax(dim=-1))
    assert predicted != token_texts(tokenizer, ids[0, :-1])  # the tokens of the decoder's input are others
    source = token_texts(tokenizer, inputs["input_ids"][0])
    assert data["labels"]["cross"] == (predicted, source)
    assert (drawn["rows"], drawn["columns"]) == (predicted, source)
    means = [layer[0].mean(dim=0) for layer in outputs.cross_attentions]
    (layer,) = (index for index, mean in enumerate(means) if torch.equal(drawn["weights"], mean))
    assert f"layer {layer}," in drawn["title"]  # layers count from 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distributions_at_temperatures(data, translator, tokenizer, outputs, temperature):
    """As the page computes them. The histogram of improbable tokens is exact at temperature 1."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        logits = translator(**inputs, decoder_input_ids=outputs.sequences[:1, :-1]).logits[0]
    for step, row in zip(data["steps"], logits, strict=True):
        top = [math.exp(logit / temperature) for logit in step["logits"]]
        remaining = sum(count * math.exp(logit / temperature) for logit, count in step["others"])
        ours = torch.tensor(top) / (sum(top) + remaining)
        exact = (row / temperature).softmax(-1)
        assert step["ids"] == row.topk(len(step["ids"])).indices.tolist()
        assert sum(count for _, count in step["others"]) + len(step["ids"]) == len(row)
        tolerance = 1e-4 if temperature == 1 else 1e-2
        torch.testing.assert_close(ours, exact[step["ids"]], rtol=tolerance, atol=1e-5)


def test_candidates_of_the_beam_search(data, outputs):
    finished = sorted((node for node in data["search"] if node["place"] is not None), key=lambda node: node["place"])
    assert [node["score"] for node in finished] == pytest.approx(outputs.sequences_scores.tolist(), abs=1e-5)
    assert finished[0]["token"] == data["target"][-1]
    for node in data["search"]:
        assert (node["attention"] is not None) == (node["status"] == "kept")
    attention = torch.tensor(data["search"][0]["attention"])  # of the first token
    torch.testing.assert_close(attention, torch.tensor(data["maps"]["cross"]).mean(1)[:, 0], rtol=0, atol=1e-3)


def test_extra_spaces_are_not_translated(data, translator, tokenizer):
    spaced = explorer.explore(translator, tokenizer, f"  {SENTENCE}\u200b ", num_beams=3, max_new_tokens=7)
    assert spaced["source"] == data["source"]
    assert spaced["translation"] == data["translation"]


def test_the_prefix_of_the_configuration_is_read(data, translator, tokenizer, monkeypatch):
    head, rest = SENTENCE[:4], SENTENCE[4:]
    monkeypatch.setattr(translator.config, "prefix", head, raising=False)
    prefixed = explorer.explore(translator, tokenizer, rest, num_beams=3, max_new_tokens=7)
    assert prefixed["source"] == data["source"]


def test_attribution_and_lens(data):
    """The values add up to the logits of the distribution, and the lens ends with its most probable token."""
    for step, chosen, row in zip(data["steps"], data["chosen"], data["attribution"]["values"], strict=True):
        logits = dict(zip(step["ids"], step["logits"], strict=True))
        expected = [logits.pop(chosen), *logits.values()][: explorer.ATTRIBUTED]
        assert [sum(parts) for parts in row] == pytest.approx(expected, abs=0.02)  # of rounded values
    assert [tokens[0] for tokens in data["attribution"]["tokens"]] == data["target"][1:]
    last = data["lens"][-1]
    assert last["tokens"] == [step["tokens"][0] for step in data["steps"]]
    assert all(highest >= chosen for highest, chosen in zip(last["highest"], last["chosen"], strict=True))


def test_positions_and_statistics(data, translator):
    positions = torch.tensor(data["positions"])
    torch.testing.assert_close(positions, translator.model.encoder.embed_positions.table[:64], rtol=0, atol=1e-4)
    names = [row["name"] for row in data["statistics"]]
    assert len(names) == 2 * 2 + 3 * 3
    assert names[0] == "encoder.layers.0.self_attn"
    assert all(row["layer_norm"] == pytest.approx(2, abs=0.01) for row in data["statistics"])  # weights are doubled


@pytest.mark.parametrize("overrides", [{"position_embedding": "none"}, {"norm_order": "pre", "d_k": 5, "d_v": 3}])
def test_other_configurations(overrides, tokenizer):
    model = tiny_model(vocab_size=len(tokenizer), **overrides)
    data = explorer.explore(model, tokenizer, "the cat", num_beams=1, max_new_tokens=3)
    assert (data["positions"] is None) == (overrides.get("position_embedding") == "none")
    assert len(data["search"]) == 1 + 2 * (len(data["target"]) - 1)
    json.dumps(data, allow_nan=False)


# Page


@pytest.fixture(scope="module")
def page(translator_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "new" / "explorer.html"
    arguments = [str(translator_folder), SENTENCE, "--output", str(path), "--num_beams", "3", "--max_new_tokens", "7"]
    assert cli.main(["explore", *arguments]) == 0
    return path


@pytest.fixture
def browser(browser, page):
    browser.get(page.as_uri())
    # On a busy machine, the page was once read before its scripts had run.
    WebDriverWait(browser, WAIT_LIMIT).until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#search g"))
    return browser


def plotted(browser, plot, key="z"):
    return browser.execute_script(f"return document.getElementById('{plot}').data.at(-1).{key}")


def test_page_contains_the_data(page, data):
    """In a script element, which no text of the sentence can close."""
    text = page.read_text(encoding="utf-8")
    start = text.index('{"sentence"')
    written, _ = json.JSONDecoder().raw_decode(text, start)
    assert written == json.loads(json.dumps(data))
    assert "<script>alert(1)" not in text
    assert "plotly" in text[:start]


@pytest.mark.long
def test_page_in_a_browser(browser, page):
    """It loads nothing else, has no errors, and does not interpret the sentence and its tokens as HTML."""
    assert requests(browser) == {page.as_uri()}
    assert errors(browser) == []
    for plot in ("distribution", "attention", "statistics", "positions"):
        assert browser.find_elements(By.CSS_SELECTOR, f"#{plot} .main-svg"), plot
    assert browser.find_element(By.ID, "sentence").text == SENTENCE
    chips = browser.find_elements(By.CSS_SELECTOR, "#source-tokens .token")
    text = "".join(chip.get_attribute("textContent") for chip in chips)
    assert text.replace("␣", " ").removesuffix("</s>") == SENTENCE
    labels = browser.find_elements(By.CSS_SELECTOR, "#attention .xtick text, #attention .xtick2 text")
    assert any("<" in label.text for label in labels)
    assert not browser.find_elements(By.CSS_SELECTOR, "#attention a, #source-tokens b")


@pytest.mark.long
def test_selecting_a_head(browser, data):
    for name, layer, head in (("encoder", 1, 0), ("cross", 2, 1), ("decoder", 0, 1)):
        Select(browser.find_element(By.ID, "map")).select_by_value(name)
        Select(browser.find_element(By.ID, "layer")).select_by_value(str(layer))
        Select(browser.find_element(By.ID, "head")).select_by_value(str(head))
        shown = torch.tensor(plotted(browser, "attention"))
        torch.testing.assert_close(shown, torch.tensor(data["maps"][name][layer][head]), rtol=0, atol=1e-6)
        ticks = browser.execute_script("return document.getElementById('attention').layout.yaxis.ticktext")
        assert [html.unescape(tick) for tick in ticks] == data["labels"][name][0]
    Select(browser.find_element(By.ID, "head")).select_by_value("mean")
    mean = torch.tensor(data["maps"]["decoder"][0]).mean(0)
    torch.testing.assert_close(torch.tensor(plotted(browser, "attention")), mean, rtol=0, atol=1e-6)


@pytest.mark.long
def test_selecting_a_candidate(browser, data):
    """By keyboard: the reason and the cross-attention of the layer."""
    nodes = browser.find_elements(By.CSS_SELECTOR, "#search g")
    assert len(nodes) == len(data["search"])
    (focusable,) = browser.find_elements(By.CSS_SELECTOR, "#search g[tabindex='0']")
    best = next(node for node in data["search"] if node["place"] == 0)
    assert focusable == nodes[best["index"]]
    focusable.send_keys(Keys.ARROW_LEFT)
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    parent = data["search"][best["parent"]]
    below = next(n for n in data["search"] if (n["depth"], n["rank"]) == (parent["depth"], parent["rank"] + 1))
    assert browser.switch_to.active_element == nodes[below["index"]]
    assert f"candidate {below['rank'] + 1} of step {below['depth']}." in browser.find_element(By.ID, "search").text
    weights = data["search"][below["parent"]]["attention"]
    for layer, expected in enumerate(weights):
        Select(browser.find_element(By.CSS_SELECTOR, "#search select")).select_by_value(str(layer))
        chips = browser.find_elements(By.CSS_SELECTOR, "#search .token")
        assert [float(chip.get_attribute("title")) for chip in chips] == pytest.approx(expected, abs=1e-4)


@pytest.mark.long
def test_comparing_with_another_token(browser, data):
    """The last row is the difference of the logits."""
    slide(browser, "step", 1)
    tokens, values = data["attribution"]["tokens"][1], data["attribution"]["values"][1]
    for contrast in (2, 0):
        Select(browser.find_element(By.ID, "contrast")).select_by_value(str(contrast))
        total = sum(values[0]) - (sum(values[contrast]) if contrast else 0)
        *rows, last = browser.find_elements(By.CSS_SELECTOR, "#attribution tr")
        assert float(last.find_element(By.TAG_NAME, "td").text.replace("−", "-")) == pytest.approx(total, abs=0.006)
        shown = [float(row.find_element(By.TAG_NAME, "td").text) for row in rows]
        assert sum(shown) == pytest.approx(total, abs=0.1)
        assert tokens[contrast].replace("␣", "") in last.text


def resize(browser, width):
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.refresh()


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 500, 360])
def test_page_is_not_wider_than_the_screen(browser, width):
    resize(browser, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 360])
def test_bars_and_the_legend_are_visible(browser, width):
    """Also on a phone: the visible length of each bar is proportional to its value."""
    resize(browser, width)
    measure = """
      const rows = [...document.querySelectorAll("#attribution tr")].slice(0, -1);
      const end = document.getElementById("attribution").parentElement.getBoundingClientRect().right;
      const visible = ({left, right}) => Math.max(0, Math.min(right, end) - left);
      const lengthsIn = (row) => [...row.querySelectorAll(".bar")].map((bar) => visible(bar.getBoundingClientRect()));
      const legend = document.querySelector("#attention .colorbar").getBoundingClientRect();
      const values = rows.map((row) => Number(row.cells[1].textContent));
      return [values, rows.map(lengthsIn), legend.left, legend.right];"""
    values, lengths, left, right = browser.execute_script(measure)
    largest = max(map(abs, values))
    longest = max(map(max, lengths))
    assert longest > 40
    for value, both in zip(values, lengths, strict=True):
        assert max(both) / longest == pytest.approx(abs(value) / largest, abs=0.03)
    assert 0 <= left < right <= width


def slide(browser, name, value):
    browser.execute_script(
        "const slider = document.getElementById(arguments[0]); slider.value = arguments[1];"
        "slider.dispatchEvent(new Event('input'));",
        name,
        value,
    )


@pytest.mark.long
def test_temperature_changes_the_distribution(browser):
    bars = {}
    for temperature in (0, 0.5, 1, 3):
        slide(browser, "temperature", temperature)
        bars[temperature] = plotted(browser, "distribution", "y")
        assert sum(bars[temperature]) == pytest.approx(1, abs=1e-6)
    assert bars[0][0] == 1
    assert bars[0.5][0] > bars[1][0] > bars[3][0]


@pytest.mark.long
def test_stepping_through_the_translation(browser, data):
    def shown():
        return browser.find_element(By.ID, "step-value").text, plotted(browser, "distribution", "customdata")[0]

    count = len(data["steps"])
    assert shown()[0] == f"1 of {count}"
    browser.find_element(By.ID, "next").click()
    assert shown()[0] == f"2 of {count}"
    future = browser.find_elements(By.CSS_SELECTOR, "#target-tokens .future")
    assert len(future) == count - 2
    browser.find_elements(By.CSS_SELECTOR, "#target-tokens .token")[-1].click()
    assert shown()[0] == f"{count} of {count}"
    browser.find_element(By.ID, "previous").click()
    assert shown()[0] == f"{count - 1} of {count}"


@pytest.mark.long
def test_page_size_of_a_long_sentence(tokenizer):
    """60 tokens, 6 layers, 8 heads and a vocabulary of 37,000."""
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "num_heads": 8, "d_model": 64, "d_k": 8}
    model = tiny_model(spread=2.0, vocab_size=37000, **sizes)
    sentence = " ".join(["the boy reads a red book"] * 10)
    data = explorer.explore(model, tokenizer, sentence, num_beams=4, max_new_tokens=60)
    assert len(data["source"]) > 55
    assert len(data["target"]) > 55
    assert len(explorer.render(data).encode()) < 15 * MEGABYTE


def test_missing_plotly_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"requires plotly: pip install 'random-transformer\[explore\]'"):
        explorer.render({})

"""The Transformer in a browser: its program equals that in plain Python, and the page works without a network."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import micro_transformer as micro
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.helpers.browser import errors, requests
from tests.helpers.processes import WAIT_LIMIT

PAGE = Path(__file__).parents[2] / "docs" / "micro_transformer.html"
HEADS, D_FF, LAYERS = 4, 24, 2
PAIRS = [([6, 7, 5, micro.END], [14, 30, 15, micro.END]), ([4, micro.END], [13, micro.END])]
# Losses and gradients with the weights of the Python program, two steps of Adam, and a translation.
COMPUTE = """
model = new Transformer(VOCABULARY.length, D_MODEL, input.heads, input.d_ff, input.layers);
model.logits([START], [START]);
Matrix.tape = [];
for (const [name, rows] of Object.entries(input.parameters)) model.parameters[name].rows = rows;
const output = {losses: [], vocabulary: VOCABULARY};
for (const step of [1, 2]) {
  const loss = model.loss(input.pairs);
  loss.backpropagate();
  output.losses.push(loss.rows[0][0]);
  output.gradients = Object.fromEntries(Object.entries(model.parameters).map(([name, {gradient}]) => [name, gradient]));
  model.adam(step, input.rate);
}
output.written = model.translate(input.pairs[0][0]);
output.words = numbers.map(number => [number, german(number).join(" ")]);
"""


def program() -> str:
    """The JavaScript of the worker."""
    return re.search(r'<script id="worker" type="text/plain">(.*?)</script>', PAGE.read_text("utf-8"), re.DOTALL)[1]


@pytest.fixture
def compute(request):
    """Runs COMPUTE in node or, if it is not installed, in Chromium."""

    def run(data: dict) -> dict:
        code = f"{program()}\nconst input = {json.dumps(data)};\n{COMPUTE}"
        if shutil.which("node") is None:
            return request.getfixturevalue("browser").execute_script(f"{code}\nreturn output;")
        code += "\nconsole.log(JSON.stringify(output));"
        done = subprocess.run(["node", "-"], input=code, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout)

    return run


def test_the_page_is_one_file():
    text = PAGE.read_text("utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:)|import\(|fetch\(|https?://|@import""", text)
    assert len(program().splitlines()) <= 300


def test_losses_and_gradients_equal_those_of_the_python_program(compute):
    random.seed(0)
    model = micro.Transformer(len(micro.VOCABULARY), micro.D_MODEL, HEADS, D_FF, LAYERS)
    losses = []
    model.logits([micro.START], [micro.START])
    micro.Matrix.tape.clear()
    parameters = {name: [list(row) for row in matrix.rows] for name, matrix in model.parameters.items()}
    for step in (1, 2):
        loss = model.loss(PAIRS)
        loss.backpropagate()
        losses.append(loss.rows[0][0])
        gradients = {name: matrix.gradient for name, matrix in model.parameters.items()}
        model.adam(step)
    sizes = {"heads": HEADS, "d_ff": D_FF, "layers": LAYERS}
    output = compute({**sizes, "parameters": parameters, "pairs": PAIRS, "rate": micro.LEARNING_RATE})
    assert output["losses"] == pytest.approx(losses, rel=0, abs=1e-9)
    assert output["gradients"].keys() == gradients.keys()
    for name, rows in gradients.items():
        for actual, expected in zip(output["gradients"][name], rows, strict=True):
            assert actual == pytest.approx(expected, rel=0, abs=1e-9), name
    assert output["written"] == model.translate(PAIRS[0][0], beams=1)
    assert output["vocabulary"] == micro.VOCABULARY
    assert dict(output["words"]) == {number: " ".join(micro.german(number)) for number in range(1, 1000)}


def text(browser, name: str) -> str:
    return browser.find_element(By.ID, name).text


def wait(browser, condition) -> None:
    WebDriverWait(browser, WAIT_LIMIT).until(lambda _: condition())


@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_in_a_browser(browser, width):
    """From the file itself: start, stop, another number, head and rate, the mask, and each box down to its numbers."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(PAGE.as_uri())
    wait(browser, lambda: text(browser, "correct"))
    assert text(browser, "correct") == "drei hundert zwei und vierzig"
    Select(browser.find_element(By.ID, "speed")).select_by_value("0")
    start = browser.find_element(By.ID, "start")
    start.click()
    wait(browser, lambda: re.search(r"Step (\d\d+),", text(browser, "state")))
    assert start.text == "Stop"
    start.click()
    wait(browser, lambda: start.text == "Start")
    assert "accuracy" in text(browser, "charts").lower()

    number = browser.find_element(By.ID, "number")
    browser.execute_script("arguments[0].value = 21; arguments[0].onchange()", number)
    wait(browser, lambda: text(browser, "correct") == "ein und zwanzig")
    Select(browser.find_element(By.ID, "head")).select_by_value("1")
    wait(browser, lambda: "head 2" in text(browser, "map"))
    rows = browser.find_elements(By.CSS_SELECTOR, "#map tr")[1:]
    for row in rows:
        assert sum(int(cell.text[:-1]) for cell in row.find_elements(By.TAG_NAME, "td")) == pytest.approx(100, abs=2)

    for box in browser.find_elements(By.CSS_SELECTOR, "#diagram button"):
        box.click()
        cell = browser.find_elements(By.CSS_SELECTOR, "#numbers button")[-1]
        shown = cell.text
        browser.execute_script("arguments[0].click()", cell)
        assert text(browser, "made").endswith(f"= {shown}"), box.text

    browser.find_element(By.ID, "causal").click()
    kind = Select(browser.find_element(By.ID, "kind"))
    kind.select_by_value("decoder.layers.0.self_attn")
    seen = "return view.trace['model.decoder.layers.0.self_attn.0.weights'][0][1]"  # by the first word, of the second
    wait(browser, lambda: browser.execute_script(seen) > 0)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(address == PAGE.as_uri() or address.startswith("blob:") for address in requests(browser))
    assert errors(browser) == []


def test_without_the_causal_mask_a_message_explains_the_low_loss(browser):
    browser.get(PAGE.as_uri())
    wait(browser, lambda: text(browser, "correct"))
    browser.find_element(By.ID, "causal").click()
    Select(browser.find_element(By.ID, "speed")).select_by_value("0")
    browser.find_element(By.ID, "start").click()
    wait(browser, lambda: "It cheats" in text(browser, "state"))
    assert "✗ wrong" in text(browser, "written")


def test_the_model_learns_in_a_browser(browser):
    browser.get(PAGE.as_uri())
    wait(browser, lambda: text(browser, "correct"))
    Select(browser.find_element(By.ID, "speed")).select_by_value("0")
    browser.find_element(By.ID, "start").click()
    wait(browser, lambda: int(re.search(r"(\d+)% of the unseen", text(browser, "state") + "0% of the unseen")[1]) >= 95)

"""The live page: in a browser, as an HTTP API with concurrent clients, and its parts."""

import json
import re
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Semaphore

import app
import httpx
import inference
import pytest
import tabs
import torch
import views
import yaml
from gradio_client import Client
from gradio_client.exceptions import AppError
from inference import Options, Translator, doubtful_spans
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from transformers import pipeline

from benchmarks.space import server
from modeling_random_transformer.extras.inspection import intervene
from modeling_random_transformer.extras.inspection.explorer import token_texts
from modeling_random_transformer.inference import Candidate, translate_n_best
from modeling_random_transformer.inference.confidence import Calibration
from modeling_random_transformer.inputs_random_transformer import longest_target
from tests.helpers.browser import errors, requests
from tests.helpers.models import EOS, save_translator
from tests.helpers.processes import WAIT_LIMIT, free_port
from tests.helpers.translation import multilingual_translator

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "examples" / "space"

AUDIT = (Path(__file__).parent / "space_audit.js").read_text(encoding="utf-8")
SENTENCES = ["the cat sees the dog", "a dog sees a red car", "the red cat", "a car sees the dog and the cat"]
HOSTILE = "<img src=x onerror='window.hacked=1'><script>hacked=1</script> **b** $x^2$ ${hacked=1} {{value}} &lt;"
CALIBRATION = Calibration(
    50.0, 100, weights=[0.1, 0.0, 0.0, 0.2, 0.0, 0.0], bias=0.5, length_ratio=1.0, scripts=["Latin"]
)
TABS = ["Translate", "Inside", "Explore", "Intervene", "Training curve", "Model card"]
PHONE, DESKTOP = (360, 740), (1200, 900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "tiny"
    model = save_translator(path, norm_order="pre", lm_head_bias=True)
    with torch.no_grad():
        model.lm_head.bias[EOS] = 8.0  # for short translations
    model.save_pretrained(path)
    CALIBRATION.save(path)
    log = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}, {"step": 2, "eval_loss": 4.5}]
    (path / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    (path / "README.md").write_text(
        "---\nwidget:\n- text: the dog\n- text: a red car\n---\n\n# Card of tiny\n\n<script>hacked=1</script>\n"
    )
    return path


@pytest.fixture(scope="module")
def translator(folder):
    return Translator(folder)


@pytest.fixture(scope="module")
def url(translator, folder):
    """The address of the page, served by this process."""
    page = app.build_page(translator, folder)
    _, address, _ = app.launch(page, prevent_thread_lock=True, quiet=True, server_port=free_port())
    yield address
    page.close()


@pytest.fixture(scope="module")
def pipe(translator):
    """The pipeline without the page."""
    return pipeline("seq2seq", model=translator.model, tokenizer=translator.tokenizer, device="cpu")


def expected(pipe, text, num_return_sequences=1, repair=True, **options):
    """The translations and scores of the library, without the page; a random model's are often repaired."""
    options |= {"n_best": num_return_sequences, "repair": repair, "split_sentences": True, "progress": False}
    [candidates] = translate_n_best([text], pipe.model, pipe.tokenizer, **options)
    return [(candidate.translation, candidate.score) for candidate in candidates]


def translations_of(answer):
    return [(one["text"], pytest.approx(one["score"], abs=1e-4)) for one in answer["translations"]]


def test_beam_search_has_the_length_penalty_of_the_model(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    config = tmp_path / "model" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"length_penalty": 1.5}))
    translator = Translator(tmp_path / "model")
    options = [Options(length_penalty=penalty) for penalty in (None, 1.5, 0.6)]
    scores = [answer["translations"][0]["score"] for answer in translator.translate([SENTENCES[0]] * 3, options)]
    assert scores[0] == pytest.approx(scores[1])
    assert scores[0] != pytest.approx(scores[2])
    assert Translator(folder).model.generation_config.length_penalty == 0.6


@pytest.mark.parametrize("text", ["42", " 3,5 % …"])
def test_texts_without_letters_are_unchanged(translator, text):
    for options in (Options(), Options(method="greedy"), Options(method="sampling")):
        ((answer,),) = [one["translations"] for one in translator.translate([text], [options])]
        assert (answer["text"].strip(), answer["score"]) == (text.strip(), 0)


# HTTP API


def call(url, name, posted=None, **arguments):
    """One call of the HTTP API, as with curl: the last event and its data. Releases `posted` when it is queued."""
    with httpx.Client(base_url=f"{url}gradio_api/call/", timeout=WAIT_LIMIT, trust_env=False) as client:
        event = client.post(f"v2/{name}", json=arguments).raise_for_status().json()["event_id"]
        if posted:
            posted.release()
        lines = client.get(f"{name}/{event}").raise_for_status().text.strip().splitlines()
    return lines[-2].removeprefix("event: "), json.loads(lines[-1].removeprefix("data: "))


@pytest.mark.long
def test_32_concurrent_clients_get_their_own_answers(url, pipe, translator, monkeypatch):
    """Texts, methods and errors are mixed, interventions run between the batches, waiting requests share a batch."""
    cases = [
        {"method": "greedy"},
        {"method": "beam search", "num_beams": 3, "n_best": 2},
        {"method": "sampling", "seed": 5, "temperature": 1.5, "n_best": 2},
        {"method": "beam search", "num_beams": 99},
    ]
    sent = [{"text": f"{SENTENCES[i % 4]} {SENTENCES[i % 3]}", **cases[i // 4 % 4]} for i in range(32)]
    sizes, posted, run = [], Semaphore(0), translator.run

    def run_when_all_wait(texts, options):
        if not sizes:
            assert all(posted.acquire(timeout=WAIT_LIMIT) for _ in sent)
        sizes.append(len(texts))
        return run(texts, options)

    def send(request):
        answer = call(url, "translate", posted, **request)
        if request["method"] == "greedy":
            call(url, "intervene", text="the cat", off=["decoder.layers.0.encoder_attn.output"])
        return answer

    monkeypatch.setattr(translator, "run", run_when_all_wait)
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(send, sent))
    assert max(sizes) > 1
    for request, (event, (answer,)) in zip(sent, answers, strict=True):
        assert event == "complete"
        if request.get("num_beams") == 99:
            assert answer == {"error": "num_beams must be an integer from 1 to 10, got 99."}
            continue
        options = Options(**{name: value for name, value in request.items() if name != "text"})
        with inference.seeded(options):
            assert translations_of(answer) == expected(pipe, request["text"], **options.of_generate())


def test_large_requests_are_an_error(url):
    """The limit is checked while the body is read, also if its size is not announced."""
    for body in (b"x" * (app.MAX_BODY + 1), iter([b"x" * app.MAX_BODY, b"x"])):
        assert httpx.post(f"{url}gradio_api/call/translate", content=body).status_code == 413
    answer = httpx.post(f"{url}gradio_api/upload", files={"files": ("a.txt", b"xx")})
    assert answer.status_code == 413
    event, _ = call(url, "intervene", text="the cat", off=["decoder.layers.0.encoder_attn.output"] * 100)
    assert event == "error"


def test_the_gradio_client_gets_the_answers_and_errors_of_the_api(url, pipe):
    client = Client(url, verbose=False)
    (text, _), *_ = expected(pipe, SENTENCES[0], num_beams=4, length_penalty=0.6)
    assert client.predict(SENTENCES[0], api_name="/translate")["translations"][0]["text"] == text
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/translate", "/intervene"]
    with pytest.raises(AppError, match=r"off must be paths of layers and heads that the page lists, got '<b>'"):
        client.predict("the cat", ["<b>"], api_name="/intervene")
    with pytest.raises(AppError, match="off must be a list of at most 29 paths, got None"):
        client.predict("the cat", None, api_name="/intervene")


def test_intervention_equals_that_of_the_library(url, pipe):
    path = "decoder.layers.1.encoder_attn.head.1.output"
    _, (answers,) = call(url, "intervene", text=SENTENCES[1], off=[path])
    before = expected(pipe, SENTENCES[1], num_beams=1, repair=False)
    with intervene(pipe.model, {path: 0}):
        after = expected(pipe, SENTENCES[1], num_beams=1, repair=False)
    assert [translations_of(answer) for answer in answers] == [before, after]
    assert before != after
    assert expected(pipe, SENTENCES[1], num_beams=1, repair=False) == before


# Input


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (" \n", {}, "the text must not be blank."),
        (None, {}, "the text must not be blank."),
        (["the"], {}, "the text must not be blank."),
        ("a" * 1001, {}, "the text must have at most 1000 characters, got 1001."),
        ("\ud800", {}, "index 0: texts must be Unicode"),
        ("a", {"method": "magic"}, "method must be one of greedy, beam search, sampling, got 'magic'."),
        ("a", {"num_beams": 2.5}, "num_beams must be an integer from 1 to 10, got 2.5."),
        ("a", {"num_beams": float("nan")}, "num_beams must be an integer from 1 to 10, got nan."),
        ("a", {"num_beams": None}, "num_beams must be an integer from 1 to 10, got None."),
        ("a", {"n_best": 5}, "n_best must be at most num_beams, 4, got 5."),
        ("a", {"temperature": 0}, "temperature must be a number from 0.1 to 3, got 0."),
        ("a", {"seed": -1}, "seed must be an integer from 0 to 2147483647, got -1."),
        ("a", {"src_lang": "en"}, "src_lang must be one of None, got 'en'."),
    ],
)
def test_invalid_requests_do_not_affect_others(translator, text, options, message):
    error, answer = translator.translate([text, "the cat"], [Options(**options), Options()])
    assert error["error"].startswith(message)
    assert "\n" not in error["error"]
    assert len(answer["translations"]) == 1


def test_text_of_several_sentences(translator, pipe):
    """Structure stays, scores are added, and a long sentence is split."""
    search = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 1.0}
    first, second = (expected(pipe, text, **search) for text in ("The dog.", "A red car."))
    options = Options(num_beams=2, n_best=2, length_penalty=1.0)
    answer, long = translator.translate([" The dog. A red car.\n\n- - -\n", "a b " * 100], [options] * 2)
    texts = [f" {one[0]} {two[0]}\n\n- - -\n" for one, two in zip(first, second, strict=True)]
    scores = [one[1] + two[1] for one, two in zip(first, second, strict=True)]
    assert translations_of(answer) == list(zip(texts, scores, strict=True))
    assert len(long["translations"]) == 2
    with pytest.raises(ValueError, match="the text must have at most 128 tokens, got"):
        translator.inspect("a b " * 100, options)


def test_samples_depend_on_the_seed_only(translator):
    sampling = Options("sampling", temperature=2.0, seed=3)
    state = torch.get_rng_state()
    alone = translator.translate(["the cat"], [sampling])[0]
    assert torch.equal(torch.get_rng_state(), state)
    same_and_other_seeds = [Options("sampling", temperature=2.0, seed=seed) for seed in (1, 3, 3)]
    assert translator.translate(["a dog", "the cat", "the cat"], same_and_other_seeds)[1:] == [alone, alone]
    assert translator.translate(["the cat"], [same_and_other_seeds[0]])[0] != alone


def test_several_languages(tmp_path):
    model, tokenizer = multilingual_translator()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translator = Translator(tmp_path)
    pairs = [("en", "es"), ("en", "fr"), ("es", "en")]
    options = [Options("greedy", src_lang=source, tgt_lang=target) for source, target in pairs]
    answers = translator.translate(["the cat"] * 3, options)
    alone = pipeline("seq2seq", model=translator.model, tokenizer=translator.tokenizer, device="cpu")
    for (source, target), answer in zip(pairs, answers, strict=True):
        assert translations_of(answer) == expected(alone, "the cat", src_lang=source, tgt_lang=target, num_beams=1)
        assert "confidence" not in answer["translations"][0]  # without a calibration
    with pytest.raises(ValueError, match="tgt_lang must be one of en, es, fr, got None"):
        translator.check("the cat", Options(src_lang="en"))
    assert len(translator.inspect("the cat", options[0]).source) > 2
    components = app.build_page(translator, tmp_path).config["components"]
    choices = [component["props"] for component in components if component["props"].get("label") in ("From", "To")]
    assert [choice["value"] for choice in choices] == ["en", "es"] * 4
    assert all([code for _, code in choice["choices"]] == ["en", "es", "fr"] for choice in choices)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("README.md", b"---\na: [\n---\n# Card\n", "README.md: "),
        ("README.md", b"---\n- a\n---\n# Card\n", "README.md: "),
        ("README.md", b"\xff\xfe", "README.md: "),
        ("trainer_state.json", b"{", "trainer_state.json: Expecting property name"),
        ("trainer_state.json", b"{}", "trainer_state.json: "),
        ("trainer_state.json", b'{"log_history": [{"loss": 1.0}]}', "trainer_state.json: "),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": "<b>"}]}', "trainer_state.json: "),
    ],
)
def test_damaged_files_beside_the_model_are_ignored(translator, folder, tmp_path, name, content, message):
    for file in ("README.md", "trainer_state.json"):
        shutil.copy(folder / file, tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}") as warned:
        page = app.build_page(translator, tmp_path)
    assert "\n" not in str(warned[0].message)
    values = [str(component["props"].get("value")) for component in page.config["components"]]
    assert any(value.startswith(f"<p>{message}") for value in values)
    assert not any("<b>" in value for value in values if value.startswith(f"<p>{message}"))
    assert not any("has neither" in value for value in values)
    intact_part = "Card of tiny" if name == "trainer_state.json" else "<h1>"
    assert any(intact_part in value for value in values)


# Values


def test_inside_equals_the_model(translator):
    inside = translator.inspect(SENTENCES[0], Options(num_beams=2))
    inputs = translator.tokenizer(SENTENCES[0], return_tensors="pt")
    ids = torch.tensor([[1, *inside.chosen]])
    with torch.no_grad():
        outputs = translator.model(**inputs, decoder_input_ids=ids[:, :-1])
    for step, row in enumerate(outputs.logits[0]):
        for temperature, tolerance in ((1.0, 1e-4), (0.3, 1e-2), (3.0, 1e-2)):
            shown = torch.tensor(views.probabilities(inside.steps[step], temperature))
            exact = (row / temperature).softmax(-1)[inside.steps[step]["ids"]]
            torch.testing.assert_close(shown, exact, rtol=tolerance, atol=1e-5)
    assert inside.attention.shape == (3, 2, len(inside.target), len(inside.source))
    assert inside.target == token_texts(translator.tokenizer, torch.tensor(inside.chosen))
    torch.testing.assert_close(inside.attention.sum(-1), torch.ones(inside.attention.shape[:-1]))


def test_confidence_is_that_of_the_library(translator, pipe):
    options = {"n_best": 2, "num_beams": 2, "repair": True, "confidence": True, "split_sentences": True}
    [expected] = translate_n_best([SENTENCES[0]], pipe.model, pipe.tokenizer, **options)
    [answer, number, plain] = translator.translate(
        [SENTENCES[0], "42", SENTENCES[0]], [Options(num_beams=2, n_best=2)] * 2 + [Options(is_plain=True)]
    )
    for translation, candidate in zip(answer["translations"], expected, strict=True):
        assert translation["confidence"] == pytest.approx(candidate.confidence, abs=1e-5)
        assert translation["doubtful"] == doubtful_spans(candidate) != []
        assert translation.get("problems", []) == candidate.problems
    for answer_without_confidence in (number, plain):
        assert set(answer_without_confidence["translations"][0]) == {"text", "score"}


def test_doubtful_words_are_underlined():
    best = {"text": "ein <b> Hund", "confidence": 0.825, "doubtful": [(4, 7)], "problems": ["empty"]}
    page = views.best_translation({"translations": [best]})
    assert page.startswith('<p class="translation">ein <u>&lt;b&gt;</u> Hund</p><p>Confidence: 82%, ')
    assert "probability below 20%" in page
    assert page.endswith("<p>Doubtful: empty.</p>")
    best = {"text": "ein <b> Hund"}
    page = views.best_translation({"translations": [best]})
    assert page == '<p class="translation">ein &lt;b&gt; Hund</p>'


def test_differences_and_errors_are_escaped():
    first, second = ({"translations": [{"text": text, "score": -1.0}]} for text in (HOSTILE, f"<b> {HOSTILE}"))
    for table in (views.comparison(first, second), views.comparison(second, first)):
        assert not re.search(r"<(img|script|b)\b", table)
    assert str(tabs.user_error("<b>").message) == "&lt;b&gt;"


def luminance(color):
    channels = (value / 255 for value in color)
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_of_every_weight():
    for percent in range(101):
        style = views.colors(percent / 100)
        text = 1.0 if style.endswith("white") else 0.0
        background = luminance(map(int, re.findall(r"\d+", style)))
        low, high = sorted((text, background))
        assert (high + 0.05) / (low + 0.05) >= 4.5, percent


# Browser


class User:
    """Acts on the page in the browser."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.load(DESKTOP)

    def load(self, size, theme="light"):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(f"{self.url}?__theme={theme}")
        self.wait(lambda: self.visible("textarea"))

    def wait(self, condition):
        return WebDriverWait(self.driver, WAIT_LIMIT, 0.05, ignored_exceptions=(Exception,)).until(
            lambda _: condition()
        )

    def visible(self, selector):
        return [element for element in self.driver.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()]

    def button(self, text):
        return next(button for button in self.visible("button:not([tabindex='-1'])") if button.text.strip() == text)

    def open_tab(self, name):
        tab = next((tab for tab in self.visible("button[role=tab]") if tab.text == name), None)
        if tab is None:
            self.visible("button[aria-label='More tabs']")[0].click()
            tab = self.wait(lambda: self.button(name))
        tab.click()
        self.wait(lambda: self.visible("button[role=tab][aria-selected=true]")[0].text == name)

    def submit(self, text):
        box = self.visible("textarea")[0]
        box.clear()
        box.send_keys(text, Keys.ENTER)

    def translation(self):
        return self.visible(".translation")[0].get_property("textContent")

    def caption(self, start):
        return next((element.text for element in self.visible(".prose p, p") if element.text.startswith(start)), None)

    def cells(self, table, row):
        """The texts of a row of a visible table."""
        rows = self.visible(".scroll table")[table].find_elements(By.CSS_SELECTOR, "tbody tr")
        return [cell.get_property("textContent") for cell in rows[row].find_elements(By.CSS_SELECTOR, "th, td")]

    def active(self):
        return self.driver.switch_to.active_element

    def problems(self):
        """What `AUDIT` finds after transitions, during which texts are transparent."""
        with suppress(TimeoutException):
            WebDriverWait(self.driver, WAIT_LIMIT).until(lambda driver: not driver.execute_script(AUDIT))
        return self.driver.execute_script(AUDIT)


@pytest.fixture
def user(browser, url):
    return User(browser, url)


def test_translating(user, pipe, translator, url):
    user.submit(SENTENCES[0])
    user.wait(lambda: user.visible(".scroll table"))
    translations = expected(pipe, SENTENCES[0], num_beams=4, num_return_sequences=3, length_penalty=0.6)
    assert user.translation() == translations[0][0]
    [answer] = translator.translate([SENTENCES[0]], [Options()])
    best = answer["translations"][0]
    assert user.caption("Confidence: ").startswith(f"Confidence: {best['confidence']:.0%}, ")
    underlined = [word.get_property("textContent") for word in user.visible(".translation u")]
    assert underlined == [best["text"][start:end] for start, end in best["doubtful"]]
    assert user.caption("The model gives underlined words")
    for rank, (text, score) in enumerate(translations):
        assert user.cells(0, rank) == [str(rank + 1), text, f"{score:.3f}"]
    assert all(address.startswith((url, "blob:", "about:")) for address in requests(user.driver))
    assert errors(user.driver) == []


def test_sampling_by_keyboard_only(user, pipe):
    user.visible("textarea")[0].send_keys(SENTENCES[1], Keys.TAB)
    while user.active().get_attribute("value") != "sampling":  # after the example sentences
        assert user.active().get_attribute("type") in ("submit", "radio")
        user.active().send_keys(Keys.TAB)
    user.active().send_keys(Keys.SPACE)
    user.wait(lambda: any(element.text == "Temperature" for element in user.visible("label, span")))
    names = []
    while user.active().text != "Translate":
        user.active().send_keys(Keys.TAB)
        names.append(user.active().get_attribute("aria-label") or user.active().text)
        assert len(names) < 30
    assert any("Temperature" in name for name in names)
    user.active().send_keys(Keys.ENTER)
    user.wait(lambda: user.visible(".scroll table"))
    options = Options("sampling", n_best=3)
    with inference.seeded(options):
        translations = expected(pipe, SENTENCES[1], **options.of_generate())
    assert user.translation() == translations[0][0]


def test_stepping_through_a_translation(user, translator):
    inside = translator.inspect(SENTENCES[0], Options())
    user.open_tab("Inside")
    user.submit(SENTENCES[0])
    user.wait(lambda: user.caption("First token at temperature 1.0"))
    first = user.cells(0, 0)
    assert first[1] == f"{100 * views.probabilities(inside.steps[0], 1.0)[0]:.1f}%"
    user.button("Next token").click()
    user.wait(lambda: user.caption("Next token after"))
    assert user.cells(0, 0)[1] == f"{100 * views.probabilities(inside.steps[1], 1.0)[0]:.1f}%"
    user.button("Previous token").click()
    user.wait(lambda: user.caption("First token at temperature 1.0"))
    sliders = user.visible("input[type=range]")
    next(element for element in sliders if "Temperature" in element.get_attribute("aria-label")).send_keys(Keys.END)
    user.wait(lambda: user.caption("First token at temperature 3.0"))
    assert user.cells(0, 0)[1] == f"{100 * views.probabilities(inside.steps[0], 3.0)[0]:.1f}%"
    weights = inside.attention[-1].mean(0)[0]
    assert user.cells(1, 0)[1:] == [f"{100 * weight:.0f}" for weight in weights.tolist()]


def test_direction_of_texts(user):
    """That of the first letter, in the input, the translation and the cells of tables."""
    user.submit("ابج")
    user.wait(lambda: user.visible(".scroll table"))
    for element in (*user.visible("textarea"), *user.visible(".scroll td.text")):
        assert element.value_of_css_property("unicode-bidi") == "plaintext"
        assert element.value_of_css_property("text-align") == "start"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_exploring(user, pipe, size):
    """A sentence of the model card; the frame is the page of `random-transformer explore`."""
    user.load(size)
    assert "<script>hacked=1</script>" in user.driver.find_element(By.TAG_NAME, "body").text
    user.open_tab("Explore")
    user.button("a red car").click()
    user.wait(lambda: user.visible("textarea")[0].get_property("value") == "a red car")
    user.visible("textarea")[0].send_keys(Keys.ENTER)
    user.driver.switch_to.frame(user.wait(lambda: user.visible("iframe")[0]))
    user.wait(lambda: user.visible("#search g") and user.visible("#attention .main-svg"))
    # The explorer runs the model, whose limit on new tokens is lower than that of the engine.
    limit = longest_target(len(pipe.tokenizer("a red car").input_ids), pipe.model.config)
    options = {"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": limit, "repair": False}
    (text, _), *_ = expected(pipe, "a red car", **options)
    assert user.driver.find_element(By.ID, "translation").text == text
    assert user.driver.execute_script("return document.documentElement.scrollWidth") <= size[0]
    user.driver.switch_to.default_content()
    assert all(address.startswith((user.url, "blob:", "about:")) for address in requests(user.driver))
    assert errors(user.driver) == []


def test_switching_parts_off(user, translator):
    path = "encoder.layers.0.self_attn.output"
    before, after = (answer["translations"][0] for answer in translator.ablate(SENTENCES[0], Options("greedy"), [path]))
    user.open_tab("Intervene")
    user.submit(SENTENCES[0])
    user.wait(lambda: user.cells(0, 1)[2] == f"{before['score']:.2f}")
    user.visible("input[type=checkbox]")[0].click()
    user.wait(lambda: user.cells(0, 1)[2] == f"{after['score']:.2f}")
    kept = user.driver.execute_script(
        "const cell = document.querySelectorAll('.scroll tbody tr')[arguments[0]].cells[1].cloneNode(true);"
        "cell.querySelectorAll('del').forEach((node) => node.remove()); return cell.textContent;",
        len(user.driver.find_elements(By.CSS_SELECTOR, ".scroll tbody tr")) - 1,
    )
    assert kept.split() == after["text"].split()


def test_errors_are_shown_in_one_line(user):
    user.submit(" ")
    user.wait(lambda: any("the text must not be blank." in element.text for element in user.visible(".toast-body")))
    user.open_tab("Inside")
    user.submit("a b " * 100)
    user.wait(lambda: any("must have at most 128 tokens" in element.text for element in user.visible(".toast-body")))


@pytest.mark.long
def test_texts_are_not_executed(user, translator, monkeypatch):
    """The model returns the text itself."""
    monkeypatch.setattr(translator, "run", lambda texts, _: [[Candidate(text, -1.0)] for text in texts])
    for name in ("Translate", "Intervene"):
        user.open_tab(name)
        user.submit(HOSTILE)
        user.wait(lambda: user.visible(".scroll table"))
        assert user.cells(0, 0)[1] == HOSTILE
    user.open_tab("Inside")
    user.submit(HOSTILE)
    user.wait(lambda: len(user.visible(".scroll table")) == 2)
    heading = user.visible(".scroll table")[1].find_elements(By.CSS_SELECTOR, "thead th")
    shown = "".join(cell.get_property("textContent") for cell in heading)
    assert shown.replace("␣", " ") == f"{HOSTILE}</s>"
    user.open_tab("Model card")
    assert "Card of tiny" in user.driver.find_element(By.TAG_NAME, "body").text
    assert user.driver.execute_script("return window.hacked === undefined")


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "dark"), (PHONE, "light")], ids=["desktop", "phone"])
def test_width_contrast_and_labels(user, size, theme):
    user.load(size, theme)
    for name in TABS:
        user.open_tab(name)
        if name in TABS[:4]:
            user.submit(SENTENCES[3])
            user.wait(lambda result="iframe" if name == "Explore" else ".scroll table": user.visible(result))
        else:
            user.wait(lambda: not user.visible("textarea"))
        assert user.problems() == [], name
        assert user.driver.execute_script("return document.documentElement.scrollWidth") <= size[0], name


# Upload


def test_front_matter_and_requirements():
    _, front, _ = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    settings = yaml.safe_load(front)
    pins = (ROOT / "constraints.txt").read_text()
    assert settings["sdk"] == "gradio"
    assert f"gradio=={settings['sdk_version']}\n" in pins
    assert (SPACE / settings["app_file"]).is_file()
    assert len(settings["short_description"]) <= 60
    assert len((SPACE / "app.py").read_text().splitlines()) <= 200
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    index, *required = (SPACE / "requirements.txt").read_text().splitlines()
    # pip takes a version from any index, so all are pinned; that of torch exists only in the extra one.
    assert index == "--extra-index-url https://download.pytorch.org/whl/cpu"
    names = [
        re.match(r"\w+", name)[0] for name in [*project["dependencies"], *project["optional-dependencies"]["space"]]
    ]
    assert [name.split("==")[0] for name in required] == names
    assert all(f"{name.removesuffix('+cpu')}\n" in pins for name in required)


@pytest.mark.long
def test_uploaded_files_are_sufficient(folder, tmp_path, monkeypatch):
    """The files of the upload commands, without the repository."""
    shutil.copytree(SPACE, tmp_path, dirs_exist_ok=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("modeling_random_transformer", "examples/tutorials"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copytree(folder, tmp_path / "model")
    monkeypatch.setenv("PYTHONPATH", "")
    printed = tmp_path / "printed.txt"
    output = {"stdout": printed.open("w"), "stderr": subprocess.STDOUT}
    with server(tmp_path / "app.py", cwd=tmp_path, **output) as address:
        _, (answer,) = call(f"{address}/", "translate", text="the cat")
    assert len(answer["translations"]) == 3
    lines = printed.read_text().splitlines()
    assert all(line.startswith("* ") for line in lines), lines  # only messages of gradio: no warnings

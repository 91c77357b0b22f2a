"""The web page: its parts in Python, and the page in Chromium without access to the network."""

import base64
import copy
import hashlib
import random
import tarfile
from itertools import chain
from pathlib import Path

import pytest
import torch
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from modeling_random_transformer import RandomTransformerTokenizer, cli
from modeling_random_transformer.extras.export import export_web_page, load_engine, web
from modeling_random_transformer.extras.export.onnx import DecoderGraph, EncoderGraph
from modeling_random_transformer.extras.inspection import record_search
from modeling_random_transformer.extras.pairs.words import WordScorer
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations, features_of
from modeling_random_transformer.inference.loading import load_translator
from tests.helpers.browser import errors, requests, require_chromium, static_host
from tests.helpers.engines import LIMIT, TEXTS, exportable, needs, own_translations
from tests.helpers.models import padded_batch, random_ids, tiny_model
from tests.helpers.processes import WAIT_LIMIT
from tests.helpers.scripts import sentences_by_language
from tests.helpers.translation import SENTENCES

pytestmark = needs("onnx")
CALIBRATED = Calibration(
    50.0, 100, weights=[0.1, 0.02, 0.1, 0.3, 0.1, 0.2], bias=0.5, length_ratio=1.0, scripts=["Latin"]
)
MARKUP = "the <img src=x onerror=alert(1)> boy </s> & <b>girl</b>"
CHARACTERS = "\u2011ﬁab é ñ ' s l 1 9 . , ? \t\n\u00a0\u2009\u0301\u00ad\u200b\u200c\u200d\ufeff\ufe0fمक日😀❤Ω</s>_"


# Export


def test_attentions_of_the_decoder_graph_equal_the_models():
    model = tiny_model(d_k=5, d_v=3)
    model.set_attn_implementation("eager")
    source, target = padded_batch([4, 2]), random_ids(6, 3)
    with torch.no_grad():
        encoded = EncoderGraph(model)(**source)
        past = [torch.zeros(2, 3, model.config.num_heads, 0, part.shape[-1]) for part in encoded]
        inputs = (target.view(2, 3, 3), source["attention_mask"], encoded, past)
        *_, attentions = torch.export.export(DecoderGraph(model), inputs).module()(*inputs)
        rows = {name: rows.repeat_interleave(3, dim=0) for name, rows in source.items()}
        outputs = model(**rows, decoder_input_ids=target, output_attentions=True)
    expected = torch.stack(outputs.cross_attentions, dim=1).unflatten(0, (2, 3))
    torch.testing.assert_close(attentions, expected, rtol=0, atol=1e-5)


def test_settings_of_the_search():
    model, tokenizer = exportable()
    model.generation_config.update(
        eos_token_id=[2, 7], forced_bos_token_id=9, suppress_tokens=[12], bad_words_ids=[[11], [2], [4, 5], [9999]]
    )
    settings = web.page_settings(model, tokenizer, "int8")
    expected = {"start_token": 1, "end_tokens": [2, 7], "first_token": 9, "max_source_tokens": None}
    assert settings == settings | expected | {"suppressed_sequences": [[4, 5], [11], [12]]}
    assert settings["calibration"] is None
    learned, _ = exportable(position_embedding="learned")
    settings = web.page_settings(learned, tokenizer, "int8")
    assert (settings["max_source_tokens"], settings["max_target_tokens"]) == (64, 64)
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id must be one token id for the web page, got None"):
        web.page_settings(model, tokenizer, "int8")


def test_other_tokenizers_are_an_error(tmp_path):
    model = tiny_model(vocab_size=4)
    words = RandomTransformerTokenizer.from_words(["<pad>", "<s>", "</s>", "a"], bos_token="<s>", eos_token="</s>")
    message = "must be a byte-level BPE tokenizer for the web page, got a RandomTransformerTokenizer of type WordLevel"
    with pytest.raises(ValueError, match=message):
        export_web_page(model, words, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (None, ("", [])),
        (
            "---\nwidget:\n- text: a\n- src: b.png\n- c\n- text: d\n---\n# Title\n\nTwo\nlines.\n\nMore.\n",
            ("Two lines.", ["a", "d"]),
        ),
        ("---\nwidget: text\n---\nNo examples.\n", ("", [])),
        ("---\nlanguage: en\n---\n\nNo examples.\n", ("", [])),
    ],
)
def test_greeting_of_a_model_card(tmp_path, card, expected):
    path = tmp_path / "README.md"
    if card is not None:
        path.write_text(card)
    assert web.read_greeting(path) == dict(zip(("about", "examples"), expected, strict=True))
    path.write_text("---\na: [\n---\n")
    with pytest.raises(ValueError, match=r"README.md must be a model card: "):
        web.read_greeting(path)


# Packages


def fake_package(folder: Path) -> web.Package:
    """A package in the folder."""
    (folder / "module").write_text("code")
    with tarfile.open(folder / "scope-name-1.2.3.tgz", "w:gz") as archive:
        archive.add(folder / "module", "package/dist/module.mjs")
    digest = hashlib.sha512((folder / "scope-name-1.2.3.tgz").read_bytes()).digest()
    return web.Package("@scope/name", "1.2.3", base64.b64encode(digest).decode(), ["dist/module.mjs"])


def fake_npm(folder: Path, monkeypatch, script: str) -> None:
    """A program npm, which is the only one in the path."""
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_packages_are_extracted_from_the_cache_or_packed_by_npm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    package = fake_package(tmp_path)
    web.download([package], tmp_path)
    web.extract_package(package, tmp_path, tmp_path)
    assert (tmp_path / "module.js").read_bytes() == b"code"
    (tmp_path / package.archive).rename(tmp_path / "downloaded")
    copy = f'echo "$@" > {tmp_path}/arguments; /bin/cp {tmp_path}/downloaded "$5/{package.archive}"'
    fake_npm(tmp_path, monkeypatch, copy)
    web.download([package], tmp_path / "new" / "cache")
    assert (tmp_path / "arguments").read_text().split()[-1] == "@scope/name@1.2.3"
    assert (tmp_path / "new" / "cache" / package.archive).exists()


def test_errors_of_packages(tmp_path, monkeypatch):
    package = fake_package(tmp_path)
    monkeypatch.setenv("PATH", "")
    message = "npm must be able to download @scope/name@1.2.3, or npm_cache must be a folder with the archives, got"
    with pytest.raises(ValueError, match=f"{message} .*'npm'"):
        web.download([package], tmp_path / "empty")
    fake_npm(tmp_path, monkeypatch, "echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(ValueError, match=f"{message} .*: npm error code E404"):
        web.download([package], tmp_path / "empty")
    fake_npm(tmp_path, monkeypatch, "echo 'npm warn old' >&2; exec /bin/sleep 9")
    monkeypatch.setattr(web, "NPM_TIMEOUT", 0.5)
    with pytest.raises(ValueError, match=f"{message} .* timed out after 0.5 seconds"):
        web.download([package], tmp_path / "empty")
    (tmp_path / package.archive).write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"must be the archive of @scope/name 1.2.3, got a file with another digest"):
        web.download([package], tmp_path)


# Page


@pytest.fixture(scope="module")
def packages():
    """The folder of the JavaScript packages, which are downloaded once per machine."""
    require_chromium()
    try:
        web.download(web.NODE_PACKAGES, web.default_cache())
    except ValueError as error:
        pytest.skip(str(error))
    return web.default_cache()


@pytest.fixture(scope="module")
def exported(packages, tmp_path_factory):
    """A random model in float32, its tokenizer, and the address of its page."""
    model, tokenizer = exportable(seed=1, encoder_layers=1, decoder_layers=2, d_k=5, d_v=3)
    tokenizer.model_max_length = 60
    model.calibrations = Calibrations()
    model.calibrations.by_file[CALIBRATION] = CALIBRATED
    folder = tmp_path_factory.mktemp("web") / "out"
    card = folder.parent / "README.md"
    card.write_text(f"---\nwidget:\n- text: {TEXTS[0]}\n---\n\nIt knows <b>two</b> words.\n")
    export_web_page(model, tokenizer, folder, dtype="float32", npm_cache=packages, card=card)
    with static_host(folder) as address:
        yield model, tokenizer, address


@pytest.fixture
def page(exported, browser):
    """The page, when the model is loaded."""
    browser.get(exported[2])
    wait_for(browser, lambda: text_of(browser, "status") == "Ready.")
    return browser


def wait_for(browser, condition):
    WebDriverWait(browser, WAIT_LIMIT).until(lambda _: condition())


def text_of(browser, name):
    return browser.find_element(By.ID, name).text


def translate_on_page(browser, text, beams="1"):
    """Enter a text as a user does, and wait for the translation."""
    Select(browser.find_element(By.ID, "beams")).select_by_value(beams)
    field = browser.find_element(By.ID, "source")
    field.clear()
    field.send_keys(text, Keys.ENTER)
    wait_for(browser, lambda: text_of(browser, "status").startswith("Translated in") or text_of(browser, "error"))


def run_on_page(browser, body, *arguments):
    """Call an asynchronous function of `translator`, a loaded `Translator`, and return its result."""
    result = browser.execute_async_script(RUN.replace("BODY", body), *arguments)
    assert "error" not in result, result["error"]
    return result["value"]


RUN = """const done = arguments[arguments.length - 1];
  const run = async (...args) => {
    const { Translator } = await import(new URL("page/translator.js", location.href));
    const translator = await Translator.load();
    BODY
  };
  run(...arguments).then((value) => done({ value }), (error) => done({ error: String(error) }));"""
TRANSLATE = """const [texts, options, settings] = args;
  Object.assign(translator.settings, settings);
  const results = [];
  for (const text of texts) results.push((await translator.translate(text, options)).text);
  return results;"""


@pytest.mark.long
def test_page_loads_only_its_own_files(page, exported):
    assert page.execute_script("return crossOriginIsolated") is False
    translate_on_page(page, "the boy")
    run_on_page(page, TRANSLATE, ["the boy"], {}, {})  # in the page itself: requests of its worker are not recorded
    addresses = requests(page)
    assert {address for address in addresses if not address.startswith(exported[2])} == set()
    assert any(address.endswith(".wasm") for address in addresses)
    assert errors(page) == []


@pytest.mark.long
@pytest.mark.parametrize("num_beams", [1, 4, 3])
def test_translations_equal_the_models(page, exported, num_beams):
    model, tokenizer, _ = exported
    options = {"numBeams": num_beams, "maxNewTokens": LIMIT}
    translations = run_on_page(page, TRANSLATE, TEXTS, options, {})
    assert translations == own_translations(model, tokenizer, num_beams)
    for spaces in ("  ", "\t", " \n\n "):
        with_more_spaces = [f" {text}\t".replace(" ", spaces) for text in TEXTS]
        assert run_on_page(page, TRANSLATE, with_more_spaces, options, {}) == translations


@pytest.mark.long
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", ["tokens", "min_new_tokens", "no_repeat_ngram_size", "bad_words_ids"])
def test_options_of_the_generation_config(page, exported, name, num_beams):
    model, tokenizer, _ = copy.deepcopy(exported)
    search = {"max_new_tokens": LIMIT, "num_beams": num_beams, "do_sample": False}
    ids = model.generate(**tokenizer(TEXTS[2], return_tensors="pt"), **search)[0, 1:]
    common = tokenizer("the", add_special_tokens=False)["input_ids"][0]
    options = {
        "tokens": {"forced_bos_token_id": 20, "eos_token_id": [2, 30], "suppress_tokens": [common, 40]},
        "min_new_tokens": {"min_new_tokens": 6},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
        "bad_words_ids": {"bad_words_ids": ids.unfold(0, 2, 1).tolist()},
    }[name]
    if name == "min_new_tokens":  # for short translations
        model.generation_config.eos_token_id = [2, ids[2].item()]
    before = own_translations(model, tokenizer, num_beams, TEXTS[:8])
    model.generation_config.update(**options)
    settings = web.page_settings(model, tokenizer, "float32")
    expected = own_translations(model, tokenizer, num_beams, TEXTS[:8])
    assert expected != before
    options = {"numBeams": num_beams, "maxNewTokens": LIMIT}
    assert run_on_page(page, TRANSLATE, TEXTS[:8], options, settings) == expected


@pytest.mark.long
def test_patience(page, exported):
    model, tokenizer, _ = copy.deepcopy(exported)
    _, token = model.generate(**tokenizer(TEXTS[6], return_tensors="pt"), max_new_tokens=1)[0].tolist()
    model.generation_config.update(length_penalty=2.0, eos_token_id=[2, token])  # for translations of several lengths
    before = own_translations(model, tokenizer, 4, TEXTS[:8])
    model.generation_config.patience = 3
    expected = own_translations(model, tokenizer, 4, TEXTS[:8])
    assert expected != before
    settings = web.page_settings(model, tokenizer, "float32")
    assert run_on_page(page, TRANSLATE, TEXTS[:8], {"numBeams": 4, "maxNewTokens": LIMIT}, settings) == expected


@pytest.mark.long
def test_limit_on_tokens_without_an_explicit_one(page, exported):
    """Translations that do not end have the length of the source, rounded up to a multiple of 16, plus 50."""
    _, tokenizer, _ = exported
    text = "the boy reads"
    body = """const [text] = args;
      translator.settings.end_tokens = [];
      return (await translator.translate(text)).target.length;"""
    length = len(tokenizer(text)["input_ids"])
    assert run_on_page(page, body, text) == -(-length // 16) * 16 + 50


@pytest.mark.long
def test_token_ids_equal_the_tokenizers(page, exported):
    """Spaces, marks, emoji, other scripts, special tokens in the text; and the text of random tokens."""
    _, tokenizer, _ = exported
    draw = random.Random(0)
    texts = [
        *SENTENCES,
        *chain.from_iterable(sentences_by_language().values()),
        "a</s> <pad>__en__",
        *("x" + "".join(draw.choices(CHARACTERS, k=draw.randint(0, 25))) for _ in range(200)),
    ]
    sequences = [draw.choices(range(len(tokenizer)), k=draw.randint(1, 15)) for _ in range(200)]
    body = """const [texts, sequences] = args;
      translator.settings.max_source_tokens = null;
      return [texts.map((text) => translator.encode(text)), sequences.map((ids) => translator.decode(ids))];"""
    ids, decoded = run_on_page(page, body, texts, sequences)
    assert ids == [tokenizer.encode_texts(text, verbose=False)["input_ids"] for text in texts]
    assert decoded == tokenizer.batch_decode(sequences, skip_special_tokens=True)


@pytest.mark.long
def test_confidence_and_words_equal_the_librarys(page, exported):
    """For the same translations: of texts, whose tokens are those that the library scores."""
    model, tokenizer, _ = exported
    pairs = [(text, f"{sentence}  {text}") for text, sentence in zip(TEXTS[:6], SENTENCES, strict=False)]
    targets = [tokenizer(target)["input_ids"] for _, target in pairs]
    body = """const [pairs, targets] = args;
      const ratings = [];
      for (const [i, [source, target]] of pairs.entries()) {
        const encoded = await translator.encodeSource(translator.encode(source));
        ratings.push((await translator.forward(encoded, targets[i], source, target)).rating);
      }
      return ratings;"""
    scores = WordScorer(model, tokenizer)(pairs, 0, lambda _: None)
    for rating, pair, score in zip(run_on_page(page, body, pairs, targets), pairs, scores, strict=True):
        assert rating["confidence"] == pytest.approx(CALIBRATED.confidence(features_of(pair, score)), abs=1e-4)
        assert rating["words"] == pytest.approx([probability for _, probability in score.words], rel=1e-3)


@pytest.mark.long
def test_doubtful_words_are_underlined_with_a_legend(page):
    translate_on_page(page, ". ".join(TEXTS[:3]))
    body = "return (await translator.translateText(args[0], { numBeams: 1 })).results.map(({ rating }) => rating);"
    ratings = run_on_page(page, body, ". ".join(TEXTS[:3]))
    lowest = min(rating["confidence"] for rating in ratings)
    assert text_of(page, "rating").startswith(f"Confidence: {round(100 * lowest)}%, the probability")
    assert text_of(page, "legend").startswith("The model gives underlined words a probability below 20%")
    count = sum(probability < 0.2 for rating in ratings for probability in rating["words"])
    assert len(page.find_elements(By.CSS_SELECTOR, "#translation u")) == count > 0
    translate_on_page(page, "42")
    assert text_of(page, "rating") == text_of(page, "legend") == ""


@pytest.mark.long
def test_without_a_calibration_there_is_no_confidence(page):
    body = """translator.settings.calibration = null;
      return (await translator.translate(args[0])).rating;"""
    assert run_on_page(page, body, TEXTS[0]) is None


@pytest.mark.long
def test_translate_with_the_keyboard(page, exported):
    model, tokenizer, _ = exported
    translate_on_page(page, TEXTS[0], beams="4")
    (expected,) = own_translations(model, tokenizer, 4, TEXTS[:1], 66)
    assert page.execute_script("return document.getElementById('translation').textContent") == expected.strip()
    focused = []
    while "target-tokens" not in focused:
        page.switch_to.active_element.send_keys(Keys.TAB)
        element = page.switch_to.active_element
        focused.append(element.get_attribute("id") or element.find_element(By.XPATH, "..").get_attribute("id"))
    assert focused == ["beams", "translate", "layer", "head", "target-tokens"]
    page.switch_to.active_element.send_keys(Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    pressed = page.find_elements(By.CSS_SELECTOR, "#target-tokens [aria-pressed=true]")
    assert pressed == [page.switch_to.active_element]
    for _ in range(2):  # the button keeps the focus
        page.find_element(By.ID, "translate").send_keys(Keys.SPACE)
        wait_for(page, lambda: text_of(page, "status").startswith("Translated in"))
        assert page.switch_to.active_element.get_attribute("id") == "translate"


@pytest.mark.long
def test_paragraph(page, exported):
    """A text is translated sentence by sentence; the menu shows the attention of one of them."""
    model, tokenizer, _ = exported
    sentences = [f"{text.capitalize()}." for text in TEXTS]
    sentences = [sentence for sentence in sentences if len(tokenizer(sentence)["input_ids"]) <= 16][:3]  # limit: 66
    first, second, third = (text.strip() for text in own_translations(model, tokenizer, 4, sentences, 66))
    text = "{} {}\n\n  {}\n".format(*sentences)
    page.execute_script("document.getElementById('source').value = arguments[0]", text)
    page.find_element(By.ID, "translate").click()
    wait_for(page, lambda: text_of(page, "status").startswith("Translated in"))
    translation = page.find_element(By.ID, "translation").get_property("textContent")
    assert translation == f"{first} {second}\n\n  {third}\n"
    menu = Select(page.find_element(By.ID, "sentence"))
    assert [option.text for option in menu.options] == sentences
    menu.select_by_value("2")
    tokens = [one.get_property("textContent") for one in page.find_elements(By.CSS_SELECTOR, "#source-tokens .token")]
    assert "".join(tokens).replace("␣", " ") == f"{sentences[2]}</s>"
    translate_on_page(page, TEXTS[0])
    assert not page.find_element(By.ID, "sentences").is_displayed()


@pytest.mark.long
@pytest.mark.parametrize("text", ["42", "3,5 % …", "٤٢"])
def test_texts_without_letters_are_unchanged(page, text):
    translate_on_page(page, text, beams="4")
    assert page.execute_script("return document.getElementById('translation').textContent") == text
    assert not page.find_element(By.ID, "attention").is_displayed()
    translate_on_page(page, TEXTS[0], beams="4")
    assert page.find_element(By.ID, "attention").is_displayed()


@pytest.mark.long
def test_invisible_characters(page):
    text = TEXTS[0]
    changed = [f" {text}\u200b\n", "\ufeff" + text, text.replace(" ", "\u00a0"), text[:2] + "\u00ad" + text[2:]]
    translations = run_on_page(page, TRANSLATE, [text, *changed], {"maxNewTokens": LIMIT}, {})
    assert set(translations) == {translations[0]}
    body = "return args[0].map((text) => { try { translator.encode(text); } catch (error) { return error.message; } })"
    assert run_on_page(page, body, [" ", "\u200b\u00ad", "\u3164\ufe0f\n"]) == ["Enter a sentence."] * 3


SPLIT = """const { splitText, textParts } = await import(new URL("page/sentences.js", location.href));
  const [texts, language, segmenter, end] = args;
  if (!segmenter) Intl.Segmenter = undefined;
  return texts.map((text) => {
    const { sentences, gaps } = splitText(text, language);
    return [sentences, textParts(sentences.map((sentence) => sentence + end), gaps, sentences).join("")];
  });"""


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "eng_Latn", "__en__"])
def test_sentences_on_the_page(page, language):
    texts = {
        "One.  Two?\tThree": ["One.", "Two?", "Three"],
        "\n  Mr. Low sees Dr. J. Ray. They go.\n\n* * *\n\n\tEnd\n": ["Mr. Low sees Dr. J. Ray.", "They go.", "End"],
        "3 1 2": [],
        "Yes!No": ["Yes!", "No"],
    }
    splits = run_on_page(page, SPLIT, list(texts), language, True, "")
    assert splits == [[sentences, text] for text, sentences in texts.items()]
    assert run_on_page(page, SPLIT, ["One. Two.\n\n Three."], language, False, "") == [
        [["One. Two.", "Three."], "One. Two.\n\n Three."]
    ]


@pytest.mark.long
def test_spaces_between_sentences_follow_the_translation(page):
    ((sentences, joined),) = run_on_page(page, SPLIT, ["你好。再见。"], "zh", True, ".")
    assert (sentences, joined) == (["你好。", "再见。"], "你好。. 再见。.")
    assert run_on_page(page, SPLIT, ["Hi. Bye."], "en", True, "。")[0][1] == "Hi.。Bye.。"
    assert run_on_page(page, SPLIT, ["Hi. Bye."], "en", True, "。”")[0][1] == "Hi.。”Bye.。”"


@pytest.mark.long
def test_greeting_on_the_page(page, exported):
    model, tokenizer, _ = exported
    assert text_of(page, "about") == "It knows <b>two</b> words."
    (button,) = page.find_elements(By.CSS_SELECTOR, "#examples button")
    button.click()
    wait_for(page, lambda: text_of(page, "status").startswith("Translated in"))
    (expected,) = own_translations(model, tokenizer, 4, TEXTS[:1], 66)
    assert page.execute_script("return document.getElementById('translation').textContent") == expected.strip()


@pytest.mark.long
@pytest.mark.parametrize(("num_beams", "limit"), [(4, 66), (3, 5)])
def test_candidates_of_the_beam_search(page, exported, num_beams, limit):
    """They are those of `record_search`, with the options of the page's search."""
    model, tokenizer, _ = exported
    body = "return (await translator.translate(args[0], args[1])).search"
    candidates = run_on_page(page, body, TEXTS[2], {"numBeams": num_beams, "maxNewTokens": limit})
    options = {
        "length_penalty": 0.6,
        "early_stopping": True,
        "max_new_tokens": limit,
        "num_return_sequences": num_beams,
    }
    inputs = tokenizer(TEXTS[2], return_tensors="pt")
    _, expected = record_search(model, inputs, num_beams, **options, renormalize_logits=True)
    assert len(candidates) == len(expected)
    assert {one["status"] for one in candidates} >= {"kept", "finished", "low"}
    for ours, theirs in zip(candidates, expected, strict=True):
        for name in ("index", "parent", "depth", "rank", "id", "place", "status"):
            assert ours[name] == getattr(theirs, name), name
        assert ours["total"] == pytest.approx(theirs.total, abs=1e-3)
        assert ours["score"] == (None if theirs.score is None else pytest.approx(theirs.score, abs=1e-3))
        assert (ours["attention"] is None) == (theirs.attention is None)
        if theirs.attention is not None:
            torch.testing.assert_close(torch.tensor(ours["attention"]), theirs.attention, rtol=0, atol=1e-3)


@pytest.mark.long
def test_tree_of_the_beam_search(page):
    translate_on_page(page, TEXTS[0], beams="4")
    nodes = page.find_elements(By.CSS_SELECTOR, "#candidates g")
    assert len(nodes) > 8
    nodes[2].click()
    assert "candidate 2 of step 1." in text_of(page, "candidates")
    assert errors(page) == []  # also of the Content Security Policy
    translate_on_page(page, TEXTS[0], beams="1")
    assert not page.find_element(By.ID, "search").is_displayed()


def submit_on_page(browser, texts):
    """Submit texts without waiting for their translations."""
    browser.execute_script(
        "for (const text of arguments[0]) {"
        "  document.getElementById('source').value = text;"
        "  document.getElementById('form').requestSubmit();"
        "}",
        texts,
    )
    wait_for(browser, lambda: text_of(browser, "status").startswith("Translated in"))


@pytest.mark.long
def test_last_text_that_was_submitted_is_translated(page, exported):
    """While another one is translated, and while the model is loaded."""
    model, tokenizer, address = exported
    expected = [text.strip() for text in own_translations(model, tokenizer, 4, TEXTS[:2], 66)]
    submit_on_page(page, [*TEXTS[2:8], TEXTS[0]])
    shown = "return document.getElementById('translation').textContent"
    assert page.execute_script(shown) == expected[0]
    page.get(address)
    submit_on_page(page, TEXTS[:2])
    assert page.execute_script(shown) == expected[1]


@pytest.mark.long
def test_direction_of_texts_and_live_region(page):
    translation = page.find_element(By.ID, "translation")
    assert translation.get_attribute("aria-live") == "polite"
    assert page.find_element(By.ID, "result").is_displayed(), "a hidden region is not announced when it is shown"
    for text, direction in (("مرحبا يا عالم", "rtl"), ("hello", "ltr")):
        translate_on_page(page, text)
        for name in ("source", "translation", "source-tokens", "target-tokens"):
            element = page.find_element(By.ID, name)
            if name != "source":  # the random model does not output Arabic
                page.execute_script("arguments[0].textContent = arguments[1]", element, text)
            assert element.value_of_css_property("direction") == direction, name


def shown_weights(browser):
    """The titles of the table's cells, which are the weights."""
    return browser.execute_script(
        "return [...document.getElementById('weights').tBodies[0].rows]"
        ".map((row) => [...row.querySelectorAll('td')].map((cell) => Number(cell.title)));"
    )


@pytest.mark.long
def test_layers_and_heads_of_the_attention(page, exported):
    model, tokenizer, _ = copy.deepcopy(exported)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=66, do_sample=False)[:, :-1]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = torch.cat(model(**inputs, decoder_input_ids=ids, output_attentions=True).cross_attentions)
    translate_on_page(page, TEXTS[0])
    initial = torch.tensor(shown_weights(page))
    torch.testing.assert_close(initial, expected[-1].mean(0), rtol=0, atol=2e-4)
    Select(page.find_element(By.ID, "layer")).select_by_value("all")
    mean = torch.tensor(shown_weights(page))
    torch.testing.assert_close(mean, expected.mean((0, 1)), rtol=0, atol=2e-4)
    for layer in range(2):
        for head in range(2):
            Select(page.find_element(By.ID, "layer")).select_by_value(str(layer))
            Select(page.find_element(By.ID, "head")).select_by_value(str(head))
            weights = torch.tensor(shown_weights(page))
            torch.testing.assert_close(weights, expected[layer, head], rtol=0, atol=2e-4)
    page.find_elements(By.CSS_SELECTOR, "#target-tokens button")[1].click()
    colored = page.find_elements(By.CSS_SELECTOR, "#source-tokens .token")
    assert [float(token.get_attribute("title")) for token in colored] == pytest.approx(weights[1].tolist(), abs=1e-4)


@pytest.mark.long
def test_texts_are_not_interpreted_as_html(page):
    translate_on_page(page, MARKUP)
    tokens = page.find_elements(By.CSS_SELECTOR, "#source-tokens .token")
    assert "".join(token.get_attribute("textContent") for token in tokens).replace("␣", " ") == f"{MARKUP}</s>"
    assert not page.find_elements(By.CSS_SELECTOR, "img, b")
    assert errors(page) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "message"),
    [("   ", "Enter a sentence."), ("z" * 60, "The sentence must have at most 60 tokens, got 61.")],
)
def test_invalid_texts(page, text, message):
    translate_on_page(page, TEXTS[0])
    assert text_of(page, "translation") is not None
    translate_on_page(page, text)
    assert text_of(page, "error") == message
    assert text_of(page, "translation") == ""
    assert not page.find_element(By.ID, "attention").is_displayed()
    translate_on_page(page, TEXTS[0])
    assert text_of(page, "error") == ""


@pytest.mark.long
def test_narrow_screen_and_labels(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        translate_on_page(page, " ".join(TEXTS[:3])[:60])
        assert page.execute_script("return document.documentElement.scrollWidth") == 360
        unlabeled = page.execute_script(
            "return [...document.querySelectorAll('textarea, select')].filter((field) => !field.labels.length).length"
        )
        assert unlabeled == 0
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.long
def test_missing_file_is_reported(packages, browser, tmp_path):
    """Without the model; the page is otherwise complete."""
    web.copy_page(tmp_path, packages)
    for name in ("page.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    with static_host(tmp_path) as address:
        browser.get(address)
        wait_for(browser, lambda: text_of(browser, "error"))
        assert text_of(browser, "error").startswith("The model cannot be loaded: ")
        assert text_of(browser, "error").endswith("coder.onnx cannot be loaded: 404 File not found.")
        assert not browser.find_element(By.ID, "translate").is_enabled()
    errors(browser)  # discard the 404 in the log


@pytest.mark.long
def test_200_translations_in_int8(quickstart_folder, packages, browser, tmp_path):
    """The integers are the same on the page and in Python; rounding in float32 may differ."""
    options = ["--engine", "onnx", "--web", "--npm_cache", str(packages), "--output", str(tmp_path / "out")]
    assert cli.main(["export", str(quickstart_folder), *options]) == 0
    sources = (quickstart_folder / "data" / "test.en").read_text().splitlines()[:200]
    model, tokenizer = load_translator(quickstart_folder)
    engine = load_engine(tmp_path / "out", "onnx")
    with static_host(tmp_path / "out") as address:
        browser.get(address)
        for num_beams in (1, 4):
            translations = run_on_page(browser, TRANSLATE, sources, {"numBeams": num_beams, "maxNewTokens": 64}, {})
            assert len(set(translations)) > 100
            for expected in (
                engine(sources, num_beams, 64),
                own_translations(model, tokenizer, num_beams, sources, 64),
            ):
                assert sum(a == b for a, b in zip(translations, expected, strict=True)) >= 196

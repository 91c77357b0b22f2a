"""Which model translates which pair of languages."""

import pytest

from modeling_random_transformer.extras.serving import load_directions
from modeling_random_transformer.extras.serving.directions import language_pairs
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.candidates import Candidate
from modeling_random_transformer.inference.translation import BatchTranslator
from tests.helpers.marian import opus_folder
from tests.helpers.translation import SENTENCES, multilingual_translator


@pytest.fixture(scope="module")
def multilingual_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    for part in multilingual_translator():
        part.save_pretrained(folder)
    return folder


def codes(directions):
    return {(direction.source, direction.target) for direction in directions}


def test_models_with_and_without_language_tags(translator_folder, multilingual_folder):
    assert codes(load_directions([str(translator_folder)])) == {("source", "target")}
    both = [f"de:fr={translator_folder}", str(multilingual_folder)]
    directions = load_directions(both)
    pairs = {("en", "es"), ("en", "fr"), ("es", "en"), ("es", "fr"), ("fr", "en"), ("fr", "es")}
    assert codes(directions) == pairs | {("de", "fr")}
    [chosen] = load_directions([f"fr:en={multilingual_folder}"])
    options = {"src_lang": "fr", "tgt_lang": "en"}
    expected = translate(SENTENCES, chosen.model, chosen.tokenizer, **options)
    assert (codes([chosen]), chosen.translate(SENTENCES)) == ({("fr", "en")}, expected)


def test_the_languages_of_a_marian_model_are_those_of_its_tokenizer(tmp_path):
    from transformers import AutoTokenizer

    opus_folder(tmp_path / "opus")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "opus")
    tokenizer.source_lang, tokenizer.target_lang = "en", "de"
    assert language_pairs(tokenizer) == [("en", "de")]


def test_sentences_are_split(translator_folder):
    texts = [f"{SENTENCES[0]}. {SENTENCES[1]}.\n\n{SENTENCES[2]}"]
    [direction] = load_directions([f"en:es={translator_folder}"], options={"split_sentences": True, "num_beams": 1})
    expected = translate(texts, direction.model, direction.tokenizer, split_sentences=True, num_beams=1)
    assert direction.translate(texts) == expected
    assert "\n\n" in expected[0]


def test_html_is_split_as_its_source_language(translator_folder, monkeypatch):
    texts = []

    def translate_rows(_translator, rows, *_):
        texts.extend(text for text, _ in rows)
        return [[Candidate(f"¡{len(text)}!")] for text, _ in rows]

    monkeypatch.setattr(BatchTranslator, "__call__", translate_rows)
    [direction] = load_directions([f"de:es={translator_folder}"], options={"split_sentences": False})
    direction.translate_html(["<p>Am 3. Mai kam er. Er blieb.</p>"])
    assert texts == ["Am 3. Mai kam er.", "Er blieb."]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["{0}", "{0}"], "--model must have one model per direction, got two for source:target."),
        (["en:es={0}", "EN:es={0}"], "--model must have one model per direction, got two for EN:es."),
        (["en:EN={0}"], "--model must have two languages for a direction, got en:EN."),
        (["auto:es={0}"], "--model must have two languages for a direction, got auto:es."),
        (["en:es={1}", "{1}"], "--model must have one model per direction, got two for en:es."),
        (["en:xx={1}"], "tgt_lang must be one of en, es, fr, got 'xx'."),
        (["en:xx"], "--model must contain a model and its tokenizer, got en:xx: "),
    ],
)
def test_invalid_models(models, message, translator_folder, multilingual_folder):
    with pytest.raises(ValueError, match=message):
        load_directions([template.format(translator_folder, multilingual_folder) for template in models])


def test_one_language_is_no_direction(translator_folder):
    with pytest.raises(ValueError, match=r"--model must be FOLDER or SOURCE:TARGET=FOLDER, .*, got en=/"):
        load_directions([f"en={translator_folder}"])

"""HTML: elements on their words, and text that is not translated."""

import sys

import pytest

from modeling_random_transformer.extras.documents import TRANSLATORS, translate_html
from modeling_random_transformer.extras.documents.markup import Block, parse
from modeling_random_transformer.extras.pairs import placement
from modeling_random_transformer.extras.pairs.placement import unit_spans
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.candidates import Candidate
from modeling_random_transformer.inference.loading import load_translator
from modeling_random_transformer.inference.translation import BatchTranslator
from tests.helpers.html_cases import CASES, LEXICON, TRANSLATIONS


class LexicalAligner(placement.Aligner):
    """Aligns the cases by their lexicon."""

    def process(self, pairs, _sources, _targets):
        return [lexical_links(*pair) for pair in pairs]


def lexical_links(source: str, target: str) -> list[tuple[int, int]]:
    """The links of a perfect alignment."""
    words, translated = ([text[slice(*span)].lower() for span in unit_spans(text)] for text in (source, target))
    links = []
    for row, word in enumerate(translated):
        links += [
            (words.index(source_word), row) for source_word in LEXICON.get(word, "").split() if source_word in words
        ][:1]
    return links


def test_cases_with_perfect_alignments(translator, tokenizer, monkeypatch):
    def answers(_translator, rows, *_):
        return [[Candidate(TRANSLATIONS[text])] for text, _ in rows]

    monkeypatch.setattr(BatchTranslator, "__call__", answers)
    monkeypatch.setattr(placement, "Aligner", LexicalAligner)
    translations = translate_html([source for source, _ in CASES], translator, tokenizer)
    assert len(translations) == 50
    assert dict(zip(CASES, translations, strict=True)) == {case: case[1] for case in CASES}


def test_cases_with_a_trained_model(quickstart_folder):
    """Errors of the model count too. How many it has depends on the rounding of the CPU that trained it."""
    translations = translate_html([source for source, _ in CASES], *load_translator(quickstart_folder))
    wrong = [(source, text) for (source, expected), text in zip(CASES, translations, strict=True) if text != expected]
    assert len(wrong) <= len(CASES) // 5, wrong


def test_sentences_without_elements_are_those_of_translate(translator, tokenizer):
    texts = ["the boy reads a book in the garden", "we want to buy two red apples"]
    first, second = translate(texts, translator, tokenizer)
    translations = translate_html(
        [f"<p>{texts[0]}</p>\n<td>{texts[1]}", ""], translator, tokenizer, src_lang="en", repair=False
    )
    unescaped = [text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for text in translations]
    assert unescaped == [f"<p>{first.strip()}</p>\n<td>{second.strip()}", ""]


PLACEHOLDERS = (
    *("{name}", "{0}", "{{ name }}", "${name}", "{n, plural, one {x}}", "%s", "%1$s", "%(x)s", "%(x)d", "%.2f", "%@"),
    *("https://example.org/a?b=1&c=(2)d", "www.example.org/x", "a.b+c@example.co.uk"),
)


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_placeholders_are_kept(placeholder, translator, tokenizer):
    text = f"the boy sees {placeholder}, the girl sees {placeholder}."
    [block] = [part for part in parse(text) if isinstance(part, Block)]
    assert block.text == "the boy sees, the girl sees."
    for translate_any in (translate_html, translate):
        options = {} if translate_any is translate_html else {"split_sentences": True}
        assert translate_any([text], translator, tokenizer, **options)[0].count(placeholder) == 2


def test_missing_package(translator, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    message = r"Splitting texts into sentences requires sentencex: pip install 'random-transformer\[documents\]': "
    with pytest.raises(ValueError, match=message):
        translate_html(["<p>"], translator, tokenizer)


def test_invalid_documents(translator, tokenizer):
    with pytest.raises(ValueError, match="index 1: texts must be strings, got None"):
        translate_html(["<p>", None], translator, tokenizer)
    for options in ({"n_best": 2}, {"confidence": True}, {"min_confidence": 0.0}):
        [(name, value)] = options.items()
        with pytest.raises(ValueError, match=f"{name} must be unset for documents, got {value}"):
            translate_html(["<p>"], translator, tokenizer, **options)


@pytest.mark.parametrize("documents", ["<p>one</p>", b"<p>", None])
def test_one_document_is_no_iterable_of_documents(documents, translator, tokenizer):
    message = f"documents must be an iterable of strings, got one {type(documents).__name__}"
    with pytest.raises(ValueError, match=message):
        translate_html(documents, translator, tokenizer)


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("document", [b"", None, ["1"], "\ud800"])
def test_a_document_is_a_string_of_unicode_characters(name, document):
    with pytest.raises(ValueError, match=r"texts must be (strings|Unicode), got"):
        TRANSLATORS[name](document, None, None)

"""Placeholders and numbers of a text are in its translation."""

from dataclasses import replace

import pytest

from modeling_random_transformer.extras.wrappers.copying import CopyingTranslator
from modeling_random_transformer.extras.wrappers.problems import COPIED_NUMBER, NUMBERS, PROBLEMS
from modeling_random_transformer.extras.wrappers.repair import problem_counts
from modeling_random_transformer.inference import Candidate, translate
from modeling_random_transformer.inference.candidates import PrefixedText
from modeling_random_transformer.inference.translation import Translator
from modeling_random_transformer.inputs_random_transformer import Languages
from tests.helpers.translation import SENTENCES

OPTIONS = {"repair": True, "num_beams": 1, "max_new_tokens": 8, "progress": False}


@pytest.mark.parametrize("copied", ["{name}", "%(name)s", "https://name.org", "a@b.org"])
@pytest.mark.parametrize("split_sentences", [False, True])
def test_placeholders_are_in_the_translation(model, tokenizer, copied, split_sentences):
    """The model is random, and never copies a word."""
    texts = [f"{copied} {SENTENCES[0]}", f'{SENTENCES[0]} "{copied}" {SENTENCES[1]}', f"({copied})", copied]
    translations = translate(texts, model, tokenizer, split_sentences=split_sentences, **OPTIONS)
    assert [translation.count(copied) for translation in translations] == [1] * len(texts)


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("4711 dogs", "Hunde", "4711 Hunde"),
        ("dogs 4711.", "Hunde.", "Hunde 4711."),
        ('dogs "12:30" run', "Hunde laufen", "Hunde 12:30 laufen"),
        ("3,50 and 12", "und", "3,50 und 12"),
        ("4711", "", "4711"),
        ("2 dogs", "zwei Hunde", "zwei Hunde"),
    ],
)
def test_numbers_are_placed(model, tokenizer, source, translation, expected, monkeypatch):
    monkeypatch.setattr(CopyingTranslator, "can_align", False)  # alignments of a random model have no meaning
    pipe = Translator(model, tokenizer).pipe

    def plain(rows, *_):
        return [[Candidate(translation)] for _ in rows]

    translator = CopyingTranslator(plain, pipe, Languages(), COPIED_NUMBER)
    [[candidate]] = translator([PrefixedText(source, "")], 0, lambda _: None)
    assert candidate.translation == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,000.5 or 1.000,5", ["1,000.5", "1.000,5"]),
        ("12:30, 007!", ["12:30", "007"]),
        ("10 000 or 1\u202f234\u202f567,50 or 10’000", ["10 000", "1\u202f234\u202f567,50", "10’000"]),
        ("in 2010 300 dogs, 10 0000", ["2010", "300", "10", "0000"]),
        ("٤٢", ["٤٢"]),
        ("2 dogs, the 22nd, MP33", []),  # often a word in the translation
    ],
)
def test_numbers_of_a_text_are_recognized(text, expected):
    assert COPIED_NUMBER.findall(text) == expected


def test_a_lost_number_is_the_least_problem(model, tokenizer):
    detect = Translator(model, tokenizer, repair=True).composition.detector
    [[candidate]] = Translator(model, tokenizer, num_beams=1).stream(["the dog 4711"])
    assert NUMBERS in detect("the dog 4711", candidate)
    lost = replace(candidate, problems=[NUMBERS])
    for problem in PROBLEMS[:-1]:
        assert problem_counts(lost) < problem_counts(replace(candidate, problems=[problem]))
    assert problem_counts(lost) > problem_counts(replace(candidate, problems=[]))

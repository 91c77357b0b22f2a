"""Translations with problems: the remedies in their order, and texts that do not change."""

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.extras.wrappers.problems import LOOP, PROBLEMS, Detector
from modeling_random_transformer.extras.wrappers.repair import RepairingTranslator
from modeling_random_transformer.inference import Candidate, translate, translate_n_best
from modeling_random_transformer.inference.candidates import PrefixedText
from modeling_random_transformer.inference.translation import Translator
from tests.helpers.translation import SENTENCES, some_texts

LOOPING, GOOD = "Hund Hund Hund Hund", "ein Hund"
ROWS = [PrefixedText(text, "") for text in ("a dog", "a cat", "a house")]


class Scripted:
    """Translates each text to given candidates, and keeps the texts."""

    def __init__(self, **translations):
        self.translations = translations
        self.texts = []

    def __call__(self, rows, *_):
        self.texts += [text for text, _ in rows]
        return [[Candidate(text, tokens=["</s>"]) for text in self.translations[row.split()[1]]] for row, _ in rows]


def test_the_first_candidate_without_problems_is_taken():
    plain = Scripted(dog=[LOOPING], cat=[GOOD], house=[LOOPING])
    hypotheses = Scripted(dog=[LOOPING, "der Hund", GOOD], house=[LOOPING, LOOPING])
    blocked = Scripted(house=[LOOPING, "das Haus"])
    repairing = RepairingTranslator(plain, Detector("</s>"), [hypotheses, blocked, Scripted()])
    candidates = [best for [best] in repairing(ROWS, 0, lambda _: None)]
    assert [best.translation for best in candidates] == ["der Hund", GOOD, "das Haus"]
    assert [best.problems for best in candidates] == [[], [], []]
    assert (hypotheses.texts, blocked.texts) == (["a dog", "a house"], ["a house"])


def test_without_a_good_one_the_first_with_the_fewest_problems_is_doubtful():
    plain = Scripted(dog=[f"{LOOPING}, der in einem alten Haus mit einem Garten ist"])
    repairing = RepairingTranslator(plain, Detector("</s>"), [Scripted(dog=[LOOPING, f"{LOOPING} Hund"])])
    [[best]] = repairing(ROWS[:1], 0, lambda _: None)
    assert (best.translation, best.problems) == (LOOPING, [LOOP])


@pytest.fixture(scope="module")
def results(model, tokenizer):
    """Sources, plain and repaired candidates of a random model, which has many problems."""
    texts = [*some_texts(25, seed=5), "", "12:30"]
    options = {"n_best": None, "num_beams": 2, "progress": False}
    plain = [best for [best] in translate_n_best(texts, model, tokenizer, **options)]
    repaired = [best for [best] in translate_n_best(texts, model, tokenizer, repair=True, **options)]
    return texts, plain, repaired


def test_only_translations_with_problems_change(model, tokenizer, results):
    detect = Translator(model, tokenizer, repair=True).composition.detector
    changed = 0
    for text, plain, repaired in zip(*results, strict=True):
        problems = detect(text, plain)
        assert repaired.problems == detect(text, repaired)
        assert len(repaired.problems) <= len(problems)
        assert set(problems) <= set(PROBLEMS)
        if not problems:
            assert repaired.translation == plain.translation
        changed += repaired.translation != plain.translation
    assert changed


def test_options_of_the_search_are_kept(model, tokenizer, monkeypatch):
    """Also those that have no effect without repetitions, such as sampling."""
    calls = []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **options: calls.append(options) or generate(*args, **options))
    options = {"num_beams": 1, "do_sample": True, "top_k": 5, "seed": 1, "max_new_tokens": 12, "progress": False}
    assert all(translate(SENTENCES[:2], model, tokenizer, repair=True, **options))
    assert calls[0]["do_sample"]
    assert calls[0]["top_k"] == 5
    calls.clear()
    assert all(translate(SENTENCES[:2], model, tokenizer, repair=True, mbr=3, seed=1, progress=False))
    assert calls[0]["num_return_sequences"] == 3


def test_only_the_best_of_several_candidates_is_replaced():
    plain = Scripted(dog=[LOOPING, GOOD, "Hund"], cat=[GOOD, LOOPING], house=[LOOPING])
    hypotheses = Scripted(dog=[LOOPING, GOOD], house=["das Haus"])
    repairing = RepairingTranslator(plain, Detector("</s>"), [hypotheses])
    translations = [[best.translation for best in row] for row in repairing(ROWS, 0, lambda _: None)]
    assert translations == [[GOOD, LOOPING, "Hund"], [GOOD, LOOPING], ["das Haus"]]


def test_the_flag_of_the_command(translator_folder, capsys, results):
    texts, _, repaired = results
    command = ["translate", "--model", str(translator_folder), "--repair", "--num_beams", "2", *texts[:3]]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.splitlines() == [best.translation for best in repaired[:3]]

"""Glossaries: which terms a text requires, where they are placed, and texts that do not change."""

import functools
import re

import pytest

from modeling_random_transformer import cli
from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.extras.wrappers import Glossary
from modeling_random_transformer.extras.wrappers import glossary as glossary_module
from modeling_random_transformer.extras.wrappers.glossary import beginnings, units_of
from modeling_random_transformer.inference import (
    score_pairs,
    translate,
    translate_file,
    translate_n_best,
)
from modeling_random_transformer.inference import translation_files as files
from tests.helpers.interruption import interrupt_at
from tests.helpers.translation import multilingual_translator, random_translator

TEXTS = ["the boy reads a book", "we want two apples", "", "The old house", "the girls do not see the boy"]
TERMS = [("boy", "niño"), ("the old house", "casa vieja"), ("dog", "perro")]
CHANGED = [0, 3, 4]  # the texts in which a term occurs
SHORT = {"max_new_tokens": 24, "progress": False}


def calls_of(model, monkeypatch) -> list[str]:
    """A list that receives the name of each method of the model that is called."""
    calls = list[str]()

    def counted(name, original, *args, **options):
        calls.append(name)
        return original(*args, **options)

    for name in ("generate", "forward"):
        monkeypatch.setattr(model, name, functools.partial(counted, name, getattr(model, name)))
    return calls


class TestOccurrences:
    @pytest.mark.parametrize(
        ("phrase", "text", "occurs"),
        [
            ("boy", "the boy.", True),
            ("boy", "BOY, come", True),
            ("boy", "the boys", False),
            ("boy", "a cowboy", False),
            ("boy", "the boy's book", True),
            ("Polish", "polish it", False),
            ("Polish", "The Polish girl", True),
            ("C++", "in C++ and Rust", True),
            ("C++", "in C", False),
            ("red car", "a red  car", True),
            ("red car", "a red, car", False),
            ("cafe\u0301", "un café", True),  # two forms of Unicode
            ("café", "un ca\u00adfé", True),  # an invisible character
            ("क", "की", False),  # the mark belongs to the letter
            ("犬", "白い犬です", True),
        ],
    )
    def test_a_phrase_occurs_as_whole_words(self, phrase, text, occurs):
        glossary = Glossary([(phrase, phrase)])
        assert glossary.terms_of(text) == [0] * occurs
        assert glossary.lacking([0], text) == [0] * (not occurs)

    def test_the_longest_phrase_counts(self):
        glossary = Glossary([("house", "casa"), ("old house", "casa vieja"), ("the", "la"), ("old", "viejo")])
        assert glossary.terms_of("The old house and the house") == [2, 1, 0]
        assert glossary.terms_of("old the") == [3, 2]
        assert Glossary([("a", "b")]).terms_of("a a") == [0]
        assert Glossary([]).terms_of("the house") == []

    def test_the_case_of_the_text_decides_between_phrases_of_several_cases(self):
        glossary = Glossary(
            [("polish", "pulir"), ("Polish", "polaco"), ("Polish pope", "papa"), ("polish Pope", "otro")]
        )
        assert glossary.terms_of("Polish, polish, POLISH") == [1, 0]
        assert [glossary.terms_of(text) for text in ("Polish Pope", "polish Pope", "polish pope")] == [[2], [3], [0]]

    @pytest.mark.parametrize(
        ("translation", "prefix", "expected"),
        [
            ("Un niño lee.", "", ["Perro", "Un perro", "Un niño perro", "Un niño lee perro"]),
            ("l'ami", "", ["perro", "l perro", "l'perro", "l'ami perro"]),
            ("un niño", "un", ["un perro", "un niño perro"]),
            ("", "", ["perro"]),
        ],
    )
    def test_beginnings(self, translation, prefix, expected):
        assert beginnings(translation, "perro", prefix) == expected

    def test_beginnings_of_a_language_without_spaces(self):
        assert beginnings("白犬。", "猫", "") == ["猫", "白猫", "白犬猫"]


class TestTranslations:
    def test_required_terms_and_unchanged_texts(self, model, tokenizer):
        glossary = Glossary(TERMS)
        before = translate(TEXTS, model, tokenizer, **SHORT)
        after = translate(TEXTS, model, tokenizer, glossary=glossary, **SHORT)
        assert [i for i, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) == 2] == CHANGED
        for number, i in ((0, 0), (1, 3), (0, 4)):
            assert glossary.lacking([number], before[i])
            assert not glossary.lacking([number], after[i])
        assert glossary.report() == (
            "glossary: 3 of 3 required terms are in the translations; 1 of 3 terms did not occur: dog"
        )

    def test_no_more_calls_where_nothing_is_missing(self, model, tokenizer, monkeypatch):
        calls = calls_of(model, monkeypatch)
        translate(TEXTS, model, tokenizer, **SHORT)  # the first call also verifies a step
        calls.clear()
        before = translate(TEXTS, model, tokenizer, **SHORT)
        expected, present = list(calls), re.search(r"\w+", before[1])[0]
        calls.clear()
        glossary = Glossary([("dog", "perro"), ("apples", present)])
        assert translate(TEXTS, model, tokenizer, glossary=glossary, **SHORT) == before
        assert calls == expected
        assert glossary.required == {1: 1}

    def test_a_candidate_of_beam_search_that_has_the_term(self, model, tokenizer):
        [before] = translate([TEXTS[0]], model, tokenizer, **SHORT)
        [listed] = translate_n_best([TEXTS[0]], model, tokenizer, n_best=8, num_beams=8, **SHORT)
        glossaries = (
            (candidate, Glossary([("boy", word)])) for candidate in listed for word in units_of(candidate.translation)
        )
        candidate, glossary = next(pair for pair in glossaries if pair[1].lacking([0], before))
        assert translate([TEXTS[0]], model, tokenizer, glossary=glossary, **SHORT) == [candidate.translation]

    def test_the_most_probable_translation_with_the_term(self, model, tokenizer, monkeypatch):
        """The reference continues all beginnings that leave tokens to generate."""
        monkeypatch.setattr(glossary_module, "CONTINUED_BEGINNINGS", 99)
        text, glossary = TEXTS[0], Glossary(TERMS)
        [before] = translate([text], model, tokenizer, **SHORT)
        heads = [head for head in beginnings(before, "niño", "") if len(tokenizer(head)["input_ids"]) < 24]
        continued = translate([text] * len(heads), model, tokenizer, prefixes=heads, **SHORT)
        scores = score_pairs(model, tokenizer, [(text, translation) for translation in continued])
        ranked = {
            score.log_probability / score.tokens**0.6: translation
            for score, translation in zip(scores, continued, strict=True)
            if not glossary.lacking([0], translation)
        }
        assert len(ranked) > 2
        assert translate([text], model, tokenizer, glossary=glossary, **SHORT) == [ranked[max(ranked)]]

    @pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_beams": 1, "seed": 1}], ids=str)
    def test_several_terms_of_a_text_and_prefixes(self, model, tokenizer, options):
        """Not all of them: bytes that this random model generates after a term can extend its last word."""
        glossary = Glossary([("boy", "niño"), ("book", "libro"), ("reads", "lee")])
        texts, prefixes = [TEXTS[0], TEXTS[0]], ["", "el"]
        translations = translate(texts, model, tokenizer, prefixes=prefixes, glossary=glossary, **SHORT, **options)
        assert translations == translate(
            texts, model, tokenizer, prefixes=prefixes, glossary=glossary, **SHORT, **options
        )
        assert translations[1].startswith("el")
        assert glossary.required == {0: 4, 1: 4, 2: 4}
        missing = [glossary.lacking(range(3), translation) for translation in translations]
        assert len(missing[0]) < 2
        assert glossary.missing.total() == 2 * sum(map(len, missing)) < 12

    def test_a_term_that_does_not_fit_is_counted(self, model, tokenizer):
        glossary = Glossary([("boy", "el niño lee un libro en el jardín")])
        before = translate(TEXTS, model, tokenizer, max_new_tokens=5)
        assert translate(TEXTS, model, tokenizer, max_new_tokens=5, glossary=glossary) == before
        assert glossary.report() == (
            "glossary: 0 of 2 required terms are in the translations; not placed: el niño lee un libro en el jardín (2)"
        )

    def test_a_term_that_is_longer_than_any_translation_changes_nothing(self, model, tokenizer):
        glossary = Glossary([("boy", "ñ" * 400)])
        assert translate(TEXTS, model, tokenizer, glossary=glossary) == translate(TEXTS, model, tokenizer)
        assert glossary.report().startswith("glossary: 0 of 2 required terms are in the translations; not placed: ñññ")

    def test_languages_and_ensembles(self, tokenizer):
        several, tagged = multilingual_translator()
        ensemble = EnsembleForSeq2SeqLM([random_translator(1), random_translator(6)])
        for model, model_tokenizer, options in (
            (several, tagged, {"src_lang": "en", "tgt_lang": "es"}),
            (ensemble, tokenizer, {}),
        ):
            glossary = Glossary(TERMS)
            [translation] = translate([TEXTS[0]], model, model_tokenizer, glossary=glossary, **SHORT, **options)
            assert not glossary.lacking([0], translation)

    def test_documents(self, translator, tokenizer):
        glossary = Glossary(TERMS)
        before, after = (
            translate(
                ["We see the boy.\n  we want two apples."], translator, tokenizer, split_sentences=True, **options
            )
            for options in (SHORT, {**SHORT, "glossary": glossary})
        )
        assert "niño" in after[0]
        assert "niño" not in before[0]
        assert after[0].split("\n")[-1] == before[0].split("\n")[-1]

    def test_html(self, translator, tokenizer):
        documents = pytest.importorskip("modeling_random_transformer.extras.documents")
        glossary = Glossary(TERMS)
        [page] = documents.translate_html(
            ["<p>the <b>boy</b> reads</p>"], translator, tokenizer, glossary=glossary, **SHORT
        )
        assert "niño" in re.sub("<.*?>", "", page)


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "line", "got"),
        [
            ("boy\tniño\nhouse", 2, r"'house'"),
            ("boy\tniño\n\nhouse\tcasa", 2, r"\[''\]"),
            ("boy\tniño\thouse", 1, ""),
            ("boy\tniño\nhouse\t ", 2, r"\['house', ' '\]"),
        ],
    )
    def test_a_malformed_line(self, tmp_path, content, line, got):
        path = tmp_path / "terms.tsv"
        path.write_text(content)
        message = rf"terms.tsv, line {line}: a term must be source phrase, tab and target phrase, got .*{got}"
        with pytest.raises(ValueError, match=message):
            Glossary.read(path)

    def test_two_terms_of_one_source(self, tmp_path):
        path = tmp_path / "terms.tsv"
        path.write_text("boy\tniño\nhouse\tcasa\n boy \tchico")
        with pytest.raises(ValueError, match=r"terms.tsv, line 3: a source phrase must be in one .* as in term 1\."):
            Glossary.read(path)

    def test_another_encoding_is_an_error(self, tmp_path):
        path = tmp_path / "terms.tsv"
        path.write_bytes("house\tcasa\nboy\tniño".encode("latin-1"))
        with pytest.raises(ValueError, match=r"terms.tsv must be .* line 2 .* Windows-1252: save the file as UTF-8\."):
            Glossary.read(path)

    def test_command(self, translator_folder, translator, tokenizer, tmp_path, capsys):
        path = tmp_path / "terms.tsv"
        path.write_text("".join(f"{source}\t{target}\r\n" for source, target in TERMS))
        assert Glossary.read(path).terms == TERMS
        command = ["translate", "--model", str(translator_folder), "--device", "cpu", "--glossary", str(path)]
        assert cli.main([*command, "the boy"]) == 0
        output = capsys.readouterr()
        assert output.out.splitlines() == translate(["the boy"], translator, tokenizer, glossary=Glossary(TERMS))
        assert output.err.splitlines() == [
            "glossary: 1 of 1 required terms are in the translations; 2 of 3 terms did not occur: the old house, dog"
        ]
        path.write_text("boy")
        assert cli.main([*command, "the boy"]) == 2
        assert "terms.tsv, line 1: a term must be" in capsys.readouterr().err

    @pytest.mark.usefixtures("_state_on_cpu")
    def test_resuming_requires_the_same_glossary(self, model, tokenizer, tmp_path, monkeypatch):
        source, output = tmp_path / "in.txt", tmp_path / "out.txt"
        source.write_text("\n".join(TEXTS))
        run = functools.partial(translate_file, source, output, model, tokenizer, chunk_size=2, **SHORT)
        with monkeypatch.context() as patch:
            interrupt_at(2, files, "candidate_lines", patch)
            with pytest.raises(KeyboardInterrupt):
                run(glossary=Glossary(TERMS))
        digest = "[0-9a-f]{8,}"
        for changed_glossary, got in ((None, "None"), (Glossary(TERMS[:1]), digest)):
            with pytest.raises(ValueError, match=f"glossary was {digest}, now {got}"):
                run(glossary=changed_glossary)
        run(glossary=Glossary(TERMS))
        translations = translate(TEXTS, model, tokenizer, glossary=Glossary(TERMS), **SHORT)
        assert output.read_text() == "".join(f"{translation}\n" for translation in translations)

    def test_invalid_arguments(self, model, tokenizer):
        with pytest.raises(ValueError, match="n_best must be None with glossary, got 2"):
            translate_n_best(TEXTS, model, tokenizer, n_best=2, glossary=Glossary(TERMS))
        with pytest.raises(ValueError, match=r"glossary must be a Glossary, got 'terms.tsv'"):
            translate(TEXTS, model, tokenizer, glossary="terms.tsv")
        for term in (("boy",), "ab", ("boy", ""), ("boy", 2)):
            with pytest.raises(ValueError, match="a term must be source phrase, tab and target phrase, got"):
                Glossary([term])


@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_file(content, tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"A glossary must have at least one term|a term must be"):
        Glossary.read(path)

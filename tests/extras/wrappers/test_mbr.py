"""Minimum Bayes risk decoding: the choice among candidates, and its use in `translate`, in files and in the command."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from modeling_random_transformer import cli
from modeling_random_transformer.extras.wrappers.mbr import MAX_ORDER, average, count_ngrams, f_score, most_similar
from modeling_random_transformer.inference import TranslationOptions, translate, translate_file, translate_n_best
from modeling_random_transformer.inference.loading import load_translator
from tests.helpers.translation import some_texts

TEXTS = ["the boy reads a book", "", "we want two apples", "The old house"]
SHORT = {"max_new_tokens": 8, "progress": False}


def chrf(text, reference):
    pairs = zip(count_ngrams(text), [average([count]) for count in count_ngrams(reference)], strict=True)
    return sum(f_score(count, reference_count) for count, reference_count in pairs) / MAX_ORDER


@given(st.text("abc é", min_size=12), st.text("abc é", min_size=12))
def test_one_reference_gives_chrf_of_sacrebleu(text, reference):
    # sacreBLEU averages over the orders that both texts have.
    assume(min(len("".join(side.split())) for side in (text, reference)) >= MAX_ORDER)
    expected = CHRF(eps_smoothing=True).sentence_score(text, [reference]).score / 100
    assert chrf(text, reference) == pytest.approx(expected, abs=1e-9)


def test_the_average_counts_each_text_equally():
    means, total = average([count_ngrams("aab")[0], count_ngrams("ab")[0], count_ngrams("")[0]])
    assert means == {"a": 1, "b": pytest.approx(2 / 3)}
    assert total == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["el niño", "el niño lee un libro", "el niño lee libro", "una casa"], 1),
        (["a b", "c d", "c e", "c d"], 1),
        (["", "", ""], 0),
        (["", "uno", ""], 1),
        (["uno"], 0),
    ],
)
def test_the_most_similar_text_is_chosen(texts, chosen):
    assert most_similar(texts) == chosen


def chrf_to_all(text, texts):
    return sum(map(f_score, count_ngrams(text), map(average, zip(*map(count_ngrams, texts), strict=True))))


def test_translations_are_chosen_from_the_samples(model, tokenizer):
    options = {"seed": 3, "top_k": 20, "temperature": 0.9, **SHORT}
    sampling = {"num_beams": 1, "do_sample": True, "n_best": 5}
    samples = list(translate_n_best(TEXTS, model, tokenizer, **sampling, **options))
    chosen = translate(TEXTS, model, tokenizer, mbr=5, **options)
    for candidates, translation in zip(samples, chosen, strict=True):
        texts = [candidate.translation for candidate in candidates]
        rank = [chrf_to_all(text, texts) for text in texts]
        assert rank[texts.index(translation)] == pytest.approx(max(rank))
    assert chosen[1] == ""


def test_the_seed_determines_the_translations(model, tokenizer):
    texts = some_texts(6)
    translations = [translate(texts, model, tokenizer, mbr=4, seed=seed, **SHORT) for seed in (1, 1, 2)]
    assert translations[0] == translations[1] != translations[2]


def test_documents_and_one_sample(model, tokenizer):
    text = "The boy reads. The girl sees a house."
    assert translate([text], model, tokenizer, mbr=1, seed=1, split_sentences=True, **SHORT)[0]


def test_a_file_equals_a_list(model, tokenizer, tmp_path):
    (tmp_path / "in").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    translate_file(tmp_path / "in", tmp_path / "out", model, tokenizer, mbr=4, seed=1, **SHORT)
    lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert lines == [text.replace("\n", " ") for text in translate(TEXTS, model, tokenizer, mbr=4, seed=1, **SHORT)]


def test_the_command(translator_folder, capsys):
    model, tokenizer = load_translator(translator_folder)
    arguments = ["translate", "--model", str(translator_folder), "--mbr", "4", "--seed", "5", *TEXTS[2:]]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == translate(TEXTS[2:], model, tokenizer, mbr=4, seed=5, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mbr": 0}, "mbr must be None or a positive integer, got 0."),
        ({"mbr": 4, "n_best": 2}, "n_best must be None with mbr, got 2."),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TranslationOptions(**options)


@pytest.mark.parametrize("flags", [("--num_beams", "4"), ("--length_penalty", "1"), ("--sample",)])
def test_flags_of_other_searches_are_errors(flags, tmp_path, capsys):
    assert cli.main(["translate", "--model", str(tmp_path), "--mbr", "4", *flags, "a"]) != 0
    assert "--mbr must be given without --num_beams, --length_penalty and --sample, got 4." in capsys.readouterr().err

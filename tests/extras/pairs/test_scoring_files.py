"""Scores and alignments of files, resumed after an interruption."""

import json

import pytest

from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.extras.pairs import align_file, alignments, score_file
from modeling_random_transformer.extras.pairs.scoring_files import score_line
from modeling_random_transformer.inference import PairScore, score_pairs
from modeling_random_transformer.inference.scoring import Scorer
from tests.helpers.corpora import write_pairs
from tests.helpers.interruption import interrupt_at
from tests.helpers.translation import multilingual_translator, random_tokenizer, some_texts

PAIRS = list(zip(some_texts(30, seed=1), some_texts(30, seed=2), strict=True))


def test_interrupted_scoring_resumes(model, tokenizer, tmp_path, monkeypatch):
    corpus = write_pairs(tmp_path, "aligned", PAIRS)
    expected = [score_line(score, "text") for score in score_pairs(model, tokenizer, PAIRS, chunk_size=7)]
    calls = interrupt_at(3, Scorer, "__call__", monkeypatch)
    output = tmp_path / "scores.txt"
    with pytest.raises(KeyboardInterrupt):
        score_file(corpus, output, model, tokenizer, chunk_size=7)
    assert not output.exists()
    with pytest.raises(ValueError, match="output_format was text, now jsonl"):
        score_file(corpus, output, model, tokenizer, chunk_size=7, output_format="jsonl")
    score_file(corpus, output, model, tokenizer, chunk_size=7)
    assert [len(pairs) for _, pairs, *_ in calls] == [7, 7, 7, 7, 7, 2]
    assert output.read_text().splitlines() == expected
    assert not output.with_name("scores.txt.parts").exists()


def test_invalid_inputs_are_an_error_before_the_first_score(model, tokenizer, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\na\n")
    with pytest.raises(ValueError, match="but line 2 is without exactly one source and one target"):
        score_file(ParallelText(tmp_path / "pairs.tsv"), tmp_path / "scores.txt", model, tokenizer)
    assert not (tmp_path / "scores.txt.parts").exists()
    corpus = write_pairs(tmp_path, "aligned", PAIRS)
    with pytest.raises(ValueError, match=r"output_file must differ from target, got .*a\.es' for both"):
        score_file(corpus, corpus.target, model, tokenizer)


@pytest.mark.parametrize("chunk_size", [2, 9])
def test_pairs_with_a_blank_side_have_an_empty_line(model, tokenizer, tmp_path, chunk_size):
    corpus = write_pairs(tmp_path, "aligned", [("", ""), *PAIRS[:2], ("a", " "), PAIRS[2], ("", "b")])
    expected = [score_line(score, "text") for score in score_pairs(model, tokenizer, PAIRS[:3])]
    output = tmp_path / "out.txt"
    score_file(corpus, output, model, tokenizer, chunk_size=chunk_size)
    assert output.read_text().split("\n") == ["", *expected[:2], "", expected[2], "", ""]
    score_file(corpus, output, model, tokenizer, chunk_size=chunk_size, output_format="jsonl")
    records = list(map(json.loads, output.read_text().splitlines()))
    assert [record["tokens"] > 0 for record in records] == [False, True, True, False, True, False]
    assert records[0] == {"log_probability": None, "tokens": 0}
    align_file(corpus, output, model, tokenizer, chunk_size=chunk_size)
    assert [bool(line) for line in output.read_text().splitlines()] == [False, True, True, False, True, False]


def test_a_text_that_is_too_long_can_be_truncated_without_scoring_the_others_again(model, tmp_path):
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 50
    corpus = write_pairs(tmp_path, "aligned", [*PAIRS[:8], ("a b " * 50, "c")])
    with pytest.raises(ValueError, match=r"line 9: texts must have at most 50 tokens .* got \d+\."):
        score_file(corpus, tmp_path / "scores.txt", model, tokenizer, chunk_size=4)
    assert len(list((tmp_path / "scores.txt.parts").glob("*.txt"))) == 2
    score_file(corpus, tmp_path / "scores.txt", model, tokenizer, chunk_size=4, truncation=True)
    assert len((tmp_path / "scores.txt").read_text().splitlines()) == 9


def test_languages_of_a_model_of_several_languages(tmp_path):
    model, tokenizer = multilingual_translator()
    corpus = write_pairs(tmp_path, "aligned", PAIRS)
    for target in ("es", "fr"):
        codes = {"src_lang": "en", "tgt_lang": target}
        scores = score_pairs(model, tokenizer, PAIRS, **codes)
        score_file(corpus, tmp_path / f"scores.{target}", model, tokenizer, **codes)
        assert (tmp_path / f"scores.{target}").read_text().splitlines() == [score_line(s, "text") for s in scores]
        assert len(list(alignments(model, tokenizer, PAIRS, **codes))) == len(PAIRS)


def test_formats_of_a_score():
    score = PairScore(-1.5, 2, 3, [-1.0, -0.5])
    assert score_line(score, "text") == "-1.500000\t2\t-1.000000 -0.500000"
    assert json.loads(score_line(PairScore(-1.5, 2, 3), "jsonl")) == {"log_probability": -1.5, "tokens": 2}

"""The report on a model: groups, suspicious translations, the worst pairs, the highest losses, the page."""

import html
import re

import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data.sources import ParallelText
from modeling_random_transformer.extras.inspection.report import (
    FREQUENCIES,
    Example,
    curves,
    grouped,
    make_report,
    problems,
)
from modeling_random_transformer.extras.inspection.robustness import disturbances
from modeling_random_transformer.extras.wrappers.problems import detector_of
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations
from modeling_random_transformer.inference.evaluation import score
from modeling_random_transformer.inference.scoring import score_pairs
from modeling_random_transformer.inference.translation import Candidate, translate
from tests.helpers.corpora import write_pairs
from tests.helpers.translation import SENTENCES, multilingual_translator, random_tokenizer, random_translator

PAIRS = [(source, target) for source in SENTENCES[:3] for target in SENTENCES[3:]] + [("a <b>&", "x < y")]


@pytest.fixture(scope="module")
def model():
    return random_translator(), random_tokenizer()


@pytest.fixture(scope="module")
def report(model, tmp_path_factory):
    corpora = [write_pairs(tmp_path_factory.mktemp(name), "tsv", PAIRS) for name in ("test", "train")]
    history = [{"step": 10, "loss": 4.0}, {"step": 20, "loss": 3.0}, {"step": 20, "eval_bleu": 2.0}]
    return make_report(*model, *corpora, title="<model>", history=history, num_beams=2, progress=False)


def test_the_worst_pairs_have_the_lowest_scores_and_the_models_attention(model, report):
    translations = translate([source for source, _ in PAIRS], *model, num_beams=2, progress=False)
    assert [example.chrf for example in report.worst] == sorted(example.chrf for example in report.worst)
    for example in report.worst:
        assert (example.source, example.reference) == PAIRS[example.number - 1]
        assert example.candidate.translation == translations[example.number - 1]
        rows, columns, weights = example.attention
        assert [len(row) for row in weights] == [len(columns)] * len(rows)
        assert [sum(row) for row in weights] == pytest.approx([1] * len(rows), abs=1e-4)


def test_attention_of_a_source_with_extra_spaces(model, tmp_path):
    columns = []
    for number, source in enumerate([SENTENCES[0], f"  {SENTENCES[0]} "]):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = make_report(*model, write_pairs(folder, "tsv", [(source, "?")]), num_beams=1, progress=False)
        columns.append(report.worst[0].attention[1])
    assert columns[0] == columns[1]


def test_attention_of_a_source_with_the_prefix_of_the_configuration(model, tmp_path, monkeypatch):
    monkeypatch.setattr(model[0].config, "prefix", "dog ", raising=False)
    corpus = write_pairs(tmp_path, "tsv", [(SENTENCES[0], "?")])
    report = make_report(*model, corpus, num_beams=1, progress=False)
    ids = model[1](f"dog {SENTENCES[0]}")["input_ids"]
    assert len(report.worst[0].attention[1]) == len(ids)


def test_a_training_set_in_another_encoding_is_an_error(model, tmp_path):
    test = write_pairs(tmp_path, "tsv", PAIRS)
    training = tmp_path / "latin-1.tsv"
    training.write_bytes("a dog\tel niño\na cat\tun gato\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"texts must be UTF-8, got .*latin-1\.tsv"):
        make_report(*model, test, ParallelText(training), num_beams=1, progress=False)


def test_translations_that_equal_their_references_are_not_bad(model, tmp_path):
    sources = [source for source, _ in PAIRS[:4]]
    translations = translate(sources, *model, num_beams=1, progress=False)
    pairs = list(zip(sources, [*translations[:3], "?"], strict=True))
    report = make_report(*model, write_pairs(tmp_path, "tsv", pairs), num_beams=1, progress=False)
    assert [(example.number, example.reference) for example in report.worst] == [(4, "?")]
    assert "The 1 worst translations by chrF++" in report.html()
    report.worst = []
    assert "All translations equal their references." in report.html()


def test_a_text_that_is_too_long_is_named_by_its_line(tmp_path):
    model = random_translator(position_embedding="learned", max_position_embeddings=20)
    (tmp_path / "test.tsv").write_text("a\tb\n\tb\n" + "a " * 30 + "\tb\n")
    with pytest.raises(ValueError, match=r"test\.tsv, line 3: texts must have at most"):
        make_report(model, random_tokenizer(), ParallelText(tmp_path / "test.tsv"), num_beams=1, progress=False)


def test_the_highest_losses_are_those_of_score(model, report):
    losses = [-score.log_probability / score.tokens for score in score_pairs(*model, PAIRS, progress=False)]
    assert [row[0] for row in report.losses] == pytest.approx(sorted(losses, reverse=True)[:10])
    assert all(row[0] == pytest.approx(losses[row[1] - 1]) and row[2:] == PAIRS[row[1] - 1] for row in report.losses)


def test_numbers_are_those_of_lines(model, tmp_path):
    """So that a bad pair can be found in its file, which may have invalid lines."""
    lines = ["a\tb", "\tb", *("\t".join(pair) for pair in PAIRS[:3])]
    (tmp_path / "test.tsv").write_text("".join(f"{line}\n" for line in lines))
    corpus = ParallelText(tmp_path / "test.tsv")
    report = make_report(*model, corpus, corpus, num_beams=1, progress=False)
    expected = [(number, *lines[number - 1].split("\t")) for number in (1, 3, 4, 5)]
    assert sorted((example.number, example.source, example.reference) for example in report.worst) == expected
    assert sorted(row[1:] for row in report.losses) == expected
    assert {number for numbers in report.problems.values() for number in numbers} <= {1, 3, 4, 5}


def test_the_report_of_a_model_of_several_languages(tmp_path):
    model, tokenizer = multilingual_translator()
    corpus, options = write_pairs(tmp_path, "tsv", PAIRS), {"num_beams": 1, "src_lang": "en", "tgt_lang": "es"}
    report = make_report(model, tokenizer, corpus, progress=False, **options)
    assert {example.attention[1][0] for example in report.worst} == {"__en__"}
    assert "tok:13a" in report.scores["bleu"]["signature"]


def test_bleu_of_the_target_language(tmp_path):
    tokenizer = RandomTransformerTokenizer.train(SENTENCES * 3, vocab_size=320, languages=["en", "zh"])
    tokenizer.src_lang, tokenizer.tgt_lang = "en", "zh"
    model = random_translator()
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("zh")
    corpus = write_pairs(tmp_path, "tsv", [("the boy", "男孩读书"), ("a book", "一本书")])
    for options in ({}, {"src_lang": "en", "tgt_lang": "zh"}):
        report = make_report(model, tokenizer, corpus, num_beams=1, progress=False, **options)
        assert "tok:zh" in report.scores["bleu"]["signature"]


def test_the_scores_of_disturbed_sources_if_requested(model, report, tmp_path):
    name = "disturbance of the sources"
    assert name not in report.groups
    corpus = write_pairs(tmp_path, "tsv", PAIRS)
    groups = make_report(*model, corpus, num_beams=1, robustness=True, progress=False).groups[name]
    changed = disturbances(PAIRS, model[1])
    assert [group.name for group in groups] == ["none", *changed]
    for group, pairs in zip(groups, (PAIRS, changed["capitals"]), strict=False):
        sources, references = zip(*pairs, strict=True)
        scores = score(translate(sources, *model, num_beams=1, progress=False), references)
        assert group.scores == {metric: result["score"] for metric, result in scores.items()}


def test_the_confidence_of_a_calibrated_model(tmp_path):
    model, tokenizer = random_translator(), random_tokenizer()
    model.calibrations = Calibrations()
    model.calibrations.by_file[CALIBRATION] = Calibration(50.0, 100, [1.0] * 6, 0.0, 1.0, ["Latin"])
    report = make_report(model, tokenizer, write_pairs(tmp_path, "tsv", PAIRS), num_beams=1, progress=False)
    groups = report.groups["share of the surest translations"]
    assert [group.size for group in groups] == [10, 9, 8, 5, 2, 1]
    assert groups[0].scores["chrf"] == report.scores["chrf"]["score"]
    example = report.worst[0]
    example.candidate.words[:] = [("<Hund>", 0.1), ("sieht", 0.9), ("nichts", 0.05)]
    page = report.html()
    assert '<dd><u title="10%">&lt;Hund&gt;</u> sieht <u title="5%">nichts</u></dd>' in page
    assert "a probability below 20%" in page


def test_a_test_set_without_pairs_is_an_error(model, tmp_path):
    (tmp_path / "test.tsv").write_text("a\t\n")
    with pytest.raises(ValueError, match=r"there must be at least one valid pair of texts, got .*test\.tsv: 1 of 1"):
        make_report(*model, ParallelText(tmp_path / "test.tsv"), num_beams=1, progress=False)


def test_groups_contain_every_pair_once():
    examples = [Example(i, "a", "b c", Candidate("b c" if i < 5 else "d"), 0.0) for i in range(200)]
    groups = grouped(examples, "en", lambda example: example.number, FREQUENCIES)
    assert [(group.name, group.size) for group in groups] == [
        ("0", 1), ("1 to 4", 4), ("5 to 19", 15), ("20 to 99", 80), ("over 99", 100)
    ]  # fmt: skip
    assert [group.scores["chrf"] for group in groups] == pytest.approx([100, 100, 0, 0, 0])


def test_suspicious_translations(model):
    detector = detector_of(*model)
    end = [detector.end_token]
    rows = [("a dog", " "), ("a dog", "der hund und der hund und der hund und "),
            ("ha ha ha ha ha ha", "ha ha ha ha ha ha!"), ("A  Dog sees it.", "a dog sees it"),
            ("a dog", "ein Hund")]  # fmt: skip
    candidates = [Candidate(text, tokens=end) for _, text in rows[:-1]] + [Candidate("ein Hund", tokens=["H"])]
    pairs = enumerate(zip(rows, candidates, strict=True), start=1)
    examples = [Example(i, source, "", candidate, 0.0) for i, ((source, _), candidate) in pairs]
    lines_by_problem = problems(examples, detector)
    assert {problem: lines for problem, lines in lines_by_problem.items() if lines} == {
        "empty": [1],
        "repeats a part": [2],
        "copies the source": [3, 4],
        "without an end token": [5],
    }


def test_the_page_shows_texts_as_they_are_and_needs_nothing_else(report):
    page = report.html()
    assert "<script" not in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "<title>&lt;model&gt;</title>" in page
    assert html.escape("a <b>&") in page
    assert page.count("<polyline") == 1  # one value is no curve
    assert curves([{"step": 1, "train_runtime": 3}]) == {}

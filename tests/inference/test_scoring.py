"""Log-probabilities of given translations: equal to the model's loss and to the scores of `generate()`."""

import json

import pytest
import torch

from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.inference import PairScore, align_file, alignments, score_file, score_pairs
from modeling_random_transformer.inference.scoring import Scorer, score_line
from modeling_random_transformer.ops_random_transformer import label_log_probabilities
from tests.helpers.foreign import foreign_model
from tests.helpers.interruption import interrupt_at
from tests.helpers.translation import multilingual_translator, random_tokenizer, some_texts

PAIRS = list(zip(some_texts(30, seed=1), some_texts(30, seed=2), strict=True))


def losses(model, tokenizer, pairs):
    """Reference: minus the model's own loss of each pair, summed over its tokens."""
    for source, target in pairs:
        inputs = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            yield -model(**inputs).loss.item() * inputs["labels"].shape[1]


@pytest.mark.parametrize("kind", ["own", "Marian"])
def test_equals_the_loss_of_each_pair(kind, model, tokenizer):
    if kind == "Marian":
        model = foreign_model(kind, vocab_size=len(tokenizer))
    scores = list(score_pairs(model, tokenizer, PAIRS, chunk_size=20, max_batch_tokens=100))
    assert [score.log_probability for score in scores] == pytest.approx(list(losses(model, tokenizer, PAIRS)), rel=1e-9)
    assert [score.tokens for score in scores] == [len(ids) for ids in tokenizer([t for _, t in PAIRS])["input_ids"]]
    assert scores[0].token_log_probabilities is None
    [score] = score_pairs(model, tokenizer, [("the boy", "")])  # the end token
    assert score.tokens == 1
    assert score.log_probability < 0


def test_a_forced_language_tag_is_not_scored(model, tokenizer, monkeypatch):
    [whole] = score_pairs(model, tokenizer, PAIRS[:1], token_scores=True)
    first = tokenizer(PAIRS[0][1])["input_ids"][0]
    monkeypatch.setattr(model.generation_config, "forced_bos_token_id", first)
    [score] = score_pairs(model, tokenizer, PAIRS[:1], token_scores=True)
    assert score.tokens == whole.tokens - 1
    assert score.token_log_probabilities == pytest.approx(whole.token_log_probabilities[1:])


def test_languages_of_a_model_of_several_languages(tmp_path):
    model, tokenizer = multilingual_translator()
    model.double()
    by_language = {}
    for target in ("es", "fr"):
        codes = {"src_lang": "en", "tgt_lang": target}
        scores = list(score_pairs(model, tokenizer, PAIRS, **codes))
        assert (tokenizer.src_lang, tokenizer.tgt_lang) == (None, None)
        for (source, text), score in zip(PAIRS[:3], scores, strict=False):
            tokenizer.src_lang, tokenizer.tgt_lang = codes.values()
            inputs = tokenizer(source, text_target=text, return_tensors="pt")
            tokenizer.src_lang = tokenizer.tgt_lang = None
            start = torch.full((1, 1), model.config.decoder_start_token_id)
            logits = model(
                **inputs | {"labels": None}, decoder_input_ids=torch.cat([start, inputs["labels"]], 1)
            ).logits
            terms = label_log_probabilities(logits[:, 1:-1], inputs["labels"][:, 1:])  # without the tag
            assert score.log_probability == pytest.approx(terms.sum().item())
            assert score.tokens == terms.shape[1]
        by_language[target] = scores
        score_file(write_pairs(tmp_path), tmp_path / "scores.txt", model, tokenizer, **codes)
        assert (tmp_path / "scores.txt").read_text().splitlines() == [score_line(score, "text") for score in scores]
        assert len(list(alignments(model, tokenizer, PAIRS, **codes))) == len(PAIRS)
    assert by_language["es"] != by_language["fr"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_label_log_probabilities_equal_log_softmax(dtype, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.ops_random_transformer.LOSS_CHUNK_CPU", 50)
    logits = torch.randn(3, 7, 17, dtype=dtype)
    labels = torch.randint(17, (3, 7))
    labels[1, 3:] = -100
    expected = logits.to(torch.promote_types(dtype, torch.float32)).log_softmax(-1)
    expected = expected.gather(-1, labels.clamp(min=0)[..., None])[..., 0].masked_fill(labels == -100, 0)
    torch.testing.assert_close(label_log_probabilities(logits, labels), expected)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([("a", "b")], {"max_batch_tokens": 0}, "max_batch_tokens must be a positive integer, got 0"),
        ([("a", "b")], {"chunk_size": 0}, "chunk_size must be a positive integer, got 0"),
        ([("a", "b"), (" ", "b")], {}, "index 1: texts must not be blank"),
        ([("a", "b"), "cd"], {}, "index 1: pairs must be two strings, got 'cd'"),
    ],
)
def test_invalid_input(model, tokenizer, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        list(score_pairs(model, tokenizer, pairs, **options))


def test_long_texts(model):
    limited = random_tokenizer()
    limited.model_max_length = 10
    long = "the boy reads a book in the garden " * 3
    for pair, name in (((long, "a"), "texts"), (("a", long), "targets")):
        with pytest.raises(ValueError, match=rf"index 0: {name} must have at most 10 tokens .* set truncation\."):
            list(score_pairs(model, limited, [pair]))
    [score] = score_pairs(model, limited, [(long, long)], truncation=True)
    assert score.tokens == 10


def write_pairs(folder, pairs=PAIRS):
    for name, column in zip(("source.txt", "target.txt"), zip(*pairs, strict=True), strict=True):
        (folder / name).write_text("".join(f"{text}\n" for text in column))
    return ParallelText(folder / "source.txt", folder / "target.txt")


class TestFiles:
    def test_interrupted_scoring_resumes(self, model, tokenizer, tmp_path, monkeypatch):
        corpus = write_pairs(tmp_path)
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

    def test_invalid_inputs_are_an_error_before_the_first_score(self, model, tokenizer, tmp_path):
        (tmp_path / "pairs.tsv").write_text("a\tb\na\n")
        with pytest.raises(ValueError, match="but line 2 is without exactly one source and one target"):
            score_file(ParallelText(tmp_path / "pairs.tsv"), tmp_path / "scores.txt", model, tokenizer)
        assert not (tmp_path / "scores.txt.parts").exists()
        corpus = write_pairs(tmp_path)
        with pytest.raises(ValueError, match=r"output_file must differ from target, got .*target\.txt' for both"):
            score_file(corpus, corpus.target, model, tokenizer)

    @pytest.mark.parametrize("chunk_size", [2, 9])
    def test_pairs_with_a_blank_side_have_an_empty_line(self, model, tokenizer, tmp_path, chunk_size):
        corpus = write_pairs(tmp_path, [("", ""), *PAIRS[:2], ("a", " "), PAIRS[2], ("", "b")])
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

    def test_a_text_that_is_too_long_can_be_truncated_without_scoring_the_others_again(self, model, tmp_path):
        tokenizer = random_tokenizer()
        tokenizer.model_max_length = 50
        corpus = write_pairs(tmp_path, [*PAIRS[:8], ("a b " * 50, "c")])
        with pytest.raises(ValueError, match=r"line 9: texts must have at most 50 tokens .* got \d+\."):
            score_file(corpus, tmp_path / "scores.txt", model, tokenizer, chunk_size=4)
        assert len(list((tmp_path / "scores.txt.parts").glob("*.txt"))) == 2
        score_file(corpus, tmp_path / "scores.txt", model, tokenizer, chunk_size=4, truncation=True)
        assert len((tmp_path / "scores.txt").read_text().splitlines()) == 9

    def test_formats(self):
        score = PairScore(-1.5, 2, [-1.0, -0.5])
        assert score_line(score, "text") == "-1.500000\t2\t-1.000000 -0.500000"
        assert json.loads(score_line(PairScore(-1.5, 2), "jsonl")) == {"log_probability": -1.5, "tokens": 2}

"""BLEU and chrF++: the scores of sacrebleu, and metrics of a trainer."""

import json
import pickle
import sys
import warnings

import numpy as np
import pytest
import sacrebleu
from pandas import DataFrame
from transformers import DataCollatorForSeq2Seq, EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.inference.evaluation import METRICS, score, translation_metrics
from tests.helpers.models import BOS, PAD, tiny_model
from tests.helpers.texts import BOTH_REFERENCES, PREDICTIONS, REFERENCES, SECOND_REFERENCES

# Options of BLEU and of chrF++, and references.
CHOICES = {
    "defaults": ({}, {}, [REFERENCES]),
    "several references": ({}, {}, [REFERENCES, SECOND_REFERENCES]),
    "international": (
        {"tokenize": "intl", "smooth_method": "floor", "smooth_value": 0.2},
        {"char_order": 4, "beta": 3},
        [REFERENCES],
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_scores_and_signatures_equal_sacrebleu(choice):
    """Those of its command line with the option `--chrf-word-order 2`."""
    of_bleu, of_chrf, streams = CHOICES[choice]
    actual = score(PREDICTIONS, REFERENCES if len(streams) == 1 else BOTH_REFERENCES, **of_bleu, **of_chrf)
    for name, metric in (("bleu", sacrebleu.BLEU(**of_bleu)), ("chrf", sacrebleu.CHRF(word_order=2, **of_chrf))):
        expected = metric.corpus_score(PREDICTIONS, streams)
        assert (actual[name]["score"], actual[name]["name"]) == (expected.score, expected.name)
        assert actual[name]["signature"] == str(metric.get_signature())
        assert f"nrefs:{len(streams)}" in actual[name]["signature"]
        for detail in ("counts", "totals", "precisions", "bp", "sys_len", "ref_len") if name == "bleu" else ():
            assert actual[name][detail] == getattr(expected, detail)


# Target languages without spaces between words

CHINESE = ["男孩看见一个女孩。", "她吃了一个红色的苹果。"]
OTHER_CHINESE = ["男孩看到一个女孩。", "她吃了一个红苹果。"]


@pytest.mark.parametrize(
    ("language", "tokenizers"),
    [
        ("zh", ["zh"]),
        ("zh-TW", ["zh"]),
        ("zho_Hans", ["zh"]),
        ("yue", ["zh"]),
        ("th", ["char"]),
        ("km_KH", ["char"]),
        ("ja", ["ja-mecab", "char"]),
        ("jpn_Jpan", ["ja-mecab", "char"]),
        ("ko", ["ko-mecab", "char"]),
        ("de", ["13a"]),
        ("kok", ["13a"]),
    ],
)
def test_bleu_uses_the_tokenizer_of_the_language(language, tokenizers):
    scores = score(OTHER_CHINESE, CHINESE, language=language, metrics="bleu")
    assert any(f"tok:{tokenizer}" in scores["bleu"]["signature"] for tokenizer in tokenizers)
    assert score(OTHER_CHINESE, CHINESE, language=language, tokenize="intl")["bleu"]["signature"].count("tok:intl")


@pytest.mark.parametrize(
    ("texts", "options", "warns"),
    [
        (CHINESE, {}, True),
        (["ฉันเห็นเด็กผู้หญิง"], {}, True),
        (["私は少女を見る。"], {}, True),
        (CHINESE, {"language": "zh"}, False),
        (CHINESE, {"tokenize": "char"}, False),
        (["나는 소녀를 본다."], {}, False),
        (["The word 苹果 is Chinese."], {}, False),
    ],
)
def test_a_warning_names_texts_without_spaces(texts, options, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score(texts, texts, **options)
    assert ["without spaces between words" in str(warning.message) for warning in caught] == [True] * warns


def test_a_warning_names_decomposed_characters_of_one_side():
    composed, decomposed = "\u00e9t\u00e9", "e\u0301te\u0301"
    for predictions, references in ((composed, decomposed), (decomposed, composed)):
        message = "Either the predictions or the references have decomposed characters"
        with pytest.warns(UserWarning, match=message) as caught:
            score([predictions, "a"], [references, "a"])
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score([composed, "\u0301"], [composed, "\u0301"])
        score([decomposed], [decomposed])


@pytest.mark.parametrize("tagged", [True, False])
def test_metrics_in_training_use_the_language_of_the_labels(tagged):
    languages = {"languages": ["zh", "en"]} if tagged else {}
    tokenizer = RandomTransformerTokenizer.train(CHINESE, vocab_size=300, **languages)
    if tagged:
        tokenizer.src_lang, tokenizer.tgt_lang = "zh", "zh"
    options = {} if tagged else {"tokenize": "zh"}
    labels = tokenizer(text_target=CHINESE)["input_ids"]
    generated = tokenizer(text_target=OTHER_CHINESE)["input_ids"]
    if tagged:
        tokenizer.tgt_lang = "en"
    result = translation_metrics(tokenizer, **options)(EvalPrediction(generated, labels))
    assert result["bleu"] == sacrebleu.BLEU(tokenize="zh").corpus_score(OTHER_CHINESE, [CHINESE]).score > 20


# Invalid arguments

INVALID_TEXTS = [
    (["a", "b", "c"], ["a", "b"], "got 3 predictions and 2 with references"),
    ([], [], "at least one prediction.*, got 0"),
    (["a", "b"], ["a", []], "at least one reference for each, got 2 predictions and 1"),
    (["a", "b", "c"], "abc", "references must be an iterable of strings, got one str"),
    ({"a": "b"}, ["a"], "predictions must be an iterable of strings, got one dict"),
    (["a"], DataFrame({"a": ["a"]}), "references must be an iterable of strings, got one DataFrame"),
    (["a", "b"], [["a"], ["b", 7]], "must be strings, got 7"),
]


@pytest.mark.parametrize(("predictions", "references", "message"), INVALID_TEXTS)
def test_invalid_texts_raise_value_error(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        score(predictions, references)


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        (("bleu", "ter"), {}, "metrics must be one of bleu, chrf, got 'ter'"),
        ((), {}, "metrics must contain one of 'bleu', 'chrf', got none"),
        (METRICS, {"tokenize": "klingon"}, r"tokenize must be one of .*13a.*, got 'klingon'"),
        (METRICS, {"smooth_method": "laplace"}, r"smooth_method must be one of .*exp.*, got 'laplace'"),
        (METRICS, {"max_ngram_order": 2}, r"options must be one of .*, got 'max_ngram_order'"),
        ("bleu", {"word_order": 2}, r"options must be one of .*tokenize.*, got 'word_order'"),
    ],
)
def test_unknown_metrics_and_invalid_options_raise_value_error(metrics, options, message):
    with pytest.raises(ValueError, match=message):
        score(["a"], ["a"], metrics, **options)
    with pytest.raises(ValueError, match=message):  # before training
        translation_metrics(None, metrics, **options)


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (lambda: score(["a"], ["a"]), "sacrebleu"),
        (lambda: translation_metrics(None), "sacrebleu"),
    ],
)
def test_missing_dependency_is_an_error_that_names_the_extra(function, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=rf"pip install 'random-transformer\[train\]': .*{missing}"):
        function()


# Token ids of a trainer

IGNORED = -100  # the Trainer's padding


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.train(PREDICTIONS + REFERENCES, vocab_size=300)


def padded(rows: list[list[int]]) -> np.ndarray:
    longest = max(len(row) for row in rows)
    return np.array([row + [IGNORED] * (longest - len(row)) for row in rows])


@pytest.fixture(scope="module")
def generated(tokenizer):
    """Predictions of the Trainer: a start token, and padding by `generate` and by the Trainer."""
    return padded([[BOS, *tokenizer(text).input_ids, PAD, PAD] for text in PREDICTIONS])


@pytest.fixture(scope="module")
def labels(tokenizer):
    return padded(tokenizer(REFERENCES).input_ids)


def test_scores_of_token_ids_equal_scores_of_texts(tokenizer, generated, labels):
    result = translation_metrics(tokenizer)(EvalPrediction(predictions=generated, label_ids=labels))
    expected = score(PREDICTIONS, REFERENCES)
    assert list(result) == ["bleu", "chrf", "generated_length"]
    assert result["bleu"] == expected["bleu"]["score"]
    assert result["chrf"] == expected["chrf"]["score"]
    lengths = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in PREDICTIONS]
    assert result["generated_length"] == sum(lengths) / len(lengths)
    assert {type(value) for value in result.values()} == {float}
    assert json.loads(json.dumps(result)) == result


def test_tokenization_spaces_are_kept():
    """A space before a comma is an error of the model; a tokenizer that removes it would hide it."""
    texts = ["where is it , I wonder .", "it is where it is ."]
    references = ["where is it I wonder .", "it is where I wonder ."]
    words = sorted({word for text in texts for word in text.split()})
    tokenizer = RandomTransformerTokenizer.from_words(
        ["SOS", "EOS", *words], bos_token="SOS", eos_token="EOS", clean_up_tokenization_spaces=True
    )
    assert tokenizer.decode(tokenizer(texts[0]).input_ids, skip_special_tokens=True) == "where is it, I wonder."
    prediction = EvalPrediction(padded(tokenizer(texts).input_ids), padded(tokenizer(references).input_ids))
    result = translation_metrics(tokenizer, tokenize="none", whitespace=True)(prediction)
    expected = score(texts, references, tokenize="none", whitespace=True)
    assert (result["bleu"], result["chrf"]) == (expected["bleu"]["score"], expected["chrf"]["score"])


def test_formats_of_predictions(tokenizer, generated, labels):
    compute_metrics = translation_metrics(tokenizer)
    expected = compute_metrics(EvalPrediction(generated, labels))
    assert compute_metrics(EvalPrediction((generated, np.zeros(3)), (labels, np.zeros(3)))) == expected
    assert compute_metrics(EvalPrediction(np.where(generated < 0, PAD, generated), labels)) == expected
    assert compute_metrics(EvalPrediction(generated.astype(np.int32), labels.tolist())) == expected
    assert pickle.loads(pickle.dumps(compute_metrics))(EvalPrediction(generated, labels)) == expected


def test_empty_predictions_and_unknown_ids(tokenizer, labels):
    """Predictions may be empty, and the model's vocabulary may be larger than the tokenizer's."""
    empty = np.full((len(labels), 4), IGNORED)
    result = translation_metrics(tokenizer)(EvalPrediction(empty, labels))
    assert result == {"bleu": 0.0, "chrf": 0.0, "generated_length": 0.0}
    empty[:] = len(tokenizer) + 5
    result = translation_metrics(tokenizer)(EvalPrediction(empty, labels))
    assert (result["bleu"], result["generated_length"]) == (0.0, 4.0)


def test_end_token_that_is_also_the_padding_token():
    words = RandomTransformerTokenizer.from_words(["EOS", "SOS", *"abcde"], bos_token="SOS", eos_token="EOS")
    assert words.pad_token_id == words.eos_token_id == 0
    ids = np.array([[1, 2, 3, 4, 5, 0, 0], [1, 6, 5, 4, 3, 2, 0]])
    result = translation_metrics(words)(EvalPrediction(ids, ids))
    assert result == pytest.approx({"bleu": 100, "chrf": 100, "generated_length": 4.5})


def test_predictions_that_are_not_token_ids_raise_value_error(tokenizer, generated, labels):
    compute_metrics = translation_metrics(tokenizer)
    logits = np.zeros((*labels.shape, 300), dtype=np.float32)
    message = "predictions must be token ids .*predict_with_generate=True.*, got rows of 2 dimensions of float32"
    with pytest.raises(ValueError, match=message):
        compute_metrics(EvalPrediction((logits, None), labels))
    with pytest.raises(ValueError, match=r"label_ids must be token ids .*, got None"):
        compute_metrics(EvalPrediction(generated, None))
    with pytest.raises(ValueError, match="got 2 predictions and 9 with references"):
        compute_metrics(EvalPrediction(generated[:2], labels))


def test_seq2seq_trainer_reports_metrics(tokenizer, tmp_path):
    rows = [dict(tokenizer(ours, text_target=theirs)) for ours, theirs in zip(PREDICTIONS, REFERENCES, strict=True)]
    options = {"predict_with_generate": True, "generation_max_length": 12, "per_device_eval_batch_size": 4}
    trainer = Seq2SeqTrainer(
        model=tiny_model(vocab_size=len(tokenizer)),
        args=Seq2SeqTrainingArguments(tmp_path, use_cpu=True, report_to="none", **options),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        compute_metrics=translation_metrics(tokenizer),
    )
    output = trainer.predict(rows, num_beams=2)
    texts = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    texts = tokenizer.batch_decode(texts, skip_special_tokens=True)
    assert output.metrics["test_chrf"] == score(texts, REFERENCES)["chrf"]["score"]
    assert 0 <= output.metrics["test_generated_length"] <= 11


def test_a_tokenizer_without_its_package(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("\nJapanese tokenization requires extra dependencies.\nInstall them.")

    monkeypatch.setattr(sacrebleu.BLEU, "__init__", fail)
    message = r"^tokenize must be installed in sacrebleu, got 'ja-mecab': Japanese tokenization requires extra depend"
    with pytest.raises(ValueError, match=message):
        score(["a"], ["a"], tokenize="ja-mecab")

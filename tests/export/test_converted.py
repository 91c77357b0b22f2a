"""Converted models are exported with their own tokenizers."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.conversion import convert_fairseq, convert_marian
from modeling_random_transformer.export import export_model, load_engine
from modeling_random_transformer.modeling_random_transformer import (
    RandomTransformerAttention,
    RandomTransformerDecoderLayer,
)
from tests.helpers.engines import BEAMS, LIMIT, TEXTS, exportable, needs, own_translations
from tests.helpers.fairseq import folder_with_two_dictionaries
from tests.helpers.marian import ENGLISH, opus_folder
from tests.helpers.models import EOS

ENGINES = [pytest.param("ctranslate2", marks=needs("ctranslate2")), pytest.param("onnx", marks=needs("onnx"))]


@pytest.fixture(scope="module", params=["marian", "marian with two vocabularies", "fairseq"])
def converted(request, tmp_path_factory):
    """A converted model, its tokenizer and texts."""
    folder = tmp_path_factory.mktemp("converted")
    texts = ENGLISH
    if request.param == "fairseq":
        convert_fairseq(output=folder / "model", **folder_with_two_dictionaries(folder))
        texts = ["s0 s1 s2", "s3", "s9 unknown s7"]
    else:
        opus_folder(folder / "opus", separate_vocabs=request.param != "marian")
        convert_marian(folder / "opus", folder / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    return model, AutoTokenizer.from_pretrained(folder / "model"), texts


def check_translations(model, tokenizer, texts, engine, folder) -> None:
    export_model(model, tokenizer, folder, engine=engine)
    translate = load_engine(folder, engine)
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams, texts)
        assert len(set(expected)) > 1, "translations must differ to be compared"
        assert translate(texts, num_beams, LIMIT) == expected


@pytest.mark.parametrize("engine", ENGINES[:1])
def test_translations_equal_model(converted, engine, tmp_path):
    check_translations(*converted, engine, tmp_path / "out")


@pytest.mark.long  # exporting to ONNX takes about ten seconds
@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("converted", ["marian with two vocabularies"], indirect=True)
def test_translations_with_two_vocabularies_equal_model(converted, engine, tmp_path):
    check_translations(*converted, engine, tmp_path / "out")


@pytest.mark.parametrize("lm_head_bias", [True, False])
@pytest.mark.parametrize("engine", ENGINES[:1])
def test_suppressed_tokens_are_exported(lm_head_bias, engine, tmp_path):
    """OPUS-MT suppresses `<pad>` by `bad_words_ids`, fairseq by `suppress_tokens`."""
    model, tokenizer = exportable(lm_head_bias=lm_head_bias)
    batch = tokenizer("the boy reads", return_tensors="pt")
    first, second = model.generate(**batch, num_beams=2, max_new_tokens=1, num_return_sequences=2)[:, 1].tolist()
    likely = own_translations(model, tokenizer, 1)
    model.generation_config.bad_words_ids, model.generation_config.suppress_tokens = [[first]], [second]
    expected = own_translations(model, tokenizer, 1)
    assert expected != likely
    before = model.lm_head.weight.clone()
    export_model(model, tokenizer, tmp_path / "out", engine=engine)
    assert load_engine(tmp_path / "out", engine)(TEXTS, 1, LIMIT) == expected
    assert torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize("engine", ENGINES[:1])
def test_tokens_not_suppressed_by_generate(engine, tmp_path):
    """transformers ignores the end token in `bad_words_ids`; ids outside the vocabulary have no effect."""
    model, tokenizer = exportable()
    model.generation_config.bad_words_ids, model.generation_config.suppress_tokens = [[EOS]], [len(tokenizer) + 5]
    export_model(model, tokenizer, tmp_path / "out", engine=engine)
    expected = own_translations(model, tokenizer, 4)
    assert load_engine(tmp_path / "out", engine)(TEXTS, 4, LIMIT) == expected


def negated(method):
    return lambda *args, **kwargs: -method(*args, **kwargs)


@pytest.mark.parametrize(
    ("engine", "edited", "name"),
    [
        pytest.param("ctranslate2", RandomTransformerAttention, "split_heads", marks=needs("ctranslate2")),
        pytest.param("ctranslate2", RandomTransformerDecoderLayer, "feed_forward", marks=needs("ctranslate2")),
        pytest.param("onnx", RandomTransformerAttention, "split_heads", marks=[*needs("onnx"), pytest.mark.long]),
        pytest.param("onnx", RandomTransformerDecoderLayer, "feed_forward", marks=[*needs("onnx"), pytest.mark.long]),
    ],
)
def test_edited_code_is_not_exported_as_the_original(engine, edited, name, tmp_path, monkeypatch):
    """The graphs of ONNX call `split_heads`, and follow an edit of it."""
    model, tokenizer = exportable(encoder_layers=1, decoder_layers=1)
    method = negated(getattr(edited, name))
    monkeypatch.setattr(edited, name, staticmethod(method) if name == "split_heads" else method)
    if engine == "onnx" and name != "feed_forward":
        export_model(model, tokenizer, tmp_path / "out", engine=engine)
        translate = load_engine(tmp_path / "out", engine)
        assert translate(["the boy reads"], 1, LIMIT) == own_translations(model, tokenizer, 1, ["the boy reads"])
    else:
        with pytest.raises(ValueError, match=r"must compute what .* but for the same inputs, its logits differ by"):
            export_model(model, tokenizer, tmp_path / "out", engine=engine)
        assert not (tmp_path / "out").exists()

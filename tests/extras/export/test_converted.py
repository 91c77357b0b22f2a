"""Converted models are exported with their own tokenizers."""

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_fairseq, convert_marian
from tests.helpers.engines import check_translations, needs
from tests.helpers.fairseq import folder_with_two_dictionaries
from tests.helpers.marian import ENGLISH, opus_folder

TWO_VOCABULARIES = "marian with two vocabularies"


@pytest.mark.parametrize(
    ("engine", "original"),
    [
        *(pytest.param("ctranslate2", name, marks=needs("ctranslate2")) for name in ("marian", "fairseq")),
        pytest.param("ctranslate2", TWO_VOCABULARIES, marks=needs("ctranslate2")),
        pytest.param("onnx", TWO_VOCABULARIES, marks=[*needs("onnx"), pytest.mark.long]),  # takes about ten seconds
    ],
)
def test_translations_equal_model(engine, original, tmp_path):
    texts = ENGLISH
    if original == "fairseq":
        convert_fairseq(output=tmp_path / "model", **folder_with_two_dictionaries(tmp_path))
        texts = ["s0 s1 s2", "s3", "s9 unknown s7"]
    else:
        opus_folder(tmp_path / "opus", separate_vocabs=original == TWO_VOCABULARIES)
        convert_marian(tmp_path / "opus", tmp_path / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    check_translations(model, tokenizer, tmp_path / "out", engine, texts)

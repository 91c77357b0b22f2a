"""Tokenizers as SentencePiece models: the same tokens."""

import copy

import pytest
from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.export.argos_tokenizer import PART_OF_CHARACTER, sentencepiece_model
from modeling_random_transformer.extras.sentencepiece import from_sentencepiece
from modeling_random_transformer.extras.sentencepiece.conversion import SPACE_SYMBOL
from modeling_random_transformer.tokenization_random_transformer import (
    HYPHENS_AND_LIGATURES,
    REPLACEMENTS,
    normalize,
    text_normalizer,
)
from tests.helpers.engines import needs
from tests.helpers.marian import opus_folder
from tests.helpers.translation import SENTENCES

pytestmark = needs("ctranslate2")


def pieces(tokenizer, text):
    """The tokens of a text, by the SentencePiece model and by the tokenizer."""
    content, names = sentencepiece_model(tokenizer)
    expected = [names[i] for i in tokenizer.encode_texts(text)["input_ids"][:-1]]
    return SentencePieceProcessor(model_proto=content).encode(text, out_type=str), expected


@pytest.mark.parametrize("text", [*SENTENCES[:3], "  two  spaces ", "Ñ?\n12 €", "don't … <s> </s> <unk>", "語"])
def test_byte_level_tokens(text, tokenizer):
    """A token of which a merge crosses the bytes of a character, such as "niñ" here, has no path in SentencePiece."""
    actual, expected = pieces(tokenizer, text)
    assert actual == expected


INVISIBLE = [
    "\ufeffgi\u00adrl\u200b",
    "a\u00a0b\u202fc\u2028d\x07",
    "nin\u0303a a\u0323\u0302",
    "g\u200di\ufe0f",
    "می\u200cروم",
    "e\u2011mail of\ufb01ce",
]


@pytest.mark.parametrize("text", INVISIBLE)
def test_normalization(text, tokenizer):
    content, _ = sentencepiece_model(tokenizer)
    assert SentencePieceProcessor(model_proto=content).normalize(text).replace(SPACE_SYMBOL, " ") == normalize(text)


def test_normalization_of_earlier_versions(tokenizer):
    earlier = copy.deepcopy(tokenizer)
    kinds = [kind for kind in REPLACEMENTS if kind != HYPHENS_AND_LIGATURES]
    earlier.backend_tokenizer.normalizer = text_normalizer(kinds=kinds)
    assert earlier("e\u2011mail").input_ids != earlier("e-mail").input_ids
    content, _ = sentencepiece_model(earlier)
    assert SentencePieceProcessor(model_proto=content).normalize("e\u2011mail") == "e-mail"


def test_part_of_a_character_is_split_into_bytes():
    tokenizer = RandomTransformerTokenizer.train(["日月", "日木"] * 9, vocab_size=262)
    actual, expected = pieces(tokenizer, "日")
    assert "".join(actual) == "".join(expected) == "<0xE6><0x97><0xA5>"
    assert any(len(PART_OF_CHARACTER.fullmatch(name)[0]) > 6 for name in expected)


@pytest.mark.parametrize("symbols", ["", "<br>,@@"], ids=["no symbols", "user-defined symbols"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_imported_sentencepiece_tokens(kind, symbols, tmp_path):
    import sentencepiece

    (tmp_path / "text").write_text("\n".join(SENTENCES * 5), encoding="utf-8")
    options = {"model_type": kind, "vocab_size": 60, "byte_fallback": False, "hard_vocab_limit": False}
    options["user_defined_symbols"] = symbols
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), minloglevel=2, **options
    )
    tokenizer = from_sentencepiece(tmp_path / "m.model")
    for text in [*SENTENCES, " en  niño\tla ", "la" + symbols.replace(",", "")]:
        actual, expected = pieces(tokenizer, text)
        assert actual == expected == SentencePieceProcessor(str(tmp_path / "m.model")).encode(text, out_type=str)


def test_marian_tokens(tmp_path):
    opus_folder(tmp_path / "opus")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "opus")
    content, names = sentencepiece_model(tokenizer)
    assert content == (tmp_path / "opus" / "source.spm").read_bytes()
    assert names == {index: token for token, index in tokenizer.get_vocab().items()}

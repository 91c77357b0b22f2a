"""SentencePiece models as tokenizers: the tokens of sentencepiece, the ids of this package, and unsupported options."""

import random
import sys
import unicodedata

import pytest
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.sentencepiece import from_sentencepiece
from tests.helpers.marian import train_sentencepiece
from tests.helpers.training import run, write_corpus
from tests.helpers.translation import SENTENCES

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]
CORPUS = [
    *SENTENCES,
    "Ein Mann fährt mit dem Fahrrad über eine große Straße.",
    "Une femme âgée achète des légumes frais au marché couvert.",
    "Dvě děti běží po pláži a hrají si s červeným míčem.",
    "Two young, White males are outside near many bushes (1985).",
]
TEXTS = [
    *CORPUS,
    *(unicodedata.normalize("NFD", text) for text in CORPUS),
    *("", " ", "   ", " a ", "a  b", "\ta\t\tb", "one\ntwo ", "one\r\ntwo", "a\u3000b\xa0c\u200bd"),
    *("▁", "▁the", "the▁dog", " ▁ x ▁ "),
    *(
        "日本語のﾃｷｽﾄ",
        "ｶﾞ ﾊﾟﾝ テﾞ ﾃﾞｰﾀ ｺﾝﾋﾟｭｰﾀ ﾡￂ",
        "한국어 텍스트",
        unicodedata.normalize("NFD", "한국어"),
        "ﬁne ½ № ™ … ﷺ",
        "Việt Nam ngữ",
        "M\u0300 G\u0303ua A\u20dd",  # letters without a composed character
    ),
    *("👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽", "e\u20e3 #️⃣", "\u0600\u06dd", "\ufeffbom \u00ad soft", "\U0001d400\U0001d538"),
    *("<s", "< / s >", "the <bt> dog", "<bt>the", "the<bt>", "<bt>", "@@ the@@@dog", "�", "a<b>c", "x\x01\x7fy"),
]


def train(path, model_type="unigram", normalization="nmt_nfkc", **options):
    """Train a tiny model and return its processor."""
    options |= {"model_type": model_type, "normalization_rule_name": normalization}
    return train_sentencepiece(path, CORPUS, vocab_size=90 + 256 * options.get("byte_fallback", False), **options)


def check_tokens(processor, tokenizer, texts):
    """The tokens are the pieces of sentencepiece; an unknown one is `<unk>`, not a part of the text."""
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, pieces, ids in zip(texts, processor.encode(texts), rows, strict=True):
        expected = [processor.id_to_piece(i).replace("<unknown>", "<unk>") for i in pieces]
        assert tokenizer.convert_ids_to_tokens(ids) == expected, ascii(text)


def random_texts():
    random_characters = random.Random(0)
    alphabet = "aeiou nrstdlä ▁.é<>日👍\u0301½ﬁ"
    texts = ["".join(random_characters.choices(alphabet, k=k % 30)) for k in range(300)]
    # A mark after a ligature or a fraction is not supported.
    return [text for text in texts if not any(c in text for c in ("½\u0301", "ﬁ\u0301"))]


@pytest.mark.parametrize(
    ("normalization", "byte_fallback"), [("nmt_nfkc", False), ("nfkc_cf", True), ("identity", False)]
)
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_tokens_equal_those_of_sentencepiece(tmp_path, model_type, normalization, byte_fallback):
    processor = train(tmp_path / "a.model", model_type, normalization, byte_fallback=byte_fallback)
    tokenizer = from_sentencepiece(tmp_path / "a.model")
    check_tokens(processor, tokenizer, [*TEXTS, *random_texts()])
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(saved) is RandomTransformerTokenizer
    texts = [text for text in CORPUS if normalization != "identity" or text in SENTENCES[:3]]
    decoded = saved.batch_decode(saved(texts)["input_ids"], skip_special_tokens=True)
    assert decoded == processor.decode(processor.encode(texts))


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {"user_defined_symbols": "<bt>,@@", "control_symbols": "<2de>"},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
        {"bos_id": -1, "unk_piece": "<unknown>", "eos_piece": "<end>"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_model(tmp_path, model_type, options):
    processor = train(tmp_path / "a.spm", model_type, **options)
    tokenizer = from_sentencepiece(tmp_path / "a.spm")
    check_tokens(processor, tokenizer, TEXTS)
    space = processor.piece_to_id("▁")
    for pieces in ([], [space], [space, space]):  # a model can generate any
        pieces += processor.encode("the dog")
        ids = tokenizer.convert_tokens_to_ids(processor.id_to_piece(pieces))
        assert tokenizer.decode(ids) == processor.decode(pieces)


def test_special_tokens_have_the_ids_of_this_package(tmp_path):
    processor = train(tmp_path / "a.model", control_symbols="<2de>")
    tokenizer = from_sentencepiece(tmp_path / "a.model", model_max_length=99)
    assert isinstance(tokenizer, RandomTransformerTokenizer)
    assert tokenizer.convert_ids_to_tokens(range(4)) == SPECIAL_TOKENS
    # sentencepiece's first pieces are <unk>, <s> and </s>; all others are shifted by <pad>.
    assert tokenizer.convert_ids_to_tokens(range(4, len(tokenizer))) == [
        processor.id_to_piece(i) for i in range(3, len(processor))
    ]
    assert tokenizer("the dog")["input_ids"] == [i + 1 for i in processor.encode("the dog")] + [2]
    assert tokenizer("<2de> </s>")["input_ids"][0] == tokenizer.convert_tokens_to_ids("<2de>")
    assert tokenizer.model_max_length == 99


@pytest.mark.parametrize(
    ("model_type", "options"),
    [("unigram", {"byte_fallback": True}), ("bpe", {}), ("bpe", {"user_defined_symbols": "<bt>"})],
    ids=str,
)
def test_names_of_special_tokens_can_be_text(tmp_path, model_type, options):
    train(tmp_path / "a.model", model_type, **options)
    tokenizer = from_sentencepiece(tmp_path / "a.model")
    for text in ("</s>", "the <pad> dog", "<bt><unk>", "<0x41>", "<bt><0x41>"):
        tokens = tokenizer.tokenize(text, split_special_tokens=True)
        assert not {*SPECIAL_TOKENS[:3], "<0x41>"} & {*tokens}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer_spec.model_type": 4}, r"model_type of .*a\.model must be unigram or bpe, got char\."),
        ({"normalizer_spec.name": "user_defined"}, "normalization_rule_name of .* must be one of .*, got user"),
        ({"normalizer_spec.escape_whitespaces": False}, "escape_whitespaces of .* must be True, got False"),
        ({"trainer_spec.treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix of .* must be False"),
        ({"normalizer_spec.precompiled_charsmap": b"x"}, r"a\.model must be a SentencePiece model, got an error: "),
        ({"denormalizer_spec.precompiled_charsmap": b"x"}, "denormalizer_spec of .* must be empty, got rules"),
        ({"user_defined_symbols": "ﬁ"}, "user_defined_symbols of .* must be unchanged by the normalization, got ﬁ"),
    ],
    ids=str,
)
def test_unsupported_option_is_named(tmp_path, fields, message):
    """Options of the training, and fields of the file, such as `normalizer_spec.name`."""
    path = tmp_path / "a.model"
    train(path, **{name: value for name, value in fields.items() if "." not in name})
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    for name, value in fields.items():
        if "." in name:
            part, field = name.split(".")
            setattr(getattr(model, part), field, value)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=message):
        from_sentencepiece(path)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_other_file_is_named(tmp_path, content):
    (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.model must be a SentencePiece model, got "):
        from_sentencepiece(tmp_path / "a.model")


def test_sentencepiece_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ValueError, match=r"requires sentencepiece and protobuf: pip install 'random-transformer\["):
        from_sentencepiece(tmp_path / "a.model")


def test_training_with_a_sentencepiece_model(tmp_path):
    write_corpus(tmp_path)
    words = (tmp_path / "train.a").read_text().splitlines()
    train_sentencepiece(tmp_path / "spm.model", words, vocab_size=20)
    options = {"tokenizer": str(tmp_path / "spm.model"), "vocab_size": None, "max_steps": 2}
    result = run(tmp_path, "out", **options, test_source_file=None, test_target_file=None)
    saved = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert saved("abc")["input_ids"] == from_sentencepiece(tmp_path / "spm.model")("abc")["input_ids"]
    assert result.steps == 2
    (tmp_path / "spm.model").write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"tokenizer must be a saved tokenizer, got .* must be a SentencePiece model"):
        run(tmp_path, "out", **options)

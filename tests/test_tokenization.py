"""The tokenizer: round trips, training, and transformers' interface."""

import copy
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame
from tokenizers import AddedToken, pre_tokenizers
from transformers import AutoTokenizer

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerTokenizer
from modeling_random_transformer.tokenization_random_transformer import MIN_VOCAB_SIZE, is_blank, normalize
from modeling_random_transformer.training import BPEDropout
from tests.helpers.scripts import sentences_by_language

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "El veloz zorro marrón salta sobre el perro perezoso.",
    "¿Dónde está la niña? La niña está en el jardín.",
    "敏捷的棕色狐狸跳过了懒狗。",
] * 4
TEXTS = {
    "english": "The lazy dog isn't brown.",
    "spanish": "¿Qué, José? ¡El niño comió piñas!",
    "chinese": "变压器是一种神经网络。",
    "emoji": "👩‍👩‍👧‍👦 says 👋🏽 to 🇪🇸",
    "combining marks": "e\u0301 is not é, n\u0303 is not ñ",
    "double spaces": "  two  spaces   three ",
    "tabs and newlines": "a\tb\n\nc\r\n d\n",
    "empty": "",
    "control": "\x00\x07\u200b\ufeff",
    "metaspace": "▁ Ġ Ċ",
}
SENTENCES = sentences_by_language()
TEN_WORDS = ["hello", "mundo", "world", "how", "?", "EOS", "SOS", "a", "hola", "c"]


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.train(CORPUS, vocab_size=400)


@pytest.fixture(scope="module")
def words():
    return RandomTransformerTokenizer.from_words(TEN_WORDS, bos_token="SOS", eos_token="EOS")


def test_special_tokens_have_the_configurations_ids(tokenizer):
    config = RandomTransformerConfig()
    assert tokenizer.pad_token_id == config.pad_token_id == 0
    assert tokenizer.bos_token_id == config.bos_token_id == 1
    assert tokenizer.eos_token_id == config.eos_token_id == 2
    assert tokenizer.unk_token_id == 3
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert MIN_VOCAB_SIZE <= len(tokenizer) <= 400


@pytest.fixture(scope="module")
def loaded(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_round_trip_before_and_after_saving(tokenizer, loaded, kind):
    ids = tokenizer(TEXTS[kind]).input_ids
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == normalize(TEXTS[kind])
    assert type(loaded) is RandomTransformerTokenizer
    assert loaded(TEXTS[kind]).input_ids == ids
    assert (loaded.padding_side, loaded.special_tokens_map) == ("right", tokenizer.special_tokens_map)


CONTROL = ["<pad>", "<s>", "</s>", "<unk>", "__en__", "__zh-Hans__"]


# Invisible characters, and characters beside which they are content
CONTEXTS = (
    "a é\u0301\u00ad\u034f\u200b\u200c\u200d\u200f\u202e\u2060\u3164\ufeff\ufe0f\u202f\u00a0\u2028\u2800"
    "\t\n\r\x00\x07\x85कىر،가❤👩🏴"
)
PARTS = st.one_of(st.text(), st.text(CONTEXTS), st.sampled_from([*CONTROL, "Straße", "čaj", "é"]))


@pytest.mark.parametrize("normalization", ["NFC", None])
@given(st.lists(PARTS).map("".join))
def test_any_text_round_trips(normalization, text):
    options = {"languages": ["en", "zh-Hans"], "special_tokens": ["<bt>"], "src_lang": "en", "tgt_lang": "en"}
    tokenizer = RandomTransformerTokenizer.train(CORPUS[:4], vocab_size=300, normalization=normalization, **options)
    tokenizer.add_tokens(["Straße", "čaj", "é"])
    for encoded in (tokenizer.encode_texts(text)["input_ids"], tokenizer.encode_texts(text_target=text)["input_ids"]):
        tag, *ids, end = encoded
        assert [tag, end] == [tokenizer.get_lang_id("en"), tokenizer.eos_token_id]
        assert not {*ids} & {*tokenizer.convert_tokens_to_ids(CONTROL)}
        if "<bt>" not in text:
            expected = text if normalization is None else normalize(text)
            assert tokenizer.decode(encoded, skip_special_tokens=True) == expected


def test_split_special_tokens(tokenizer):
    text = "</s> ends <pad>"
    assert tokenizer(text).input_ids[0] == tokenizer.eos_token_id
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=300, split_special_tokens=True)
    ids = tokenizer(text).input_ids
    assert ids[:-1].count(tokenizer.eos_token_id) == 0
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", ["a <bt>  b</s><new> c", "<bt><bt>", "</s>__en__</s>"])
def test_declared_special_tokens_of_texts_are_recognized(multilingual, text):
    """Also those that were added to the tokenizer later; the tokenizer itself does not change."""
    multilingual.add_special_tokens({"extra_special_tokens": ["<new>"]}, replace_extra_special_tokens=False)
    multilingual.src_lang = "es"
    state = multilingual.backend_tokenizer.to_str()
    encoded = multilingual.encode_texts([text, "b"], padding=True, return_offsets_mapping=True)
    assert multilingual.backend_tokenizer.to_str() == state
    ids = encoded["input_ids"][0]
    for token in ("<bt>", "<new>"):
        assert ids.count(multilingual.convert_tokens_to_ids(token)) == text.count(token)
    without = text.replace("<bt>  ", "").replace("<bt>", "").replace("<new>", "")
    assert multilingual.decode(ids, skip_special_tokens=True) == without
    assert "".join(text[slice(*span)] for span in encoded["offset_mapping"][0]) == text
    multilingual.split_special_tokens = True  # then the user wants all of them to be text
    assert multilingual.encode_texts(text)["input_ids"][1:-1].count(multilingual.convert_tokens_to_ids("<bt>")) == 0


def test_an_end_token_follows_each_text_of_a_pair(tokenizer):
    end = tokenizer.eos_token_id
    plain = [tokenizer(text, add_special_tokens=False).input_ids for text in ("the dog", "el perro")]
    assert tokenizer("the dog", "el perro").input_ids == [*plain[0], end, *plain[1], end]


def test_the_end_token_may_end_targets_only(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    of_targets = RandomTransformerTokenizer.from_pretrained(tmp_path, source_eos=False)
    source, target = (tokenizer(text, add_special_tokens=False).input_ids for text in ("the dog", "el perro"))
    assert of_targets.encode("the dog") == source, "before the first call"
    assert of_targets("the dog").input_ids == source
    assert of_targets(text_target="el perro").input_ids == [*target, tokenizer.eos_token_id]
    pair = of_targets("the dog", "el perro", return_token_type_ids=True)
    assert pair.input_ids == source + target
    assert {*pair.token_type_ids} == {0}, "as with the end token"


@pytest.mark.parametrize(("newline", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8"), ("\n", "utf-8-sig")])
def test_training_from_files_equals_training_from_texts(tmp_path, newline, encoding):
    paths = []
    for name, texts in (("a.en", CORPUS[0::2]), ("a.es", CORPUS[1::2])):
        paths.append(tmp_path / name)
        paths[-1].write_text("".join(text + newline for text in texts), encoding=encoding, newline="")
    from_files = RandomTransformerTokenizer.train_from_files(paths, vocab_size=330)
    from_texts = RandomTransformerTokenizer.train((text for text in CORPUS[0::2] + CORPUS[1::2]), vocab_size=330)
    assert from_files.get_vocab() == from_texts.get_vocab()
    assert RandomTransformerTokenizer.train_from_files(str(paths[0]), vocab_size=300)("The").input_ids


EQUAL = {
    "soft hyphen": ("gi\u00adrl", "girl"),
    "zero-width space": ("the\u200b girl", "the girl"),
    "word joiner": ("\u2060the girl", "the girl"),
    "byte order mark": ("\ufeffthe girl", "the girl"),
    "marks of the direction": ("\u2067the\u200e girl\u2069\u200f", "the girl"),
    "joiners in Latin": ("g\u200ci\u200drl", "girl"),
    "letters of flags": ("girl\U000e0041\U000e0042", "girl"),
    "variation selector": ("girl\ufe0f", "girl"),
    "variation selector of a ligature": ("\ufb01nd\ufb02\ufe0f", "findfl"),
    "filler": ("girl\u3164", "girl"),
    "no-break spaces": ("the\u00a0girl\u202f!", "the girl !"),
    "typographic spaces": ("the\u2009girl\u2003!", "the girl !"),
    "line separator": ("the\u2028girl", "the girl"),
    "Unicode form": ("nin\u0303a \u212b", "niña Å"),
    "a mark after an invisible character": ("nin\u200b\u0303a", "niña"),
    "control characters": ("the\x0cgi\x07rl", "the girl"),
    "non-joiner at the end of a word": ("می\u200c رود", "می رود"),
    "two non-joiners": ("می\u200c\u00ad\u200cرود", "می\u200cرود"),
    "Thai": ("บ้าน\u200bของ", "บ้านของ"),
    "hyphens": ("well\u2010known e\u2011mail", "well-known e-mail"),
    "ligatures": ("\ufb01nd a \ufb02at, o\ufb00er o\ufb03ces ba\ufb04e", "find a flat, offer offices baffle"),
    "ligature of a long s": ("\ufb05ep \ufb06ep", "step step"),
}
CONTENT = {
    "Persian": "می\u200cرود کتاب\u200cها",
    "Sinhala": "ශ්\u200dරී",
    "Devanagari": "क्\u200dष क्\u200cष",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u202fᠤᠨ",
    "emoji": "👩\u200d🚀 ❤\ufe0f\u200d🔥 👋🏽 1\ufe0f\u20e3",
    "flag of a region": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "variant of a Chinese character": "葛\U000e0100",
    "spaces and lines": " a  b\n\tc\u3000d",
}


@pytest.mark.parametrize(("text", "expected"), [*EQUAL.values(), *zip(CONTENT.values(), CONTENT.values(), strict=True)])
def test_texts_that_look_equal_have_equal_tokens(tokenizer, words, text, expected):
    assert normalize(text) == expected
    assert tokenizer(text).input_ids == tokenizer(expected).input_ids
    assert tokenizer(text_target=text).input_ids == tokenizer(text_target=expected).input_ids
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == expected
    assert words("hello\u00a0wor\u00adld").input_ids == words("hello world").input_ids


@pytest.mark.parametrize(
    "text", ["", " \n", "\u00ad\u200b", "\ufeff", "\u200e\u2069", "\u3164\ufe0f", "\u200d \u2800\x07"]
)
def test_texts_without_visible_characters_are_blank(text):
    assert is_blank(text)
    assert not is_blank(f"{text}.")


def test_saved_tokenizers_keep_their_normalization(tmp_path):
    lossless = RandomTransformerTokenizer.train(CORPUS, vocab_size=300, normalization=None)
    lossless.save_pretrained(tmp_path)
    ids = lossless("gi\u00adrl").input_ids
    assert AutoTokenizer.from_pretrained(tmp_path)("gi\u00adrl").input_ids == ids
    assert lossless.decode(ids, skip_special_tokens=True) == "gi\u00adrl"


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_texts_get_the_unicode_form_of_the_tokenizer(form):
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=300, normalization=form)
    text = tokenizer.decode(tokenizer("e\u0301 ﬁ\u00ad").input_ids, skip_special_tokens=True)
    assert text == unicodedata.normalize(form, "é fi")


@pytest.mark.parametrize("token", ["Straße", "naïve café", "Größe", "čeština", "Ω", "北京", "e\u0301te"])
@pytest.mark.parametrize("is_special", [False, True])
def test_added_tokens_are_decoded_to_their_texts(token, is_special, tmp_path):
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=300)
    assert tokenizer.add_tokens([AddedToken(token, normalized=not is_special, special=is_special)]) == 1
    tokenizer.save_pretrained(tmp_path)
    text = f"é {token}{token}, 敏捷"
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = one(text, add_special_tokens=False).input_ids
        assert ids.count(len(tokenizer) - 1) == 2
        expected = text if is_special else normalize(text)
        assert (
            one.decode(ids)
            == one.batch_decode([ids])[0]
            == one.convert_tokens_to_string(one.tokenize(text))
            == expected
        )
        assert one.decode(len(tokenizer) - 1) == (token if is_special else normalize(token))


@pytest.mark.parametrize("word", ["Straße", "street"])
def test_special_tokens_are_skipped_beside_added_words(word):
    """Also those that are no attribute of the tokenizer."""
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=300)
    tokenizer.add_tokens([word, "ü<sep>"])
    tokenizer.add_tokens(["<a>", "<é>"], special_tokens=True)
    ids = tokenizer(f"{word}<a>ü<sep><é> é").input_ids
    assert tokenizer.decode(ids) == f"{word}<a>ü<sep><é> é</s>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"{word}ü<sep> é"
    assert tokenizer.batch_decode([[], ids], skip_special_tokens=True) == ["", f"{word}ü<sep> é"]


def test_a_start_token_does_not_replace_the_end_token(tmp_path):
    tokenizer = RandomTransformerTokenizer.train(["a b"] * 3, vocab_size=280)
    ids = tokenizer("a").input_ids
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert tokenizer.add_eos_token
    assert ids[-1] == end
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path, add_bos_token=True)("a").input_ids == [start, *ids]
    tokenizer.add_bos_token = True
    assert tokenizer("a").input_ids == [start, *ids]
    tokenizer.add_bos_token = tokenizer.add_eos_token = False
    assert tokenizer("a").input_ids == ids[:-1]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded("a").input_ids, loaded.add_eos_token) == (ids[:-1], False)


def test_a_tag_needs_the_end_token(multilingual):
    with pytest.raises(ValueError, match="add_eos_token must be True for a tokenizer with languages, got False"):
        multilingual.add_eos_token = False
    assert multilingual.add_eos_token


@pytest.mark.parametrize("text", ["é", " ", "ñ", " el", "敏"])
def test_names_of_tokens_are_not_added(tokenizer, text):
    """Byte-level BPE has tokens of these names for other texts."""
    tokenizer = copy.deepcopy(tokenizer)
    name = tokenizer.tokenize(text)[0]
    assert tokenizer.add_tokens([name]) == 0
    text = f"é{name} 敏 é"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    with pytest.raises(ValueError, match=f"special tokens must not be names of tokens of another text, got '{name}'"):
        tokenizer.add_special_tokens({"extra_special_tokens": [name]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "one string"}, "texts must be an iterable of strings, got one str"),
        ({"texts": {"text": ["a"]}}, "texts must be an iterable of strings, got one dict"),
        ({"texts": DataFrame({"text": ["a"]})}, "texts must be an iterable of strings, got one DataFrame"),
        ({"texts": 5}, "texts must be an iterable of strings, got one int"),
        ({"texts": ["a", 7]}, "texts must contain only strings, got int at index 1"),
        ({"vocab_size": 259}, "vocab_size must be an integer of at least 260 .* got 259"),
        ({"vocab_size": "400"}, "vocab_size must be an integer"),
        ({"min_frequency": 0}, "min_frequency must be an integer of at least 1"),
        ({"normalization": "nfc"}, "normalization must be None or one of NFC, .* got 'nfc'"),
        ({"languages": "en"}, "languages must be a list of strings, got 'en'"),
        ({"special_tokens": "<bt>"}, "special_tokens must be a list of strings, got '<bt>'"),
        ({"languages": ["en us"]}, "languages must be codes such as 'en', .* got 'en us'"),
        ({"languages": ["en", "en"]}, "languages and special_tokens must be unique, got '__en__' more than once"),
        ({"special_tokens": ["</s>"]}, "languages and special_tokens must be unique, got '</s>'"),
        ({"special_tokens": ["é"]}, "special_tokens must not be the name of a byte, got 'é'"),
        ({"special_tokens": [" a"]}, "special_tokens must be strings without spaces at their ends, got ' a'"),
        ({"languages": ["en"], "vocab_size": 260}, "vocab_size must be an integer of at least 261"),
        ({"languages": ["en"], "src_lang": "fr"}, "src_lang must be one of en, got 'fr'"),
        ({"eos_token": "<end>"}, "eos_token must be in the vocabulary, got '<end>'"),
        ({"keep_line_breaks": "no"}, "keep_line_breaks must be True or False, got 'no'"),
        ({"model_max_length": -5}, r"model_max_length must be an integer of at least 1 \(the end token\), got -5"),
        ({"min_freq": 3}, "options must be among .*, keep_line_breaks, .* got 'min_freq'"),
    ],
)
def test_invalid_training_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        RandomTransformerTokenizer.train(**({"texts": CORPUS, "vocab_size": 300} | arguments))


def test_the_smallest_vocabulary_has_all_bytes():
    smallest = RandomTransformerTokenizer.train(CORPUS, vocab_size=MIN_VOCAB_SIZE, min_frequency=1)
    assert len(smallest) == MIN_VOCAB_SIZE
    assert smallest.decode(smallest("el niño").input_ids, skip_special_tokens=True) == "el niño"


def test_invalid_training_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.en"):
        RandomTransformerTokenizer.train_from_files([tmp_path / "missing.en"])
    with pytest.raises(ValueError, match="paths must name at least one file"):
        RandomTransformerTokenizer.train_from_files([])
    broken = tmp_path / "broken.en"
    broken.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"broken\.en must be UTF-8 text, but line 2 is not"):
        RandomTransformerTokenizer.train_from_files(broken)


def test_saved_tokenizers_keep_their_pattern(tokenizer, tmp_path):
    """Those of earlier versions have the pattern of GPT-2, whose first word may get a space."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert words_of(loaded, "don't e\u0301") == ["don", "'t", " e", "\u0301"]
    prefixed = AutoTokenizer.from_pretrained(tmp_path, add_prefix_space=True)
    assert prefixed("dog").input_ids == loaded(" dog").input_ids != loaded("dog").input_ids


@pytest.mark.parametrize("arguments", [{"words": TEN_WORDS}, {}])
def test_add_prefix_space_must_be_false(arguments, tokenizer):
    if arguments:
        tokenizer = RandomTransformerTokenizer.from_words(TEN_WORDS, bos_token="SOS", eos_token="EOS")
    with pytest.raises(ValueError, match="add_prefix_space must be False"):
        tokenizer.add_prefix_space = True


# Scripts


def words_of(tokenizer, text):
    """The parts of a text between which BPE does not merge."""
    parts = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The lazy dog isn't brown.", ["The", " lazy", " dog", " isn't", " brown", "."]),
        ("'L’homme' aujourd'hui", ["'", "L’homme", "'", " aujourd'hui"]),
        ("Ng'ombe, М’яка ƙwarya", ["Ng'ombe", ",", " М’яка", " ƙwarya"]),
        ("ilé-ìwé wa\u0323\u0300", ["ilé", "-", "ìwé", " wa\u0323\u0300"]),
        ("हिन्दी किताबें।", ["हिन्दी", " किताबें", "।"]),
        ("كَتَبَ الْوَلَدُ؟", ["كَتَبَ", " الْوَلَدُ", "؟"]),
        ("می‌روم ශ්‍රී", ["می‌روم", " ශ්‍රී"]),
        ("บ้านของเขา ใหญ่", ["บ้านของเขา", " ใหญ่"]),
        ("in 2024: 3,5 %", ["in", " 2", "0", "2", "4", ":", " 3", ",", "5", " %"]),
        ("👩‍🚀 ok… ❤️!", ["👩‍🚀", " ok", "…", " ❤️!"]),
        ("a  b\n\n c ", ["a", " ", " b", "\n\n", " c", " "]),
    ],
)
def test_words_of_the_pattern(tokenizer, text, expected):
    assert words_of(tokenizer, text) == expected


@pytest.mark.parametrize("sentences", SENTENCES.values(), ids=SENTENCES)
def test_texts_of_every_script_round_trip(sentences):
    """Lossless, with and without BPE-dropout; a word is no longer cut at its marks."""
    tokenizer = RandomTransformerTokenizer.train(sentences * 2, vocab_size=2000)
    bpe_dropout = BPEDropout(tokenizer, 0.5)
    for text in sentences:
        encoded = tokenizer.encode_texts(text, add_special_tokens=False)
        assert tokenizer.decode(encoded["input_ids"]) == text
        dropped = bpe_dropout(encoded["input_ids"], encoded.word_ids(), np.random.default_rng(0))
        assert tokenizer.decode(dropped) == text
        assert len(encoded["input_ids"]) == len(words_of(tokenizer, text))  # every word was seen twice


def test_another_pattern_splits_the_words():
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=300, pattern=r"\s*\S+")
    assert words_of(tokenizer, "a b'c-1.") == ["a", " b'c-1."]
    with pytest.raises(ValueError, match=r"pattern must be a regular expression, got '\['"):
        RandomTransformerTokenizer.train(CORPUS, vocab_size=300, pattern="[")


# Several languages


@pytest.fixture
def multilingual():
    return RandomTransformerTokenizer.train(
        CORPUS, vocab_size=400, languages=["en", "es", "zh-Hans"], special_tokens=["<bt>"]
    )


def test_texts_start_with_the_tag_of_their_language(multilingual, tokenizer):
    multilingual.src_lang, multilingual.tgt_lang = "en", "es"
    encoded = multilingual(["the dog", "the fox"], text_target=["el perro", "el zorro"])
    for ids, tag in ((encoded["input_ids"], "__en__"), (encoded["labels"], "__es__")):
        assert [multilingual.convert_ids_to_tokens(row[:1]) for row in ids] == [[tag], [tag]]
        assert {row[-1] for row in ids} == {multilingual.eos_token_id}
    assert multilingual(text_target="el perro")["input_ids"] == encoded["labels"][0]
    assert multilingual("the dog")["input_ids"] == encoded["input_ids"][0]  # sources again after targets
    assert multilingual.decode(encoded["labels"][0], skip_special_tokens=True) == "el perro"
    assert multilingual.num_special_tokens_to_add() == tokenizer.num_special_tokens_to_add() + 1
    cut = multilingual("the lazy dog jumps", truncation=True, max_length=3)["input_ids"]
    assert [cut[0], cut[-1]] == [multilingual.get_lang_id("en"), multilingual.eos_token_id]


def test_tags_have_the_ids_after_the_special_tokens(multilingual, tokenizer):
    tags = ["__en__", "__es__", "__zh-Hans__", "<bt>"]
    assert multilingual.convert_tokens_to_ids(tags) == [4, 5, 6, 7]
    assert set(tags) <= set(multilingual.all_special_tokens)
    assert [multilingual.get_lang_id(code) for code in multilingual.languages] == [4, 5, 6]
    assert multilingual.get_lang_token("es") == "__es__"
    assert (tokenizer.languages, tokenizer.src_lang, tokenizer.tgt_lang) == ([], None, None)
    assert "languages" not in tokenizer.init_kwargs


def test_the_spaces_after_a_special_token_belong_to_it(multilingual):
    multilingual.src_lang = "en"
    plain = multilingual("the dog")["input_ids"]
    assert multilingual("<bt> the dog")["input_ids"] == [plain[0], 7, *plain[1:]]


def test_languages_are_saved(multilingual, tmp_path):
    multilingual.src_lang = "es"
    multilingual.save_pretrained(tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.languages, loaded.src_lang, loaded.tgt_lang) == (["en", "es", "zh-Hans"], "es", None)
    assert loaded("<bt> la niña") == multilingual("<bt> la niña")
    loaded.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == content
    reloaded = AutoTokenizer.from_pretrained(tmp_path, src_lang="en", tgt_lang="zh-Hans")
    assert reloaded("a", text_target="b")["labels"][0] == reloaded.get_lang_id("zh-Hans")
    new = reloaded.train_new_from_iterator(["completely different words"] * 9, vocab_size=300)
    assert (new.languages, new.get_lang_id("es")) == (reloaded.languages, 5)
    assert new("different")["input_ids"][0] == new.get_lang_id("en")
    with pytest.raises(ValueError, match=r"src_lang must be one of en, es, zh-Hans, got 'fr'\."):
        AutoTokenizer.from_pretrained(tmp_path, src_lang="fr")


@pytest.mark.parametrize("languages", [7, "en", ["en", "fr"], [None]])
def test_saved_languages_must_have_tags(languages, multilingual, tmp_path):
    multilingual.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"languages": languages}))
    with pytest.raises(ValueError, match="languages must be a list of codes with tags in the vocabulary, got"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_a_new_tokenizer_has_no_separate_merges_of_targets(tmp_path):
    RandomTransformerTokenizer.train(["abc abd"] * 3, vocab_size=265).save_pretrained(tmp_path)
    converted = AutoTokenizer.from_pretrained(tmp_path, target_merges=["a b"])
    assert converted("abc").tokens() != converted(text_target="abc").tokens()
    new = converted.train_new_from_iterator(["xyz xyw"] * 9, vocab_size=280)
    new.save_pretrained(tmp_path)
    for tokenizer in (new, AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer("xyz").tokens() == tokenizer(text_target="xyz").tokens() == ["xyz", "</s>"]


@pytest.mark.parametrize("name", ["src_lang", "tgt_lang"])
def test_languages_of_a_call_are_arguments_of_encode_texts(name, multilingual):
    with pytest.raises(ValueError, match=f"{name} must be an attribute or an argument of encode_texts, got 'en'"):
        multilingual("a dog", **{name: "en"})


def test_an_unset_or_unknown_language_raises(multilingual, tokenizer):
    with pytest.raises(ValueError, match=r"src_lang must be one of en, es, zh-Hans, got None\."):
        multilingual("the dog")
    multilingual.src_lang = "en"
    with pytest.raises(ValueError, match=r"tgt_lang must be one of en, es, zh-Hans, got None\."):
        multilingual("the dog", text_target="el perro")
    for name in ("src_lang", "tgt_lang"):
        with pytest.raises(ValueError, match=f"{name} must be one of en, es, zh-Hans, got 'fr'"):
            setattr(multilingual, name, "fr")
        with pytest.raises(ValueError, match=f"{name} must be None for a tokenizer without languages, got 'en'"):
            setattr(tokenizer, name, "en")
    with pytest.raises(ValueError, match="lang must be one of en, es, zh-Hans, got 'fr'"):
        multilingual.get_lang_id("fr")


def test_targets_alone_need_no_source_language(multilingual):
    multilingual.tgt_lang = "es"
    ids = multilingual(text_target="el perro").input_ids
    assert ids[0] == multilingual.get_lang_id("es")


def test_encode_requires_the_language_of_the_source(multilingual):
    with pytest.raises(ValueError, match="src_lang must be one of"):
        multilingual.encode("the dog")
    assert multilingual.get_lang_id("en") not in multilingual.encode("the dog", add_special_tokens=False)
    assert multilingual.encode("the dog", None, False) == multilingual.encode("the dog", add_special_tokens=False)


def test_an_invalid_target_does_not_change_the_tag_of_sources(multilingual):
    multilingual.src_lang, multilingual.tgt_lang = "en", "es"
    with pytest.raises(TypeError):
        multilingual(text_target=["el perro", None])
    assert multilingual.encode("the dog")[0] == multilingual.get_lang_id("en")


# Word-level vocabularies


def test_ten_words_of_the_blog_post(words, tmp_path):
    config = RandomTransformerConfig.from_preset("blog")
    assert words.convert_ids_to_tokens(range(10)) == TEN_WORDS
    assert len(words) == config.vocab_size
    assert words.eos_token_id == config.eos_token_id == 5
    assert words.bos_token_id == config.bos_token_id == config.decoder_start_token_id == 6
    assert words.pad_token_id == config.pad_token_id
    assert words("hello world").input_ids == [0, 2, 5]
    assert words.decode([6, 3, 7, 9]) == "SOS how a c"
    assert words.decode([6, 8, 1, 5], skip_special_tokens=True) == "hola mundo"
    words.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("hola mundo ?").input_ids == [8, 1, 4, 5]


def test_unknown_words_are_errors_unless_there_is_a_token_for_them(words):
    with pytest.raises(ValueError, match="text must consist of words in the vocabulary"):
        words("hello nobody")
    with_unknown = RandomTransformerTokenizer.from_words(
        ["<unk>", *TEN_WORDS], bos_token="SOS", eos_token="EOS", unk_token="<unk>"
    )
    assert with_unknown("hello nobody").input_ids == [1, 0, 6]


def test_special_words_of_a_text_have_no_other_encoding(words):
    assert words("hello EOS")["input_ids"] == [0, 5, 5]
    assert words.encode_texts(["hello world", "hola"], padding=True)["input_ids"] == [[0, 2, 5], [8, 5, 5]]
    for text in ("hello EOS", ["hello", "SOS"]):
        with pytest.raises(ValueError, match=r"text must not contain the special words .*, got '[ES]OS'"):
            words.encode_texts(text)


def test_invalid_words_raise():
    with pytest.raises(ValueError, match=r"words must be unique, got 'a' more than once"):
        RandomTransformerTokenizer.from_words(["a", "b", "a"], bos_token="a", eos_token="b")
    with pytest.raises(ValueError, match="eos_token must be one of the words, got 'END'"):
        RandomTransformerTokenizer.from_words(["a", "b"], bos_token="a", eos_token="END")


@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer, text: tokenizer(text),
        lambda tokenizer, text: tokenizer(["fine", text]),
        lambda tokenizer, text: tokenizer("fine", text),
        lambda tokenizer, text: tokenizer([["fine", text]], is_split_into_words=True),
        lambda tokenizer, text: tokenizer(text_target=text),
        lambda tokenizer, text: tokenizer.tokenize(text),
    ],
)
def test_lone_surrogate_raises(tokenizer, encode):
    with pytest.raises(ValueError, match=r"text must not contain lone surrogates, got '\\ud800' at position 2, in 'a "):
        encode(tokenizer, "a \ud800 b")


def test_other_invalid_texts_raise_as_in_transformers(tokenizer):
    with pytest.raises(TypeError):
        tokenizer(["fine", 7])


@pytest.mark.parametrize("value", [1.5, "yes", None])
def test_invalid_add_prefix_space_raises(tokenizer, value, tmp_path):
    with pytest.raises(ValueError, match="add_prefix_space must be True or False, got"):
        tokenizer.add_prefix_space = value
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="add_prefix_space must be True or False, got"):
        AutoTokenizer.from_pretrained(tmp_path, add_prefix_space=value)


@pytest.mark.parametrize("name", ["keep_line_breaks", "keep_without_letters"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_setting_that_is_not_boolean_raises(tokenizer, name, value):
    with pytest.raises(ValueError, match=f"{name} must be True or False, got {value!r}"):
        setattr(tokenizer, name, value)


def test_training_without_texts_raises():
    texts = iter(["a text"])
    next(texts)
    for none in ([], texts):
        with pytest.raises(ValueError, match="texts must contain a text, got none"):
            RandomTransformerTokenizer.train(none, vocab_size=300)


def test_corrupted_tokenizer_file_raises(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": 7}')
    with pytest.raises(ValueError, match=r"tokenizer\.json must contain a tokenizer of the tokenizers library"):
        AutoTokenizer.from_pretrained(tmp_path)

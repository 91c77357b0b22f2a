"""One tokenizer for the vocabularies of source and target."""

import pytest

from modeling_random_transformer.extras.conversion.joined_tokenizer import (
    join_vocabularies,
    name_tokens,
    piece_of,
    read_codes,
)

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
SPECIAL_KINDS = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def vocabulary(*tokens):
    return {token: i for i, token in enumerate([*SPECIAL, *tokens])}


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\nl o</w>\nh e\n")
    return path


@pytest.mark.parametrize(
    ("token", "piece"), [("hel@@", "hel"), ("lo", "lo</w>"), ("@@", "@@</w>"), ("</s>", "</s>"), ("@@@@", "@@")]
)
def test_pieces_of_tokens(token, piece):
    assert piece_of(token) == piece


def test_words_are_split_by_codes(codes):
    source = vocabulary("he", "l", "lo</w>")
    target = vocabulary("lo</w>", "o</w>")
    joined = join_vocabularies(source, target, [codes])
    ids = joined.tokenizer("hello o", add_special_tokens=False)["input_ids"]
    assert joined.tokenizer.convert_ids_to_tokens(ids) == ["he", "l", "lo</w>", "o</w>"]
    assert [joined.source_ids[i] for i in ids] == [4, 5, 6, 3]  # 3 is <unk>
    assert [joined.target_ids[i] for i in ids] == [3, 3, 4, 5]
    assert joined.segments
    assert joined.tokenizer.decode(ids) == "hello o"
    assert joined.special_ids() == {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }


def test_without_codes_texts_are_split_at_spaces():
    joined = join_vocabularies(vocabulary("hel@@", "lo"), vocabulary("lo", "da"))
    ids = joined.tokenizer("hel@@ lo da xy", add_special_tokens=False)["input_ids"]
    assert joined.tokenizer.convert_ids_to_tokens(ids) == ["hel@@", "lo", "da", "<unk>"]
    assert joined.tokenizer.decode(ids[:3]) == "hello da"
    assert not joined.segments


def test_source_and_target_may_have_their_own_codes(codes, tmp_path):
    target_codes = tmp_path / "target_codes"
    target_codes.write_text("h e\ne l\nel lo</w> 12\n")
    joined = join_vocabularies(
        vocabulary("he", "l", "lo</w>"), vocabulary("h", "el", "l", "o</w>"), [codes, target_codes]
    )
    encode = joined.tokenizer
    assert encode.tokenize("hello") == ["he", "l", "lo</w>"]
    [labels] = encode(text_target=["hel"], add_special_tokens=False)["input_ids"]
    assert encode.convert_ids_to_tokens(labels)[0] == "he"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "must have at least one pair to merge, got none"),
        ("a b\na\n", "line 2 of .* must be two symbols"),
        ("a b c d\n", "line 1 of .* must be two symbols"),
        ("a </w>\n", "must be from subword-nmt version 0.2 or fastBPE"),
    ],
)
def test_damaged_codes(lines, message, tmp_path):
    path = tmp_path / "codes"
    path.write_text(lines)
    with pytest.raises(ValueError, match=message):
        read_codes(path)


def test_the_first_of_equal_merges_counts(tmp_path):
    path = tmp_path / "codes"
    path.write_text("a b 9\n\nc d\na b 3\n")
    assert read_codes(path) == [("a", "b"), ("c", "d")]


def test_special_tokens_get_the_names_of_this_model():
    ids = name_tokens("dict.txt", ["<blank>", "<s>", "</s>", "<unk>", "hel@@", "lo"], SPECIAL_KINDS, as_pieces=True)
    assert ids == {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "hel": 4, "lo</w>": 5}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["<blank>", "<s>", "</s>", "<unk>", 5], "dict.txt must contain strings, got 5"),
        (["<blank>", "<s>", "</s>", "<unk>", "\ud800"], "dict.txt must contain strings"),
        (["<blank>", "<s>", "</s>", "<unk>", "a", "a"], "must have each token once, got 'a' again as token 5"),
        (["<s>", "</s>", "<unk>"], "must contain the special tokens, but lacks '?<blank>"),
    ],
)
def test_invalid_vocabularies(tokens, message):
    with pytest.raises(ValueError, match=message):
        name_tokens("dict.txt", tokens, SPECIAL_KINDS, as_pieces=False)

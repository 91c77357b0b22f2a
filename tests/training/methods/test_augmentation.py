"""Augmentation: what each change does, what it keeps, determinism, and the tokens of changed pairs."""

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import DatasetText, TokenBudgetStream, streaming, tokenize_pairs
from modeling_random_transformer.data.retokenization import RetokenizedPairs
from modeling_random_transformer.inputs_random_transformer import Languages
from modeling_random_transformer.training import TranslationTrainingArguments
from modeling_random_transformer.training.methods import retokenizer_of
from modeling_random_transformer.training.methods.augmentation import (
    CHANGEABLE_NUMBER,
    SHARES,
    Augmentation,
    typing_errors,
)
from modeling_random_transformer.training.methods.bpe_dropout import BPEDropout

PAIR = ("Two men see 12 cats of {name}.", "Zwei Männer sehen 12 Katzen von {name}.")
TEXTS = [*PAIR, "a dog on the mat", "ein Hund auf der Matte", "<bt> the cat", "die Katze"] * 5
TOKENIZER = RandomTransformerTokenizer.train(TEXTS, vocab_size=400, languages=["en", "de"], special_tokens=["<bt>"])
AUGMENTATION = Augmentation(TOKENIZER)


def change(name, source, target, seed=0):
    return AUGMENTATION.change(name, source, target, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_punctuation", (PAIR[0][:-1], PAIR[1][:-1])),
        ("upper", ("TWO MEN SEE 12 CATS OF {name}.", "ZWEI MÄNNER SEHEN 12 KATZEN VON {name}.")),
        ("title", ("Two Men See 12 Cats Of {name}.", "Zwei Männer Sehen 12 Katzen Von {name}.")),
        ("lower", ("two men see 12 cats of {name}.", PAIR[1])),
    ],
)
def test_changes_of_case_and_punctuation(name, expected):
    assert change(name, *PAIR) == expected


@pytest.mark.parametrize("name", SHARES)
def test_special_tokens_and_placeholders_stay(name):
    for seed in range(10):
        source, target = change(name, "<bt> two cats of {name}", "zwei Katzen von {name}", seed)
        assert source.startswith("<bt>")
        assert "{name}" in source
        assert "{name}" in target


@pytest.mark.parametrize("name", ["upper", "title", "no_punctuation", "lower", "typos"])
@pytest.mark.parametrize("source", ["两只猫", "..."])
def test_a_target_is_unchanged_if_its_source_is(name, source):
    changed, target = change(name, source, "two cats")
    assert target == "two cats" or changed != source


@pytest.mark.parametrize("name", ["numbers", "placeholders"])
def test_both_sides_get_the_same_number_or_placeholder(name):
    source, target = change(name, *PAIR)
    before, after = PAIR[0].split("12")
    copy = source.removeprefix(before).removesuffix(after)
    assert copy != "12"
    assert target == PAIR[1].replace("12", copy)
    places = set()
    for seed in range(10):  # without a common number, one is inserted
        source, target = change(name, "A cat.", "2 Katzen.", seed)
        copy = source.replace("A cat", "").strip(". ")
        assert (source, target) in (
            (f"{copy} A cat.", f"{copy} 2 Katzen."),
            (f"A cat {copy}.", f"2 Katzen {copy}."),
        )
        places.add(source.startswith("A"))
    assert places == {True, False}


def test_a_long_number_stays_as_long():
    number = "7" * 40
    source, target = change("numbers", f"No. {number}", f"Nr. {number}")
    assert CHANGEABLE_NUMBER.findall(source) == CHANGEABLE_NUMBER.findall(target) != [number]
    assert len(source) == 44


def test_typing_errors_have_the_rate():
    text = "the quick brown fox jumps over the lazy dog " * 50
    random = np.random.default_rng(0)
    assert typing_errors(text, 0, random) == text
    for rate in (0.02, 0.1):
        wrong_words = [len(typing_errors("abcdefghij", rate, random)) != 10 for _ in range(2000)]
        # Half of the errors, missing and doubled letters, change the length; two of them can cancel out.
        assert np.mean(wrong_words) == pytest.approx(1 - (1 - rate) ** 5, abs=0.1 * 10 * rate)


def test_each_change_is_drawn_with_its_share(monkeypatch):
    counts = dict.fromkeys(SHARES, 0)

    def counted(name, source, target, _):
        counts[name] += 1
        return source, target

    augmentation = Augmentation(TOKENIZER)
    monkeypatch.setattr(augmentation, "change", counted)
    for seed in range(2000):
        augmentation(*PAIR, np.random.default_rng(seed))
    for name, share in SHARES.items():
        assert counts[name] / 2000 == pytest.approx(share, abs=0.03)


# Tokens


def training_set():
    """Pairs of two directions."""
    parts = []
    for languages in (Languages("en", "de"), Languages("de", "en")):
        rows = [{"line": i, "source": f"<bt> {PAIR[0]} {i}", "target": f"{PAIR[1]} {i}"} for i in range(60)]
        pairs = Dataset.from_list(rows)
        parts.append(tokenize_pairs(pairs, TOKENIZER, languages=languages, with_words=True)[0])
    return concatenate_datasets(parts)


def epoch_of(tokens, epoch=0, seed=1, dropout=0.0, num_workers=0):
    bpe_dropout = BPEDropout(TOKENIZER, dropout) if dropout else None
    pairs = RetokenizedPairs(tokens, Augmentation(TOKENIZER, bpe_dropout), seed)
    pairs.set_epoch(epoch)
    return [row for batch in DataLoader(pairs, collate_fn=list, num_workers=num_workers) for row in batch]


def test_changes_depend_on_the_seed_and_the_epoch_only():
    tokens = training_set()
    first = epoch_of(tokens)
    assert first == epoch_of(tokens) == epoch_of(tokens, num_workers=2)
    assert first != epoch_of(tokens, epoch=1)
    assert first != epoch_of(tokens, seed=2)
    plain = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in tokens]
    unchanged = sum(row in plain for row in first)
    assert 0.3 < unchanged / len(first) < 0.8


def test_changed_pairs_keep_their_languages_and_special_tokens():
    tokens = training_set()
    for row, changed in zip(tokens, epoch_of(tokens), strict=True):
        for name in ("input_ids", "labels"):
            assert changed[name][0] == row[name][0]
            assert changed[name][-1] == TOKENIZER.eos_token_id
        assert changed["input_ids"][1] == row["input_ids"][1] == TOKENIZER.convert_tokens_to_ids("<bt>")


def test_bpe_dropout_segments_the_changed_texts():
    tokens = training_set()
    plain = epoch_of(tokens)
    dropped = epoch_of(tokens, dropout=0.3)
    assert plain != dropped
    for name in ("input_ids", "labels"):
        decoded = [[TOKENIZER.decode(row[name]) for row in rows] for rows in (plain, dropped)]
        assert decoded[0] == decoded[1]


def test_a_stream_depends_on_the_seed_the_epoch_and_the_line(monkeypatch):
    monkeypatch.setattr(streaming, "LINES_PER_CHUNK", 7)
    rows = [{"source": f"{PAIR[0]} {i}", "target": f"{PAIR[1]} {i}"} for i in range(40)]
    corpus = DatasetText(Dataset.from_list(rows), languages=Languages("en", "de"))

    def epochs(num_workers=0):
        options = {"buffer_pairs": 16, "seed": 3, "num_workers": num_workers, "retokenizer": Augmentation(TOKENIZER)}
        stream = TokenBudgetStream(corpus, TOKENIZER, 120, **options)
        return [[row for batch in stream.epoch(number) for row in batch] for number in range(2)]

    first = epochs()
    assert first == epochs(num_workers=2)
    assert sorted(map(str, first[0])) != sorted(map(str, first[1]))


def test_a_vocabulary_has_words_in_capitals():
    texts = ["the dog barks", "der Hund bellt"] * 500
    vocabulary = RandomTransformerTokenizer.train(AUGMENTATION.texts(texts, seed=1), vocab_size=400).get_vocab()
    assert {"THE", "ĠDOG", "ĠHUND"} <= {*vocabulary}


def test_the_limit_of_a_model_holds_for_bpe_dropout(tmp_path):
    for bpe_dropout, limit in ((0.3, 5), (0, None)):
        args = TranslationTrainingArguments(tmp_path, augment=True, bpe_dropout=bpe_dropout)
        augmentation = retokenizer_of(args, TOKENIZER, max_length=5)
        assert getattr(augmentation.bpe_dropout, "max_length", None) == limit

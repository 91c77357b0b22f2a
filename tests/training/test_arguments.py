"""Arguments for the data and the model, alone and together."""

import re
from dataclasses import replace

import pytest

from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.training import ModelArguments
from modeling_random_transformer.training.arguments import DataArguments, parse_overrides, set_names
from tests.helpers.training import write_corpora


def test_aligned_files_and_a_single_file(corpus):
    (corpus / "a.tsv").write_text("x\ty\n")
    source, target, single = (str(corpus / name) for name in ("train.a", "train.b", "a.tsv"))
    data = DataArguments(source_file=source, target_file=target, test_file=single)
    assert [str(corpus) for corpus in data.corpora("train")] == [f"{source} and {target}"]
    assert [corpus.target for corpus in data.corpora("test")] == [None]
    assert data.corpora("validation") == []
    both = DataArguments(source_file=source, target_file=target, train_file=single)
    assert [corpus.source.name for corpus in both.corpora("train")] == ["train.a", "a.tsv"]
    several = replace(both, source_lang=["a", "b"], target_lang="c")
    assert [corpus.languages.codes for corpus in several.corpora("train")] == [("a", "c"), ("b", "c")]
    assert several.corpora("test") == []


def test_reversed_arguments_exchange_source_and_target(corpus):
    source, target = str(corpus / "train.a"), str(corpus / "train.b")
    (corpus / "a.tsv").write_text("en\tde\nx\ty\n")
    single = {"test_file": str(corpus / "a.tsv"), "source_key": "en", "target_key": "de"}
    languages = {"source_lang": "en", "target_lang": "de"}
    for options in ({}, single):
        data = DataArguments(source_file=source, target_file=target, max_source_length=9, **languages, **options)
        reversed_data = data.reversed()
        assert (reversed_data.source_file, reversed_data.target_file) == ([target], [source])
        assert (reversed_data.source_lang, reversed_data.target_lang) == (["de"], ["en"])
        assert (reversed_data.max_source_length, reversed_data.max_target_length) == (256, 9)
        assert reversed_data.reversed() == data
        pairs = [[(line.source, line.target) for line in test.lines()] for test in reversed_data.corpora("test")]
        assert pairs == ([[("y", "x")]] if options else [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_file": None, "target_file": None}, "source_file and target_file, train_file, or dataset_name must"),
        ({"target_file": None}, "source_file and target_file must have the same number of files, got 2 and 0"),
        ({"train_file": "missing.tsv"}, r"^train_file must be a file, got 'missing\.tsv'\."),
        ({"target_file": ["missing"] * 2}, r"^target_file must be a file, got 'missing'\."),
        ({"max_length_ratio": 0}, "max_length_ratio must be None or at least 1, got 0"),
        ({"on_invalid": "ignore"}, "on_invalid must be one of error, skip, got 'ignore'"),
        ({"train_weights": [1]}, r"train_weights must be 2 positive integers, one per training corpus, got \[1\]\."),
        ({"train_weights": [1, 0.5]}, r"train_weights must be 2 positive integers, .*, got \[1, 0\.5\]\."),
        ({"source_lang": "a"}, "source_lang and target_lang must be given together"),
        ({"source_lang": "a", "target_lang": ["a", "b", "c"]}, "target_lang must be 1 or 2 language codes, one per tr"),
        ({"source_lang": "a", "target_lang": ["b", "False"]}, "target_lang must be language codes .* got 'False'"),
        ({"source_lang": "a", "target_lang": "b c"}, "target_lang must be language codes such as 'en' .* got 'b c'"),
    ],
)
def test_invalid_data_arguments_raise(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        DataArguments(**write_corpora(tmp_path) | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "x"}, "dataset_name must be unset if all sets are given as files, got 'x'"),
        ({"dataset_name": "x", "test_split": "a", "train_split": "b"}, "train_split must be unset for a set that is"),
        ({"dataset_config_name": "x"}, "dataset_config_name must be unset without dataset_name, got 'x'"),
        ({"dataset_revision": "x"}, "dataset_revision must be unset without dataset_name"),
        ({"validation_split": "x"}, "validation_split must be unset without dataset_name"),
        ({"test_split": "x"}, "test_split must be unset without dataset_name"),
        ({"source_key": "x"}, "source_key must be unset without a file or dataset with columns"),
        ({"target_key": "2"}, "target_key must be unset without a file or dataset with columns"),
        ({"buffer_pairs": 5}, "buffer_pairs must be unset without streaming, got 5"),
        ({"buffer_pairs": -5, "streaming": True}, "buffer_pairs must be a positive integer, got -5"),
        ({"max_source_length": 0}, "max_source_length must be a positive integer, got 0"),
        ({"max_target_length": -1}, "max_target_length must be a positive integer, got -1"),
        ({"preprocessing_num_workers": 0}, "preprocessing_num_workers must be None or a positive integer, got 0"),
    ],
)
def test_arguments_of_the_data_without_effect_raise(options, message, corpus):
    source, target = (str(corpus / name) for name in ("train.a", "train.b"))
    with pytest.raises(ValueError, match=re.escape(message)):
        DataArguments(source_file=source, target_file=target, **options)


def test_arguments_of_the_data_with_an_effect(corpus):
    (corpus / "c.tsv").write_text("x\ty\n")
    source, target, table = (str(corpus / name) for name in ("train.a", "train.b", "c.tsv"))
    files = {"source_file": source, "target_file": target}
    DataArguments(**files, dataset_name="x", dataset_revision="y", test_split="test")
    DataArguments(**files, test_file=table, source_key="en")
    data = DataArguments(train_file=table, source_key="en", dataset_name="x", test_split="test")
    assert data.with_sets(train_file=None, dataset_name=None, **files) == DataArguments(**files)


def test_config_overrides_have_the_types_of_their_fields():
    text = " d_model=64, dropout=0.2,norm_order=pre,share_embeddings=False,d_k=none, position_embedding=none"
    assert parse_overrides(text) == {
        "d_model": 64,
        "dropout": 0.2,
        "norm_order": "pre",
        "share_embeddings": False,
        "d_k": None,
        "position_embedding": "none",  # a string in string fields
    }
    config = ModelArguments(config_overrides=text).config(vocab_size=300)
    assert (config.d_model, config.vocab_size, config.encoder_layers, config.d_k) == (64, 300, 4, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config_overrides": "d_model", "model_name_or_path": "m"}, "config_overrides must be like .*, got 'd_model'"),
        ({"config_overrides": "d_modle=4", "model_name_or_path": "m"}, "config_overrides must be like"),
        ({"config_overrides": "d_ff=4, d_ff=8"}, "config_overrides must have one value for each field, got several"),
        ({"config_overrides": "d_model=8", "model_name_or_path": "m"}, "config_overrides must be of .*, got d_model"),
        ({"vocab_size": 1}, r"vocab_size must be at least 260 \(the special tokens and the 256 bytes\), got 1\."),
        ({"tokenizer": "t", "vocab_size": 300}, "vocab_size must be unset with tokenizer, .*, got 300"),
        (
            {"config_overrides": "vocab_size=300"},
            "config_overrides must not have fields of the tokenizer, got vocab_size",
        ),
        ({"config_overrides": "d_ff=8,eos_token_id=7"}, "config_overrides must not .*, got eos_token_id"),
        ({"freeze": "encoder"}, "freeze must be unset without model_name_or_path, and with lora_rank, got 'encoder'"),
        ({"lora_rank": 4}, r"lora_rank requires model_name_or_path \(the base model\), got 4"),
        (
            {"model_name_or_path": "m", "lora_rank": 2, "lora_dropout": 2.0},
            r"lora_dropout must be at least 0 and below 1, got 2\.0",
        ),
        ({"lora_target_modules": "fc1"}, "lora_target_modules must be unset without lora_rank, got 'fc1'"),
        (
            {"model_name_or_path": "m", "lora_rank": 2, "lora_alpha": 0},
            "lora_alpha must be None or a positive integer, got 0",
        ),
        (
            {"model_name_or_path": "m", "special_tokens": ["<a>"]},
            "special_tokens must be unset with model_name_or_path",
        ),
        (
            {"model_name_or_path": "m", "tokenizer": "t", "preset": "big"},
            "preset must be unset with model_name_or_path",
        ),
        (
            {"model_name_or_path": "m", "tokenizer": "t", "lora_rank": 2},
            "lora_rank must be unset with another vocabulary",
        ),
    ],
)
def test_invalid_model_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(**options)


def test_names_of_several_sets_are_distinct(tmp_path):
    names = ("news", "talks", "news 2")
    for name in names:
        (tmp_path / f"{name}.tsv").write_text("x\ty\n")
    news, talks, other_news = (ParallelText(tmp_path / f"{name}.tsv") for name in names)
    assert set_names("test", [news]) == ["test"]
    assert set_names("test", [news, talks]) == ["test news", "test talks"]
    assert set_names("test", [news, talks, news]) == ["test news 1", "test talks 2", "test news 3"]
    assert len({*set_names("test", [news, news, other_news])}) == 3

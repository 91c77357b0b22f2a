"""Arguments for the data and the model."""

import pytest

from modeling_random_transformer.training.arguments import DataArguments, ModelArguments, parse_overrides


@pytest.fixture
def files(tmp_path):
    for name in ("a.en", "a.es", "a.tsv"):
        (tmp_path / name).write_text("x\ty\n")
    return {name: str(tmp_path / name) for name in ("a.en", "a.es", "a.tsv")}


def test_aligned_files_and_a_single_file(files):
    data = DataArguments(source_file=files["a.en"], target_file=files["a.es"], test_file=files["a.tsv"])
    assert [str(corpus) for corpus in data.corpora("train")] == [f"{files['a.en']} and {files['a.es']}"]
    assert [corpus.text.target for corpus in data.corpora("test")] == [None]
    assert data.corpora("validation") == []
    both = DataArguments(source_file=files["a.en"], target_file=files["a.es"], train_file=files["a.tsv"])
    assert [corpus.text.source.name for corpus in both.corpora("train")] == ["a.en", "a.tsv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "source_file and target_file, train_file, or dataset_name must be given"),
        ({"source_file": "a.en"}, "source_file and target_file must have the same number of files, got 1 and 0"),
        ({"train_file": "missing.tsv"}, r"must be a file, got 'missing\.tsv'\."),
        ({"source_file": "a.en", "target_file": "missing"}, r"^target must be a file, got 'missing'\."),
    ],
)
def test_invalid_data_arguments_raise(options, message, files):
    with pytest.raises(ValueError, match=message):
        DataArguments(**{name: files.get(value, value) for name, value in options.items()})


def test_config_overrides():
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


@pytest.mark.parametrize("text", ["d_model", "d_modle=4"])
def test_invalid_overrides_raise(text):
    with pytest.raises(ValueError, match="config_overrides must be like"):
        parse_overrides(text)

"""Training on every kind of corpus: files, datasets and streams."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.training import DataArguments
from modeling_random_transformer.training.preparation import load_sets, tokenize_set
from tests.helpers.training import SIZES, UNSCORED, assert_equal_weights, run, write_corpora


@pytest.mark.parametrize("streaming", [False, True])
def test_training_on_a_dataset_of_datasets(streaming, corpus):
    folder = corpus / "data"
    folder.mkdir()
    for split in ("train", "test"):
        sides = [(corpus / f"{split}.{side}").read_text().splitlines() for side in "ab"]
        rows = [{"translation": {"en": source, "es": target}} for source, target in zip(*sides, strict=True)]
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    options = {"dataset_name": str(folder), "test_split": "test", "source_key": "en", "target_key": "es"}
    options |= {"source_file": None, "target_file": None, "source_lang": "en", "target_lang": "es", "max_steps": 2}
    result = run(corpus, "tagged", **UNSCORED, **options, streaming=streaming)
    assert (result.pairs, set(result.scores)) == (120, {"test en-es"})
    assert "| en→es | 120 | 1 |" in (result.folder / "README.md").read_text()


@pytest.mark.parametrize("streaming", [False, True])
def test_the_pairs_of_a_stream_are_not_loaded(streaming, corpus):
    source, target = corpus / "train.a", corpus / "train.b"
    corpora = {name: [ParallelText(source, target)] for name in ("train", "test")}
    arguments = SimpleNamespace(corpora=corpora, data_args=SimpleNamespace(streaming=streaming, on_invalid="error"))
    texts, reports = load_sets(arguments, corpora)
    assert set(texts) == ({"test"} if streaming else {"train", "test"})
    assert reports["train"] == reports["test"]


def test_only_training_pairs_are_limited_in_length(tmp_path):
    """Otherwise, the scores would not be those of the complete test set."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("a\nb b b b b b\n")
    target.write_text("a\nb\n")
    corpora = {name: [ParallelText(source, target)] for name in ("train", "validation", "test")}
    data_args = DataArguments([str(source)], [str(target)], max_source_length=4)
    args = SimpleNamespace(bpe_dropout=0.0, augment=False)
    arguments = SimpleNamespace(corpora=corpora, data_args=data_args, args=args)
    tokenizer = RandomTransformerTokenizer.train(["a b"], vocab_size=270)
    texts, _ = load_sets(arguments, corpora)
    for name, count in (("train", 1), ("validation", 2), ("test", 2)):
        [tokens], [report] = tokenize_set(arguments, name, texts[name], tokenizer)
        assert (len(tokens), report.invalid) == (count, 2 - count)


@pytest.mark.parametrize(("configs", "streaming"), [(False, False), (True, False), (True, True)])
def test_dataset_folder_is_read_again_when_its_files_change(configs, streaming, tmp_path):
    """`datasets` identifies a folder with configurations by its name only."""

    def write(parent, texts):
        folder = tmp_path / parent / "corpus"
        folder.mkdir(parents=True, exist_ok=True)
        Dataset.from_list([{"source": text, "target": "x"} for text in texts]).to_parquet(folder / "train.parquet")
        if configs:
            files = "configs: [{config_name: main, data_files: [{split: train, path: train.parquet}]}]"
            (folder / "README.md").write_text(f"---\n{files}\n---\n")
        return folder

    def read(folder):
        [corpus] = DataArguments(dataset_name=str(folder), streaming=streaming).corpora("train")
        return [line.source for line in corpus.lines()], corpus.fingerprint()

    folder = write("one", ["a"])
    first = read(folder)
    (folder / "log.txt").write_text("not a data file")
    assert first == read(folder)
    later = [read(write("two", ["b"])), read(write("one", ["c", "d"]))]
    assert [texts for texts, _ in [first, *later]] == [["a"], ["b"], ["c", "d"]]
    assert len({fingerprint for _, fingerprint in [first, *later]}) == 3


@pytest.mark.parametrize("streaming", [False, True])
def test_segmentations_fit_the_learned_positions_with_a_tokenizer_of_another_model(streaming, corpus):
    """Its limit of 1024 tokens is that of its model."""
    files = [corpus / f"train.{side}" for side in "ab"]
    tokenizer = RandomTransformerTokenizer.train_from_files(files, vocab_size=340, model_max_length=1024)
    tokenizer.save_pretrained(corpus / "tokenizer")
    lengths = [len(tokenizer(line)["input_ids"]) for path in files for line in path.read_text().splitlines()]
    assert max(lengths) < 7  # six letters and the end token
    options = {"tokenizer": str(corpus / "tokenizer"), "vocab_size": None, "bpe_dropout": 0.9, "max_steps": 3}
    sizes = SIZES.replace("max_position_embeddings=16", f"max_position_embeddings={max(lengths)}")
    options["config_overrides"] = f"{sizes},position_embedding=learned"
    assert run(corpus, "out", **options, **UNSCORED, streaming=streaming).steps == 3


def test_unknown_dataset_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"dataset_name='.*nothing'.* must name a dataset"):
        DataArguments(dataset_name=str(tmp_path / "nothing")).corpora("train")


def test_the_reason_for_a_damaged_dataset(tmp_path):
    (tmp_path / "train.csv").write_text("source,target\na,b\na,b,c\n")
    with pytest.raises(ValueError, match=r"must name a dataset: .* in line 3, saw 3"):
        DataArguments(dataset_name=str(tmp_path)).corpora("train")


def test_several_corpora_without_weights_equal_one_corpus_of_them(trained, tmp_path):
    files = write_corpora(tmp_path)
    several = run(tmp_path, "several", **files)
    assert_equal_weights(several.folder, trained[1].folder)
    assert [report.lines for report in several.reports] == [90, 30, 12]
    assert all("large.a" in text for text in (str(several.reports[0]), (several.folder / "README.md").read_text()))


@pytest.mark.parametrize("streaming", [False, True])
def test_the_card_lists_the_corpora_and_their_weights(streaming, tmp_path):
    result = run(tmp_path, "out", **write_corpora(tmp_path), train_weights=[1, 3], streaming=streaming, max_steps=2)
    assert result.pairs == 120
    card = (result.folder / "README.md").read_text()
    assert "small.b` |  | 30 | 3 |" in card
    assert "large.b` |  | 90 | 1 |" in card


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("ab\nabc\n", "ba\n\n", r"small\.a and .*small\.b: 1 of 2 lines are invalid: .* \(line 2\)"),
        ("ab\nabc\n", "ba\n", r"small\.a and .*small\.b .*got 1 in .*small\.b and 2 in .*small\.a"),
        ("", "", r"there must be at least one valid pair of texts, got .*small\.a and"),
    ],
)
def test_an_invalid_corpus_is_named_before_training(source, target, message, streaming, tmp_path):
    files = write_corpora(tmp_path)
    (tmp_path / "small.a").write_text(source)
    (tmp_path / "small.b").write_text(target)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, "out", **files, streaming=streaming, train_weights=[1, 2])
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_every_validation_set_is_evaluated_whatever_its_name(corpus):
    for side in ("a", "b"):
        for name in ("validation", "talks"):
            (corpus / f"{name}.{side}").write_text((corpus / f"test.{side}").read_text())
    files = {
        f"validation_{kind}_file": [str(corpus / f"{name}.{side}") for name in ("validation", "talks")]
        for kind, side in (("source", "a"), ("target", "b"))
    }
    options = {"eval_strategy": "epoch", "prediction_loss_only": True, "metric_for_best_model": "talks_loss"}
    options |= {"save_strategy": "no", "save_steps": 1000, "max_steps": -1, "num_train_epochs": 1}
    result = run(corpus, "new", **UNSCORED, **files, **options)
    assert {"validation validation", "validation talks"} <= result.scores.keys()
    assert "`average_last`" not in (result.folder / "README.md").read_text()  # without checkpoints


def test_texts_of_other_sets_in_the_training_set_are_reported(corpus, caplog):
    sources = ["A dog, a cat!", "unseen words", "a DOG a cat", "a car"]
    (corpus / "test.a").write_text("\n".join(sources) + "\n")
    (corpus / "test.b").write_text("new\nnew\nnew\nein Auto\n")
    for side, added in (("a", "a dog a cat"), ("b", "EIN AUTO.")):
        with (corpus / f"train.{side}").open("a") as file:
            file.write(f"{added}\n")
    result = run(corpus, "new", max_steps=2)
    expected = "test: 2 sources and 1 targets of 4 pairs occur in the training set"
    assert result.overlap == {"test": {"pairs": 4, "source": 2, "target": 1}}
    assert f"{expected}; `clean --exclude` removes them." in caplog.messages
    assert f"- {expected}\n" in (result.folder / "README.md").read_text()

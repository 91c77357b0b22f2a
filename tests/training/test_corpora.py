"""Training on every kind of corpus: files, datasets and streams."""

import gzip

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from modeling_random_transformer.training import DataArguments
from tests.helpers.training import run, write_corpus


@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_different_lengths_raise_error_before_training(streaming, tmp_path):
    write_corpus(tmp_path)
    with (tmp_path / "train.a").open("a") as lines:
        lines.write("abc\n")
    with pytest.raises(ValueError, match=r"must have the same number of lines, got 121 and 120\."):
        run(tmp_path, "out", on_invalid="skip", streaming=streaming)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.slow
def test_streaming_run_resumes(tmp_path):
    """An interrupted run with workers ends with the weights of an uninterrupted run without workers."""
    write_corpus(tmp_path)
    options = {"streaming": True, "buffer_pairs": 50, "average_last": 1, "save_total_limit": 9}
    run(tmp_path, "whole", **options)
    options["dataloader_num_workers"] = 2
    run(tmp_path, "parts", **options)
    for step in (8, 10, 12):
        (tmp_path / "parts" / f"checkpoint-{step}" / "complete.json").unlink()
    (tmp_path / "parts" / "model.safetensors").unlink()
    result = run(tmp_path, "parts", **options)
    assert (result.steps, result.pairs) == (12, 120)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")]
    for name, weight in weights[0].items():
        assert torch.equal(weights[1][name], weight), name


@pytest.mark.parametrize("streaming", [False, True])
def test_training_on_a_dataset_of_datasets(streaming, tmp_path):
    write_corpus(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "test"):
        sides = [(tmp_path / f"{split}.{side}").read_text().splitlines() for side in "ab"]
        rows = [{"translation": {"en": source, "es": target}} for source, target in zip(*sides, strict=True)]
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    given = {"dataset_name": str(folder), "test_split": "test", "source_key": "en", "target_key": "es"}
    files = dict.fromkeys(("source_file", "target_file", "test_source_file", "test_target_file"))
    result = run(tmp_path, "out", **files, **given, streaming=streaming)
    assert (result.pairs, set(result.scores)) == (120, {"test"})


def test_training_on_a_compressed_table(tmp_path):
    write_corpus(tmp_path)
    texts = [(tmp_path / f"train.{side}").read_text().splitlines() for side in "ab"]
    rows = "".join(f"{source}\t7\t{target}\n" for source, target in zip(*texts, strict=True))
    path = tmp_path / "train.tsv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    given = {"source_file": None, "target_file": None, "train_file": str(path), "source_key": "1", "target_key": "3"}
    options = {**given, "test_source_file": None, "test_target_file": None, "max_steps": 2}
    assert run(tmp_path, "out", **options).pairs == 120
    with pytest.raises(ValueError, match="output_dir must be new or contain a run with the same arguments and data"):
        run(tmp_path, "out", **{**options, "target_key": "1"})


def test_training_on_standard_input_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match="the corpus must be in files, since it is read more than once"):
        run(
            tmp_path,
            "out",
            source_file=None,
            target_file=None,
            train_file="-",
            test_source_file=None,
            test_target_file=None,
        )


def test_unknown_dataset_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"dataset_name='.*nothing'.* must name a dataset"):
        DataArguments(dataset_name=str(tmp_path / "nothing")).text("train")

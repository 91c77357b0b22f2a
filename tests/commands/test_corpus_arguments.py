"""Arguments of the commands that pass parallel text through a model."""

import os
from pathlib import Path

import pytest

from modeling_random_transformer.commands.command_line import STANDARD_PATH
from modeling_random_transformer.commands.corpus_arguments import (
    CorpusArguments,
    CorpusOutputArguments,
    PairArguments,
)
from modeling_random_transformer.extras.pairs.alignments import Aligner
from tests.helpers.corpora import PAIRS, write_pairs

MODEL = [Path("missing")]


@pytest.fixture
def files(tmp_path):
    """The arguments with the two files of a corpus."""
    corpus = write_pairs(tmp_path, "aligned")
    return {"source_file": corpus.source, "target_file": corpus.target}


def pairs(corpus):
    return [(line.source, line.target) for line in corpus.lines()]


def test_a_corpus_is_two_files_or_the_columns_of_one(files, tmp_path):
    of_lines = CorpusArguments(model=MODEL, **files)
    assert (of_lines.has_columns, pairs(of_lines.corpus())) == (False, PAIRS)
    path = tmp_path / "pairs.tsv"
    path.write_text("id\ten\tes\n1\tone dog\tun perro\n")
    keys = {"source_key": "es", "target_key": "en"}
    of_columns = CorpusArguments(model=MODEL, source_file=path, **keys)
    assert (of_columns.has_columns, pairs(of_columns.corpus())) == (True, [("un perro", "one dog")])


@pytest.mark.parametrize("key", ["source_key", "target_key"])
@pytest.mark.parametrize("arguments", [CorpusArguments, CorpusOutputArguments, PairArguments])
def test_keys_of_files_without_columns_are_errors(arguments, key, files):
    with pytest.raises(ValueError, match="--source_key and --target_key must be unset with --target_file, got "):
        arguments(model=MODEL, **files, **{key: "en"})


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("side", ["source_file", "target_file"])
def test_an_input_is_never_the_output(side, overwrite, files):
    with pytest.raises(ValueError, match=f"--output must differ from {side}, got "):
        CorpusOutputArguments(model=MODEL, **files, output=files[side], overwrite=overwrite)


def test_an_output_that_exists_must_be_overwritten_explicitly(files, tmp_path):
    output = tmp_path / "out.txt"
    output.write_text("earlier\n")
    with pytest.raises(ValueError, match="--output must be a new file without --overwrite, got "):
        CorpusOutputArguments(model=MODEL, **files, output=output)
    assert CorpusOutputArguments(model=MODEL, **files, output=output, overwrite=True).output == output


def test_restart_without_files_is_an_error_before_the_model_is_loaded(files):
    arguments = PairArguments(model=MODEL, **files, restart=True)
    with pytest.raises(ValueError, match=r"--restart must be given with a file .* got .*a\.en and -\."):
        arguments.write_lines(pytest.fail, str, {})


def test_a_pipe_cannot_be_read_more_than_once(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    arguments = PairArguments(model=MODEL, **files | {"target_file": tmp_path / "pipe"}, output=tmp_path / "out.txt")
    with pytest.raises(ValueError, match=r"the corpus must be in files, .* got the pipe .*pipe\."):
        arguments.write_lines(pytest.fail, str, {})


@pytest.mark.usefixtures("_reset_accelerate")
@pytest.mark.parametrize("is_resumable", [True, False])
def test_lines_are_written_in_parts_from_file_to_file_only(is_resumable, files, translator_folder, tmp_path):
    lines = ["first"]

    def line_of(_):
        if not lines:
            raise OSError("no space")
        return lines.pop()

    options = {"output": tmp_path / "out.txt" if is_resumable else STANDARD_PATH, "chunk_size": 1}
    arguments = PairArguments(model=[translator_folder], **files, **options)
    with pytest.raises(OSError, match="no space"):
        arguments.write_lines(Aligner, line_of, {})
    assert len([*tmp_path.glob("out.txt.parts/0*.txt")]) == is_resumable
    if is_resumable:
        lines += ["last", "third", "second"]
        arguments.write_lines(Aligner, line_of, {})
        assert options["output"].read_text() == "first\nsecond\nthird\nlast\n"

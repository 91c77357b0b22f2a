"""Archives with the layouts of OPUS-MT and fairseq: they are converted as their folders are, in one command."""

import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_archive, convert_fairseq, convert_marian_npz
from modeling_random_transformer.extras.conversion.marian_npz_files import read_vocabulary
from tests.helpers.conversion import check_conversion_error
from tests.helpers.fairseq import SOURCE_TOKENS, TARGET_TOKENS, checkpoint, words, write_dictionary
from tests.helpers.marian_npz import opus_folder

WMT = "wmt19.en-de.joined-dict.ensemble"
CODES = "#version: 0.2\nt e\nte s</w>\n"
HIDDEN = b"\0\5\x16\7"  # the start of the AppleDouble files that macOS adds


def tar_folder(folder: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, f"{WMT}/{file.name}")
    return path


def wmt_folder(path: Path, models=1, joined=False, languages=("en", "de"), layout="args") -> Path:
    """The files of fairseq's WMT19 models: an ensemble, the dictionaries of both languages and BPE codes."""
    path.mkdir()
    source, target = words(SOURCE_TOKENS - 4, "s"), words(TARGET_TOKENS - 4, "t")
    changes = {"share_all_embeddings": joined, "source_lang": languages[0], "target_lang": languages[1]}
    for i in range(1, models + 1):
        torch.save(checkpoint(layout, seed=i, **changes), path / f"model{i}.pt")
    write_dictionary(path / "dict.en.txt", source)
    write_dictionary(path / "dict.de.txt", source if joined else target)
    (path / "bpecodes").write_text(CODES)
    (path / "README.md").write_text("text")
    return path


def same_folders(first: Path, second: Path) -> bool:
    first_weights, second_weights = (
        AutoModelForSeq2SeqLM.from_pretrained(path).state_dict() for path in (first, second)
    )
    names = [path.name for path in first.iterdir() if path.suffix in (".json", ".spm")]
    same_files = all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    return same_files and all(
        torch.equal(first_weights[name], second_weights[name]) for name in {*first_weights, *second_weights}
    )


def test_zip_of_opus_mt(tmp_path):
    folder = tmp_path / "opus"
    opus_folder(folder)
    shutil.copy(next(folder.glob("*.npz")), folder / "a.npz.optimizer.npz")  # Marian's training state
    for file in list(folder.iterdir()):
        (folder / f"._{file.name}").write_bytes(HIDDEN)
    with zipfile.ZipFile(tmp_path / "opus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"opus-2020-02-26/{file.name}")
    report = convert_archive(tmp_path / "opus.zip", tmp_path / "out")
    convert_marian_npz(folder, tmp_path / "expected")
    assert same_folders(tmp_path / "out", tmp_path / "expected")
    assert report.origin.startswith(str(tmp_path / "opus.zip"))
    assert report.notes[0].startswith("Read from the archive: ")
    assert "decoder.yml" in report.notes[0]
    assert not any(name in report.notes[0] for name in ("README", "._", "optimizer"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "opus", "opus.zip", "out"]


@pytest.mark.parametrize("suffix", [".vocab", ".json", ".vocab.txt"])
def test_zip_with_a_vocabulary_that_the_options_name(suffix, tmp_path):
    folder, vocabulary = tmp_path / "opus", f"opus{suffix}"
    opus_folder(folder)
    path = folder / "opus.spm32k-spm32k.vocab.yml"
    convert_marian_npz(folder, tmp_path / "expected")
    ids = read_vocabulary(path)
    path.unlink()
    text = json.dumps(ids) if suffix == ".json" else "".join(f"{token}\n" for token in ids)
    (folder / vocabulary).write_text(text, encoding="utf-8")
    (folder / "decoder.yml").write_text((folder / "decoder.yml").read_text().replace(path.name, vocabulary))
    with zipfile.ZipFile(tmp_path / "opus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"opus/{file.name}")
    convert_archive(tmp_path / "opus.zip", tmp_path / "out")
    assert same_folders(tmp_path / "out", tmp_path / "expected")


@pytest.mark.parametrize(
    ("mode", "name", "number"),
    [("w", None, 1), ("w:gz", "model2.pt", 2), ("w:bz2", None, 1), ("w:xz", f"{WMT}/model2.pt", 2)],
)
def test_tar_of_fairseq(mode, name, number, tmp_path):
    """The first model of the ensemble is converted by default. The format is that of the content, not of the name."""
    folder = wmt_folder(tmp_path / "wmt19", models=2, joined=True)
    (folder / "._model1.pt").write_bytes(HIDDEN)
    archive = tar_folder(folder, tmp_path / "model.tar.gz", mode)
    report = convert_archive(archive, tmp_path / "out", model=name)
    convert_fairseq(folder / f"model{number}.pt", tmp_path / "expected")  # with the files next to it
    assert same_folders(tmp_path / "out", tmp_path / "expected")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("tes")[0] == "tes</w>"
    assert f"which were not converted: {WMT}/model{3 - number}.pt" in report.notes[1]


@pytest.mark.parametrize("place", ["args", "cfg", "task"])
def test_languages_of_the_checkpoint(place, tmp_path):
    """The checkpoint stores which dictionary is the source's."""
    layout, languages = ("cfg", (None, None)) if place == "task" else (place, ("en", "de"))
    folder = wmt_folder(tmp_path / "en-de", layout=layout, languages=languages)
    if place == "task":
        content = torch.load(folder / "model1.pt", weights_only=False)
        content["cfg"]["task"] = {"source_lang": "en", "target_lang": "de"}
        torch.save(content, folder / "model1.pt")
    convert_archive(tar_folder(folder, tmp_path / "a.tar"), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("s0</w>") == 4


def test_codes_of_each_language(tmp_path):
    folder = wmt_folder(tmp_path / "wmt")
    (folder / "bpecodes").rename(folder / "bpecodes.en")
    (folder / "bpecodes.de").write_text("#version: 0.2\nu v</w>\n")
    convert_archive(tar_folder(folder, tmp_path / "a.tar"), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("tes") == ["tes</w>"]
    assert tokenizer(text_target="uv").tokens() == ["uv</w>", "</s>"]


def renamed(folder):
    (folder / "dict.de.txt").rename(folder / "dict.fr.txt")


@pytest.mark.parametrize(
    ("languages", "change", "message"),
    [
        (("de", "en"), None, r"model1\.pt must have as many rows as tokens, 29, got 37"),
        (("en", "de"), renamed, r"of dict\.<language>\.txt, or those of en and de, got"),
        ((None, None), None, r"target, which the checkpoint must store, got dict\.de\.txt, dict\.en\.txt"),
        (
            ("en", "de"),
            lambda f: (f / "codes").write_text(CODES),
            "BPE codes, or those of en and de, got bpecodes, codes",
        ),
        (("en", "de"), lambda f: (f / "model1.pt").write_bytes(b"x"), r"model1\.pt must be a complete file of weights"),
    ],
)
def test_files_that_do_not_match(languages, change, message, tmp_path):
    """The errors name the archive, not the temporary folder."""
    folder = wmt_folder(tmp_path / "wmt", languages=languages)
    if change:
        change(folder)
    archive = tar_folder(folder, tmp_path / "a.tar.gz")
    check_conversion_error(
        rf"^(?!.*\.out\.).*a\.tar\.gz.*{message}", tmp_path, convert_archive, archive, tmp_path / "out"
    )

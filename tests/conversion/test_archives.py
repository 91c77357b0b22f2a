"""Archives with the layouts of OPUS-MT and fairseq: they are converted as their folders are, in one command."""

import shutil
import tarfile
import zipfile

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.commands import convert as command
from modeling_random_transformer.conversion import convert_archive, convert_fairseq, convert_marian_npz
from modeling_random_transformer.conversion.fairseq import convert_fairseq_folder
from tests.helpers.conversion import check_refused
from tests.helpers.fairseq import SOURCE_TOKENS, TARGET_TOKENS, checkpoint, words, write_dictionary
from tests.helpers.marian_npz import opus_folder, spm_folder

WMT = "wmt19.en-de.joined-dict.ensemble"
CODES = "#version: 0.2\nt e\nte s</w>\n"


def zip_folder(folder, path, prefix=""):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{prefix}{file.name}")
    return path


def tar_folder(folder, path, mode="w:gz", prefix=f"{WMT}/"):
    with tarfile.open(path, mode) as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, f"{prefix}{file.name}")
    return path


def wmt_folder(path, models=2, joined=True, languages=("en", "de"), layout="args"):
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


def same_model(first, second):
    weights, others = (AutoModelForSeq2SeqLM.from_pretrained(path).state_dict() for path in (first, second))
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("prefix", ["./", "opus-2020-02-26/"])
def test_zip_of_opus_mt(prefix, tmp_path):
    opus_folder(tmp_path / "opus")
    archive = zip_folder(tmp_path / "opus", tmp_path / "opus.zip", prefix)
    report = convert_archive(archive, tmp_path / "out")
    convert_marian_npz(tmp_path / "opus", tmp_path / "expected")
    assert same_model(tmp_path / "out", tmp_path / "expected")
    for name in ("vocab.json", "tokenizer_config.json", "source.spm", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert report.notes[0].startswith("Read from the archive: ")
    assert "README" not in report.notes[0]
    assert "decoder.yml" in report.notes[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "opus", "opus.zip", "out"]


@pytest.mark.parametrize(
    ("mode", "name", "number"),
    [("w", None, 1), ("w:gz", "model2.pt", 2), ("w:bz2", None, 1), ("w:xz", f"{WMT}/model2.pt", 2)],
)
def test_tar_of_fairseq(mode, name, number, tmp_path):
    """The first model of the ensemble is converted by default. The format is that of the content, not of the name."""
    folder = wmt_folder(tmp_path / "wmt19")
    archive = tar_folder(folder, tmp_path / "model.tar.gz", mode)
    report = convert_archive(archive, tmp_path / "out", model=name)
    files = {"source_dict": folder / "dict.en.txt", "target_dict": folder / "dict.de.txt"}
    convert_fairseq(folder / f"model{number}.pt", tmp_path / "expected", **files, source_codes=folder / "bpecodes")
    assert same_model(tmp_path / "out", tmp_path / "expected")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("tes")[0] == "tes</w>"
    assert f"which were not converted: {WMT}/model{3 - number}.pt" in report.notes[1]


@pytest.mark.parametrize("layout", ["args", "cfg", "nested"])
def test_languages_of_the_checkpoint(layout, tmp_path):
    """The checkpoint stores which dictionary is the source's."""
    folder = wmt_folder(tmp_path / "en-de", joined=False, layout=layout)
    convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("s0</w>") == 4
    folder = wmt_folder(tmp_path / "de-en", joined=False, layout=layout, languages=("de", "en"))
    with pytest.raises(ValueError, match=r"b\.tar\.gz/dict\.de\.txt must have a token for each row of the encoder's"):
        convert_archive(tar_folder(folder, tmp_path / "b.tar.gz"), tmp_path / "other")


def test_languages_in_the_task(tmp_path):
    folder = wmt_folder(tmp_path / "wmt19", models=1, joined=False, languages=(None, None), layout="cfg")
    content = torch.load(folder / "model1.pt", weights_only=False)
    content["cfg"]["task"] = {"source_lang": "en", "target_lang": "de"}
    torch.save(content, folder / "model1.pt")
    convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("s0</w>") == 4


def test_codes_of_each_language(tmp_path):
    folder = wmt_folder(tmp_path / "wmt", models=1, joined=False)
    (folder / "bpecodes").rename(folder / "bpecodes.en")
    (folder / "bpecodes.de").write_text("#version: 0.2\nu v</w>\n")
    convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("tes") == ["tes</w>"]
    assert tokenizer(text_target="uv").tokens() == ["uv</w>", "</s>"]


def test_model_without_dictionaries(tmp_path):
    folder = tmp_path / "wmt"
    folder.mkdir()
    torch.save(checkpoint(), folder / "model.pt")
    report = convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "dict.fr.txt").write_text("a 1\n"), None),
        (
            lambda f: (f / "dict.de.txt").rename(f / "dict.fr.txt"),
            r"of dict\.<language>\.txt, or those of en and de, got",
        ),
        (lambda f: (f / "codes").write_text(CODES), "one file of BPE codes, or those of en and de, got none"),
        (lambda f: (f / "bpecodes").write_text("x\n"), r"a\.tar\.gz/bpecodes must have two symbols on each line"),
        (lambda f: (f / "model1.pt").write_bytes(b"x"), r"a\.tar\.gz/model1\.pt must be a complete file of weights"),
    ],
)
def test_files_that_do_not_match(change, message, tmp_path):
    folder = wmt_folder(tmp_path / "wmt", models=1, joined=False)
    change(folder)
    archive = tar_folder(folder, tmp_path / "a.tar.gz")
    shutil.rmtree(folder)
    if message is None:
        convert_archive(archive, tmp_path / "out")
        return
    check_refused(rf"^(?!.*\.out\.).*{message}", tmp_path, convert_archive, archive, tmp_path / "out")


def test_unknown_languages(tmp_path):
    folder = wmt_folder(tmp_path / "wmt", models=1, joined=False, languages=(None, None))
    message = r"those of the source and the target, which the checkpoint must store, got dict\.de\.txt, dict\.en\.txt"
    with pytest.raises(ValueError, match=message):
        convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / "out")


def test_training_state_is_not_a_model(tmp_path):
    spm_folder(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "model.npz", tmp_path / "model" / "a.npz.optimizer.npz")
    (tmp_path / "model" / "._a.npz").write_bytes(b"x")  # as macOS adds
    report = convert_archive(zip_folder(tmp_path / "model", tmp_path / "m.zip"), tmp_path / "out")
    assert "model.npz, vocab.spm" in report.notes[0]


def with_hidden_copies(folder):
    """Add the AppleDouble files of macOS."""
    for file in list(folder.iterdir()):
        (folder / f"._{file.name}").write_bytes(b"\0\5\x16\7")
    return folder


def test_hidden_files(tmp_path):
    spm_folder(tmp_path / "model")
    for folder, convert, name in (
        (wmt_folder(tmp_path / "wmt", models=1), convert_fairseq_folder, "model1.pt"),
        (tmp_path / "model", convert_marian_npz, ""),
    ):
        with_hidden_copies(folder)
        report = convert_archive(tar_folder(folder, tmp_path / "a.tar.gz"), tmp_path / f"{folder.name}-archive")
        assert "._" not in report.notes[0]
        convert(folder / name, tmp_path / f"{folder.name}-folder")
        assert same_model(tmp_path / f"{folder.name}-archive", tmp_path / f"{folder.name}-folder")


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    spm_folder(tmp_path / "model")
    archive = zip_folder(tmp_path / "model", tmp_path / "model.zip")
    assert command.main([str(archive), str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "encoder_l1–2_self_Wq" in shown
    assert "model.encoder.layers.0–1.self_attn.q_proj.weight" in shown
    assert "not compared" in shown
    archive = archive.rename(tmp_path / "A.ZIP")
    assert command.main([str(archive), str(tmp_path / "other"), "--model", "model9.npz"]) == 2
    error = capsys.readouterr().err
    assert error == "random-transformer convert: error: model must be one of model.npz, got 'model9.npz'.\n"
    assert not (tmp_path / "other").exists()

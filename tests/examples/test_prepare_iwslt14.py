"""The data of IWSLT 2014 from an archive with its files."""

import io
import tarfile

import prepare_iwslt14
import pytest

TRAINING = {
    "de": ["<url>http://x</url>", "<title>Ein Titel</title>", "Hallo, Welt!", "Ja.", "", "<keywords>a</keywords>"],
    "en": [
        "<url>http://x</url>",
        "<title>A title</title>",
        "Hello, world!",
        "This is much too long.",
        "Empty.",
        "<keywords>a</keywords>",
    ],
}
TEST = {"de": '<seg id="1"> Wie geht\'s? </seg>', "en": '<seg id="1"> What’s up? </seg>'}


def write_archive(path, without=None, repeat=46):
    files = {
        f"train.tags.de-en.{code}": lines[:2] + lines[2:3] * repeat + lines[3:] for code, lines in TRAINING.items()
    }
    files |= {name.format(code): ["<doc>", TEST[code], "</doc>"] for name in prepare_iwslt14.TEST for code in TEST}
    with tarfile.open(path, "w:gz") as archive:
        for name, lines in files.items():
            if name != without:
                content = "\n".join(lines).encode()
                member = tarfile.TarInfo(f"de-en/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def test_sets(tmp_path, capsys):
    archive, folder = write_archive(tmp_path / "de-en.tgz"), tmp_path / "data"
    assert prepare_iwslt14.main([str(archive), "--output_dir", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == ["train: 45 pairs", "validation: 2 pairs", "test: 5 pairs"]
    lines = {path.name: path.read_text().splitlines() for path in folder.iterdir()}
    assert (lines["train.de"][:2], lines["train.en"][:2]) == (
        ["ein titel", "hallo , welt !"],
        ["a title", "hello , world !"],
    )
    assert lines["test.de"] == ["wie geht &apos; s ?"] * 5
    assert lines["test.en"] == ["what &apos;s up ?"] * 5
    assert prepare_iwslt14.main([str(archive), "--output_dir", str(folder)]) == 2  # nothing is overwritten


@pytest.mark.parametrize("damage", ["IWSLT14.TED.tst2011.de-en.en.xml", "train.tags.de-en.de", "no archive"])
def test_invalid_archives(damage, tmp_path, capsys):
    archive = write_archive(tmp_path / "de-en.tgz", without=damage)
    if damage == "no archive":
        archive.write_bytes(b"text")
    assert prepare_iwslt14.main([str(archive), "--output_dir", str(tmp_path / "data")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ("must be a tar archive" if damage == "no archive" else f"must contain the file de-en/{damage}") in line
    assert not (tmp_path / "data").exists()

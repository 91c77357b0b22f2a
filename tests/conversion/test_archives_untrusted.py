"""Archives with unsafe members, of a wrong size or damaged: each raises a one-line error, and nothing is written."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from modeling_random_transformer.conversion import archives as members
from modeling_random_transformer.conversion import convert_archive
from tests.helpers.conversion import check_refused
from tests.helpers.marian_npz import save_npz

UNSAFE = ["../model.npz", "/model.npz", "a/../../model.npz", "..", "a\\..\\model.npz", "C:/model.npz", "C:model.npz"]


@pytest.fixture
def model(tmp_path):
    return save_npz(tmp_path / "model.npz").read_bytes()


def write_zip(path, *entries):
    """Write entries of a name or a `ZipInfo`, and the content."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


def write_tar(path, *entries, mode="w:gz"):
    """Write entries of a `TarInfo` and the content, if it is a file."""
    with tarfile.open(path, mode) as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_info(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def check_error(archive, message, tmp_path):
    check_refused(message, tmp_path, convert_archive, archive, tmp_path / "out")


@pytest.mark.parametrize("name", UNSAFE)
def test_path_outside_of_the_archive(name, model, tmp_path):
    """Also if the member is not needed."""
    for entries in ([(name, model)], [("model.npz", model), (name, b"x")]):
        archive = write_zip(tmp_path / "a.zip", *entries)
        check_error(archive, r"must contain relative paths without '\.\.', got ", tmp_path)
        archive = write_tar(tmp_path / "a.tar.gz", *((tar_info(name), content) for name, content in entries))
        check_error(archive, r"must contain relative paths without '\.\.', got ", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_special_file_in_tar(kind, model, tmp_path):
    link = (tar_info("vocab.spm", kind, "/etc/passwd"), b"")
    archive = write_tar(tmp_path / "a.tar.gz", link, (tar_info("model.npz"), model))
    check_error(archive, "must contain only files and folders, got 'vocab.spm', which is a link or a device", tmp_path)


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_special_file_in_zip(mode, model, tmp_path):
    info = zipfile.ZipInfo("vocab.spm")
    info.external_attr = (mode | 0o777) << 16
    archive = write_zip(tmp_path / "a.zip", ("model.npz", model), (info, "/etc/passwd"))
    check_error(archive, "must contain only files and folders, got 'vocab.spm'", tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_repeated_file(name, model, tmp_path):
    for second in ("model.npz", "./model.npz"):
        archive = write_both(tmp_path / name, [("model.npz", model), (second, model)])
        check_error(archive, "must contain each file once, got 'model.npz' again", tmp_path)


def write_both(path, entries):
    if path.suffix == ".zip":
        return write_zip(path, *entries)
    return write_tar(path, *((tar_info(name), content) for name, content in entries))


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [("MAX_MEMBERS", 2, "at most 2 members"), ("MAX_BYTES", 2**11, "at most 0 GiB of files, got more. Extract")],
)
def test_limits(name, limit, value, message, tmp_path, monkeypatch):
    monkeypatch.setattr(members, limit, value)
    archive = write_both(tmp_path / name, [(f"{i}.txt", bytes(1000)) for i in range(3)])
    check_error(archive, message, tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_number_of_folders(name, tmp_path, monkeypatch):
    monkeypatch.setattr(members, "MAX_MEMBERS", 2)
    folders = [f"{i}/" for i in range(3)]
    if name == "a.zip":
        archive = write_zip(tmp_path / name, *((folder, b"") for folder in folders))
    else:
        archive = write_tar(tmp_path / name, *((tar_info(folder, tarfile.DIRTYPE), b"") for folder in folders))
    check_error(archive, "at most 2 members, got more", tmp_path)


def test_size_of_a_tar_is_checked_before_it_is_decompressed(tmp_path):
    """The header claims more than the limit; the content does not exist."""
    info = tar_info("model.npz")
    info.size = 2**36
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(info.tobuf() + bytes(1024)))
    check_error(tmp_path / "a.tar.gz", "at most 32 GiB of files", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_size_of_an_extended_header(kind, tmp_path):
    """tarfile reads such a header at once."""
    info = tar_info("model.npz", kind)
    info.size = 2**33
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(info.tobuf(format=tarfile.GNU_FORMAT) + bytes(1024)))
    check_error(tmp_path / "a.tar.gz", "must have headers of at most", tmp_path)


def test_size_of_a_vocabulary(model, tmp_path, monkeypatch):
    from modeling_random_transformer.conversion import archives as convert

    monkeypatch.setattr(convert, "MAX_COMPANION_BYTES", 10)
    archive = write_zip(tmp_path / "a.zip", ("model.npz", model), ("vocab.yml", bytes(11)))
    check_error(archive, "vocabularies of at most 10 bytes, got 'vocab.yml' of 11 bytes", tmp_path)


def test_size_in_a_zip_is_not_exceeded(model, tmp_path):
    """The directory of the archive claims a smaller size than the content has."""
    archive = write_zip(tmp_path / "a.zip", ("model.npz", model))
    content = archive.read_bytes()
    size = len(model).to_bytes(4, "little")
    archive.write_bytes(content.replace(size, (10).to_bytes(4, "little")))
    check_error(archive, "must be a complete zip or tar archive", tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.8])
def test_truncated(name, part, model, tmp_path):
    path = tmp_path / name
    if name == "a.zip":
        write_zip(path, ("model.npz", model))
    else:
        write_tar(path, (tar_info("model.npz"), model), mode=f"w:{path.suffix[1:]}".replace("w:tar", "w"))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    check_error(path, "must be a complete zip or tar archive|must contain a Marian model|complete .npz", tmp_path)


def test_damaged_content(model, tmp_path):
    archive = write_zip(tmp_path / "a.zip", ("model.npz", model))
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    check_error(archive, "must be a complete zip or tar archive", tmp_path)


def test_encrypted(model, tmp_path):
    archive = write_zip(tmp_path / "a.zip", ("model.npz", model))
    content = archive.read_bytes()
    header = content.rindex(b"PK\x01\x02")
    archive.write_bytes(content[: header + 8] + b"\x01" + content[header + 9 :])
    check_error(archive, "must not be encrypted, but 'model.npz' is", tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], r"must contain a Marian model \(.npz\) or a fairseq model \(.pt\), got no files"),
        ([("README.md", b"x"), ("a/vocab.spm", b"x")], r"got README\.md, a/vocab\.spm"),
        ([("model.intgemm.alphas.bin", b"x")], r"got model\.intgemm\.alphas\.bin: binary models of Marian, which are"),
        ([("model.npz", b"x")], r"a\.zip/model\.npz must be a complete \.npz file"),
    ],
)
def test_archive_without_a_model(entries, message, tmp_path):
    check_error(write_zip(tmp_path / "a.zip", *entries), message, tmp_path)


def test_file_of_another_format(tmp_path):
    (tmp_path / "a.zip").write_text("text" * 1000)
    check_error(tmp_path / "a.zip", "must be a complete zip or tar archive", tmp_path)


def test_missing_archive(tmp_path):
    check_error(tmp_path / "a.zip", "archive must be an existing file, got ", tmp_path)


def test_output_is_checked_first(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("x")
    check_error(tmp_path / "a.zip", "output must be a new or an empty folder", tmp_path)
    with pytest.raises(ValueError, match="output must be in a folder that exists"):
        convert_archive(tmp_path / "a.zip", tmp_path / "missing" / "out")

"""Archives with unsafe members, of a wrong size or damaged: each raises a one-line error, and nothing is written."""

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from modeling_random_transformer.extras.conversion import archives, convert_archive
from tests.helpers.conversion import check_conversion_error
from tests.helpers.marian_npz import save_npz

OUTSIDE = r"must contain relative paths without '\.\.', got "
BOTH = pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])


def write(path: Path, *entries, mode: str = "w:gz") -> Path:
    """Write a zip or tar archive of names, `ZipInfo` or `TarInfo`, and the content."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries:
                archive.writestr(name, content)
        return path
    with tarfile.open(path, mode) as archive:
        for name, content in entries:
            info = name if isinstance(name, tarfile.TarInfo) else tar_info(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def check_error(archive: Path, message: str, tmp_path: Path) -> None:
    check_conversion_error(message, tmp_path, convert_archive, archive, tmp_path / "out")


@BOTH
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        *((path, b"x", OUTSIDE) for path in ("../model.npz", "/model.npz", "a/../../model.npz", "..")),
        *((path, b"x", OUTSIDE) for path in ("a\\..\\model.npz", "C:model.npz", "/\x1b[31mred")),
        ("./model.npz", b"x", "must contain each file once, got 'model.npz' again"),
        ("x", bytes(2**25), "must be compressed at most 20 times, to 16777216 bytes, got 33554433"),
        ("vocab.yml", bytes(11), "vocabularies of at most 10 bytes, got 'vocab.yml' of 11 bytes"),
        ("source.spm", b"x", "output must be on a disk with 4 free bytes, got 3"),
    ],
)
def test_members(member, content, message, name, tmp_path, monkeypatch):
    """Also a member that is not needed is checked."""
    monkeypatch.setattr(archives, "MAX_COMPANION_BYTES", 10)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=3))
    check_error(write(tmp_path / name, ("model.npz", b"x"), (member, content)), message, tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, stat.S_IFLNK])
def test_special_file(kind, tmp_path):
    entries = [(tar_info("vocab.spm", kind, "/etc/passwd"), b""), ("model.npz", b"x")]
    if kind == stat.S_IFLNK:
        link = zipfile.ZipInfo("vocab.spm")
        link.external_attr = (kind | 0o777) << 16
        entries[0] = (link, "/etc/passwd")
    archive = write(tmp_path / ("a.zip" if kind == stat.S_IFLNK else "a.tar.gz"), *entries)
    check_error(archive, "must contain only files and folders, got 'vocab.spm', a link or a device", tmp_path)


@BOTH
def test_number_of_members(name, tmp_path, monkeypatch):
    """Folders count too."""
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    folders = [f"{i}/" if name == "a.zip" else tar_info(f"{i}", tarfile.DIRTYPE) for i in range(3)]
    check_error(write(tmp_path / name, *((folder, b"") for folder in folders)), "at most 2 members, got more", tmp_path)


def pax_header(records: int, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Complete records: Python 3.13, and the last releases of 3.11 and 3.12, reject others before the limit counts."""
    content = (b"30 comment=" + b"x" * 18 + b"\n") * records
    info = tar_info("header", kind, size=len(content))
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def long_name(size: int) -> bytes:
    return tar_info("x", tarfile.GNUTYPE_LONGNAME, size=size).tobuf(tarfile.GNU_FORMAT) + b"n" * size


def sparse_file() -> bytes:
    info = tar_info("model.npz")
    info.pax_headers = {"GNU.sparse.size": str(2**31), "GNU.sparse.map": f"0,0,{2**31},0"}
    return info.tobuf(tarfile.PAX_FORMAT)


LARGE_HEADERS = [pax_header(2**14), pax_header(2**14, tarfile.XGLTYPE), long_name(2**19)]
SMALL_HEADERS = [pax_header(1), pax_header(1, tarfile.XGLTYPE), long_name(512)]  # tarfile reads them by recursion


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (tar_info("model.npz", size=2**36).tobuf(), "compressed at most 20 times"),
        (sparse_file(), "compressed at most 20 times"),
        (tar_info("x", tarfile.XHDTYPE, size=2**33).tobuf(tarfile.GNU_FORMAT), "must have headers of at most"),
        (tar_info("x", tarfile.GNUTYPE_LONGNAME, size=2**33).tobuf(tarfile.GNU_FORMAT), "must have headers of at most"),
        *((chain * 40, "must have headers of at most 16777216 bytes, got more") for chain in LARGE_HEADERS),
        *((chain * 2000, "must be a complete zip or tar archive") for chain in SMALL_HEADERS),
    ],
    ids=[
        *("size", "sparse", "pax header", "long name"),
        *("chained headers", "chained global headers", "chained long names"),
        *("many headers", "many global headers", "many long names"),
    ],
)
def test_headers_of_tar(header, message, tmp_path):
    """Sizes are checked before tarfile reads what they describe, which need not exist."""
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(header + bytes(1024)))
    check_error(tmp_path / "a.tar.gz", message, tmp_path)


def smaller_size(content: bytes) -> bytes:
    """The directory of the archive claims a smaller size than the content has."""
    size = zipfile.ZipFile(io.BytesIO(content)).infolist()[0].file_size
    return content.replace(size.to_bytes(4, "little"), (10).to_bytes(4, "little"))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def encrypted(content: bytes) -> bytes:
    header = content.rindex(b"PK\x01\x02")
    return content[: header + 8] + b"\x01" + content[header + 9 :]


def cut(part: float):
    return lambda content: content[: int(part * len(content))]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("a.zip", change) for change in (smaller_size, flipped, encrypted, lambda _: b"text" * 1000)),
        *(
            (name, cut(part))
            for name in ("a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar")
            for part in (0.02, 0.8)
        ),
    ],
)
def test_damaged_file(name, change, tmp_path):
    mode = f"w:{name.split('.')[2]}" if name.count(".") > 1 else "w"
    model = save_npz(tmp_path / "model.npz").read_bytes()
    path = write(tmp_path / name, ("model.npz", model), mode=mode)
    path.write_bytes(change(path.read_bytes()))
    check_error(path, r"must be a complete zip or tar archive|complete \.npz", tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], r"must contain a \.pt file of fairseq or a \.npz file of Marian .*, got no files"),
        ([("model.intgemm.alphas.bin", b"x")], r"packed or have integers, .* got model\.intgemm\.alphas\.bin"),
        ([("model.npz", b"x")], r"a\.zip/model\.npz must be a complete \.npz file"),
    ],
)
def test_archive_without_a_model(entries, message, tmp_path):
    check_error(write(tmp_path / "a.zip", *entries), message, tmp_path)


def test_name_of_another_model(tmp_path):
    archive = write(tmp_path / "a.zip", ("model.npz", b"x"))
    message = r"model must be one of model\.npz, got 'other\.npz'"
    check_conversion_error(message, tmp_path, convert_archive, archive, tmp_path / "out", model="other.npz")


def test_output_is_checked_first(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("x")
    check_error(tmp_path / "a.zip", "output must be a new or an empty folder", tmp_path)

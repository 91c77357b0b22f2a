"""Zip archives of aligned text, as OPUS publishes them, also damaged and hostile ones."""

import zipfile

import pytest

from modeling_random_transformer.data import ParallelLine, ParallelText, read_texts
from modeling_random_transformer.inputs_random_transformer import Languages

FILES = {
    "README": "about",
    "LICENSE": "free",
    "Books.en-es.en": "one\ntwo\n",
    "Books.en-es.es": "uno\ndos\n",
    "Books.en-es.ids": "1\n2\n",
}
KEYS = {"source_key": "en", "target_key": "es"}


@pytest.fixture
def archive(tmp_path):
    """Write an archive."""

    def archive(files, compression=zipfile.ZIP_DEFLATED):
        path = tmp_path / "en-es.txt.zip"
        with zipfile.ZipFile(path, "w", compression) as file:
            for name, content in files.items():
                file.writestr(name, content)
        return path

    return archive


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_pair_of_files(archive, compression):
    path = archive(FILES | {"__MACOSX/._Books.en-es.en": "?"}, compression)
    languages = Languages("en", "es-MX")
    expected = [(1, "one", "uno"), (2, "two", "dos")]
    assert [*ParallelText(path, **KEYS).lines()] == [ParallelLine(*line) for line in expected]
    assert [*ParallelText(path, languages=languages).lines()] == [ParallelLine(*line, languages) for line in expected]
    assert list(read_texts(path, "es")) == ["uno", "dos"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"Other.en": "x", "Other.es": "y"},
            r"contain one corpus, such as corpus\.en and corpus\.es, got the files README, LICENSE, Books",
        ),
        ({"old/Books.en-es.en": "x"}, r"contain one corpus, such as corpus\.en and corpus\.es, got the files README"),
        ({"Books.en-es.es": None}, r"contain one corpus, such as corpus\.en and corpus\.es, got the files README"),
        (dict.fromkeys(FILES), r"contain one corpus, such as corpus\.en and corpus\.es, got the files none"),
        ({"Books.en-es.es": "uno\n"}, r"have the same number of lines, got 1 in .*Books\.en-es\.es and 2 in .*\.en"),
        ({"Books.en-es.es": "\n" * 2**25}, r"have files of at most 16777216 bytes, got Books\.en-es\.es of 33554432 b"),
        ({"Books.en-es.es": "uno\nd\0s\n"}, r"be text without NUL characters, got one in line 2"),
    ],
    ids=["two corpora", "twice", "one side", "no files", "lines", "bomb", "NUL"],
)
def test_other_contents_are_errors(archive, changes, message):
    files = {name: content for name, content in (FILES | changes).items() if content is not None}
    path = archive(files)
    with pytest.raises(ValueError, match=rf"en-es\.txt\.zip.* must {message}"):
        list(ParallelText(path, **KEYS).lines())


@pytest.mark.parametrize("other_files", [{"a/README.es": "?"}, {"Books.en-fr.en": "?", "Books.en-fr.fr": "?"}], ids=str)
def test_files_of_other_pairs_are_not_read(archive, other_files):
    path = archive(FILES | other_files)
    assert [*ParallelText(path, **KEYS).lines()] == [ParallelLine(1, "one", "uno"), ParallelLine(2, "two", "dos")]


def test_names_may_differ_if_each_language_has_one_file(archive):
    path = archive({"README": "about", "train.en": "one\n", "data/target.es": "uno\n"})
    assert [*ParallelText(path, **KEYS).lines()] == [ParallelLine(1, "one", "uno")]


def test_folders_are_no_files(archive):
    path = archive({"Books.en/": "", "Books.en/Books.en": "one\n", "Books.en/Books.es": "uno\n"})
    assert [*ParallelText(path, **KEYS).lines()] == [ParallelLine(1, "one", "uno")]


def test_one_file_is_not_a_pair_of_two_codes(archive):
    path = archive({"a.pt_BR": "um\n", "a.es": "uno\n"})
    with pytest.raises(
        ValueError, match=r"must contain one corpus, such as corpus\.pt and corpus\.pt-BR, got the files a"
    ):
        list(ParallelText(path, source_key="pt", target_key="pt-BR").lines())


def test_paths_outside_of_the_archive_are_only_names(archive, tmp_path):
    files = FILES | {"../../Books.es": "uno\n", "/Books.en": "one\n"}
    path = archive({name: content for name, content in files.items() if "en-es" not in name})
    assert [*ParallelText(path, **KEYS).lines()] == [ParallelLine(1, "one", "uno")]
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("damage", ["truncated", "empty", "content", "encrypted"])
def test_damaged_archives_are_one_error(archive, damage):
    path = archive(FILES | {"Books.en-es.en": "one\ntwo\n" * 1000})
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "empty":
        content.clear()
    elif damage == "content":
        start = content.index(b"Books.en-es.en") + 20
        content[start : start + 8] = b"\xff" * 8
    else:
        for header in (b"PK\1\2", b"PK\3\4"):
            position = content.index(header, content.index(b"LICENSE") if header == b"PK\3\4" else 0)
            while position >= 0:
                content[position + (8 if header == b"PK\1\2" else 6)] |= 1
                position = content.find(header, position + 1)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"en-es\.txt\.zip must be a complete zip file, got an error: "):
        list(ParallelText(path, **KEYS).lines())

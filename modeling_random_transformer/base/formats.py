"""Formats of texts and documents, by the suffixes of their files."""

from pathlib import Path

from .files import StrPath

COMPRESSIONS = {".gz": "gzip", ".zst": "Zstandard", ".bz2": "bzip2", ".xz": "xz"}
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz", ".lzma", ".lz4", ".br", ".z")
# Formats of parallel text: with columns, or with a text for each language.
TEXT_FORMATS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".tmx": "tmx",
    ".zip": "zip",
}
# The documents that `translate` supports, which contain texts and markup.
DOCUMENT_FORMATS = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".srt": "srt",
    ".po": "po",
    ".pot": "po",
    ".xliff": "xliff",
    ".xlf": "xliff",
}
SPREADSHEETS = (".xlsx", ".xls", ".ods")
DOCUMENTS = {
    *DOCUMENT_FORMATS,
    *SPREADSHEETS,
    ".sdlxliff",
    ".mqxliff",
    ".tbx",
    ".resx",
    ".xml",
    ".sgm",
    ".sgml",
    ".vtt",
    ".docx",
    ".doc",
    ".odt",
    ".rtf",
    ".pdf",
    ".epub",
    ".pptx",
    ".md",
    ".rst",
    ".tex",
}


def file_format(path: StrPath) -> str:
    """A value of `TEXT_FORMATS`, or `"text"`, by the suffix before that of a compression, in any case."""
    return TEXT_FORMATS.get(text_suffix(path), "text")


def text_suffix(path: StrPath) -> str:
    """The suffix before that of a compression, in lower case."""
    path = Path(path)
    if path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return path.suffix.lower()


def check_plain_text(name: str, path: StrPath | None, document_format: str | None = None) -> None:
    """Check that the lines of a file are texts, by its name.

    Args:
        name: name of the argument, for errors.
        path: the file, if there is one.
        document_format: the value of `--format`, for a file that may be a document instead.

    Raises:
        ValueError: it is a file with columns or a document.
    """
    if path is None:
        return
    suffix = text_suffix(path)
    if suffix in TEXT_FORMATS:
        raise ValueError(
            f"{name} must be a file with one text per line, not {', '.join(TEXT_FORMATS)}, got {str(path)!r}."
        )
    is_supported = document_format is not None and DOCUMENT_FORMATS.get(suffix) == document_format
    if suffix in DOCUMENTS and not is_supported:
        formats = ", ".join(dict.fromkeys(DOCUMENT_FORMATS.values()))
        or_document = "" if document_format is None else f", or a document with --format {formats}"
        raise ValueError(
            f"{name} must be a file with one text per line{or_document}, got {str(path)!r}: "
            "extract the texts of other documents."
        )

"""Parses XML by events. Declared entities are an error, since they can expand to any size."""

from collections.abc import Iterator
from contextlib import contextmanager
from xml.parsers import expat

from ..base.errors import format_value
from ..base.files import StrPath


@contextmanager
def xml_parser(name: StrPath) -> Iterator[expat.XMLParserType]:
    """A parser without handlers, which detects UTF-8, UTF-16 and encodings with one byte per character.

    Args:
        name: name of the document in error messages.

    Raises:
        ValueError: the document declares entities, uses unknown ones, or is not well-formed. The message has the line.
    """
    parser = expat.ParserCreate()

    def reject(entity: str, *_: object) -> None:
        raise ValueError(
            f"{name} must be XML without entities of its own, "
            f"got {format_value(entity)} in line {parser.CurrentLineNumber}."
        )

    parser.buffer_text = True
    parser.EntityDeclHandler = reject
    parser.SkippedEntityHandler = reject
    try:
        yield parser
    except (expat.ExpatError, LookupError, ValueError) as error:
        is_clear = str(error).startswith(f"{name} must ")  # another one is that of an encoding with several bytes
        if is_clear:
            raise
        raise ValueError(f"{name} must be well-formed XML, got an error: {error}.") from error

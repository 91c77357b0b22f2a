"""Parses XML by events. Declared entities are an error, since they can expand to any size."""

from collections.abc import Iterator
from contextlib import contextmanager
from xml.parsers import expat

from ..base.errors import format_value
from ..base.files import StrPath


class DocumentError(ValueError):
    """An error of a handler, whose message is complete."""


@contextmanager
def xml_parser(name: StrPath) -> Iterator[expat.XMLParserType]:
    """A parser without handlers, which detects UTF-8, UTF-16 and encodings with one byte per character.

    An error of a handler must be a `DocumentError`.

    Args:
        name: name of the document in error messages.

    Raises:
        ValueError: the document declares entities, uses unknown ones, or is not well-formed. The message has the line.
    """
    parser = expat.ParserCreate()

    def reject(entity: str, *_: object) -> None:
        raise DocumentError(
            f"{name} must be XML without entities of its own, "
            f"got {format_value(entity)} in line {parser.CurrentLineNumber}."
        )

    parser.buffer_text = True
    parser.EntityDeclHandler = reject
    parser.SkippedEntityHandler = reject
    try:
        yield parser
    except DocumentError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last is that of an encoding with several bytes
        raise ValueError(f"{name} must be well-formed XML, got an error: {error}.") from error

"""XML is parsed without entities that a document declares."""

import pytest

from modeling_random_transformer.extras.xml_events import xml_parser

BOMB = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]><a>&y;</a>'


def texts_of(document):
    texts = []
    with xml_parser("a.tmx") as parser:
        parser.CharacterDataHandler = texts.append
        parser.Parse(document, True)
    return "".join(texts)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_the_declared_encoding_is_used(encoding):
    document = f'<?xml version="1.0" encoding="{encoding}"?><a>se\u00f1or &amp; &#233;</a>'
    assert texts_of(document.encode(encoding)) == "se\u00f1or & \u00e9"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (BOMB, "a.tmx must be XML without entities of its own, got 'x' in line 1"),
        ('<!DOCTYPE a SYSTEM "a.dtd">\n<a>&other;</a>', "without entities of its own, got 'other' in line 2"),
        ("<a>&other;</a>", "a.tmx must be well-formed XML, got an error: undefined entity"),
        ("<a><b></a>", "a.tmx must be well-formed XML, got an error: mismatched tag: line 1"),
        ("<a>", "a.tmx must be well-formed XML, got an error: no element found"),
        (
            '<?xml version="1.0" encoding="klingon"?><a/>',
            "a.tmx must be well-formed XML, .*: unknown encoding",
        ),
        (
            '<?xml version="1.0" encoding="shift_jis"?><a/>',
            "a.tmx must be well-formed XML, .*: multi-byte encodings are not supported",
        ),
    ],
)
def test_invalid_documents(document, message):
    with pytest.raises(ValueError, match=message):
        texts_of(document.encode())

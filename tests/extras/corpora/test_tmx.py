"""Translation memories: languages, mark-up, encodings, and files that are damaged or hostile."""

import gzip
import tracemalloc
from contextlib import contextmanager

import pytest

from modeling_random_transformer.data import InvalidLine, ParallelLine, ParallelText, read_texts, validate
from modeling_random_transformer.data.sources import EMPTY_SIDE, NOT_A_PAIR
from modeling_random_transformer.extras.corpora import tmx
from modeling_random_transformer.extras.corpora.languages import matching_code
from modeling_random_transformer.extras.corpora.tmx import CHUNK_BYTES
from modeling_random_transformer.extras.xml_events import xml_parser

HEADER = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header creationtool="by hand" segtype="sentence" o-tmf="none" adminlang="en" srclang="es" datatype="plaintext"/>
<body>
"""
UNITS = """<tu tuid="1"><note>a note</note><prop type="domain">animals</prop>
  <tuv xml:lang="es-ES"><seg>El <bpt i="1">&lt;b></bpt>perro<ept i="1">&lt;/b></ept> <hi>duerme</hi>.</seg></tuv>
  <tuv xml:lang="EN"><seg>The dog
      sleeps.<ph x="1">&lt;img alt="<sub>text of the image</sub>"/></ph></seg></tuv>
  <tuv xml:lang="de"><seg>Der Hund schläft.</seg></tuv>
</tu>
<tu><tuv lang="es"><seg>Pan &amp; agua &#x2014; <![CDATA[<sal>]]></seg></tuv>
  <tuv lang="en"><seg>Bread &amp; water &#x2014; &lt;salt&gt;</seg></tuv><tuv lang="en-GB"><seg>second</seg></tuv></tu>
<tu><tuv xml:lang="es"><seg>Sola.</seg></tuv><tuv xml:lang="de"><seg>Allein.</seg></tuv></tu>
<tu><tuv xml:lang="es"><seg> </seg></tuv><tuv xml:lang="en"><seg>Empty.</seg></tuv></tu>
"""
TMX = f"{HEADER}{UNITS}</body>\n</tmx>\n"
KEYS = {"source_key": "es", "target_key": "en"}
PAIR = '<tu><tuv xml:lang="es"><seg>uno</seg></tuv><tuv xml:lang="en"><seg>{}</seg></tuv></tu>'
BILLION_LAUGHS = """<!DOCTYPE tmx [
<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">
]>"""


@pytest.fixture
def read(tmp_path):
    """Write a file and read its lines."""

    def read(content, name="a.tmx", **options):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return list(ParallelText(path, **options or KEYS).lines())

    return read


@pytest.mark.parametrize(
    "content",
    [
        TMX,
        f"\ufeff{TMX}",
        TMX.replace("\n", "\r\n"),
        TMX.encode("utf-16"),
        TMX.replace('"1.0"?', '"1.0" encoding="UTF-16"?').encode("utf-16"),
        TMX.replace('"1.0"?', '"1.0" encoding="windows-1252"?').encode("cp1252"),
    ],
    ids=["UTF-8", "byte order mark", "line ends of Windows", "UTF-16", "declared UTF-16", "Windows-1252"],
)
def test_units_are_pairs_or_invalid_lines(read, content):
    assert read(content) == [
        ParallelLine(1, "El perro duerme.", "The dog sleeps."),
        ParallelLine(2, "Pan & agua — <sal>", "Bread & water — <salt>"),
        InvalidLine(3, NOT_A_PAIR),
        InvalidLine(4, EMPTY_SIDE),
    ]


def test_compressed_file_and_other_languages(read, tmp_path):
    lines = read(gzip.compress(TMX.encode()), "a.TMX.gz", source_key="de-AT", target_key="ES")
    assert lines[0] == ParallelLine(1, "Der Hund schläft.", "El perro duerme.")
    assert (lines[1].source, lines[2].source) == ("Pan & agua — <sal> Bread & water — <salt> second", "Allein.")
    spanish = ["El perro duerme.", "Pan & agua — <sal>", "Sola.", ""]
    assert list(read_texts(tmp_path / "a.TMX.gz", "es")) == spanish
    assert str(validate(ParallelText(tmp_path / "a.TMX.gz", **KEYS))) == (
        f"{tmp_path / 'a.TMX.gz'}: 2 of 4 lines are invalid: 1 {NOT_A_PAIR} (line 3); 1 {EMPTY_SIDE} (line 4)"
    )


@pytest.mark.parametrize(
    ("code", "available", "expected"),
    [
        ("es", ["en", "ES"], "ES"),
        ("es", ["es-MX", "es_ES", "es"], "es"),
        ("es", ["es-MX", "es-ES"], "es-MX"),
        ("es-es", ["es", "es_ES"], "es_ES"),
        ("es-ES", ["en", "es"], "es"),
        ("es-ES", ["es-MX"], None),
        ("es", ["est", "e"], None),
    ],
)
def test_matching_code(code, available, expected):
    assert matching_code(code, available) == expected


@pytest.mark.parametrize("options", [{"source_key": "fr", "target_key": "en"}, {"weight": 1}], ids=str)
def test_missing_languages_are_an_error_that_names_those_of_the_file(read, options):
    with pytest.raises(ValueError, match=r"must be languages of .*a\.tmx, es-ES, EN, de, .*got '(fr|source)' and"):
        read(TMX, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TMX[:-20], r"well-formed XML, got an error: unclosed token: line 15, column 83"),
        (TMX.replace("</tuv>", "", 1), r"well-formed XML, got an error: mismatched tag: line 11"),
        (TMX.encode("latin-1"), r"well-formed XML, got an error: not well-formed \(invalid token\): line 10"),
        (TMX.replace('"1.0"?', '"1.0" encoding="klingon"?'), r"well-formed XML, got an error: unknown encoding"),
        (TMX.replace("Allein", "&nbsp;"), r"XML without entities of its own, got 'nbsp' in line 14"),
        (TMX.replace("Allein", "a\0b"), r"well-formed XML, got an error: not well-formed \(invalid token\): line 14"),
        (
            TMX.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', BILLION_LAUGHS),
            r"XML without entities of its own, got 'a' in",
        ),
        (
            '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]><tmx>&x;</tmx>',
            r"XML without entities of its own, got 'x'",
        ),
        ("no XML", r"well-formed XML, got an error: syntax error: line 1"),
        ("", r"well-formed XML, got an error: no element found: line 1"),
    ],
    ids=["truncated", "tags", "encoding", "unknown", "entity", "NUL", "billion laughs", "external", "text", "empty"],
)
def test_damaged_and_hostile_files_are_one_error(read, content, message):
    with pytest.raises(ValueError, match=rf"a\.tmx must be {message}"):
        read(content)


@pytest.mark.parametrize("language", ["en", "en-GB", "EN_us"])
def test_empty_segments_are_not_chosen_before_others(read, language):
    unit = PAIR.replace("</tu>", f'<tuv xml:lang="{language}"><seg>one</seg></tuv></tu>').format("")
    assert read(f"<tmx><body>{unit}</body></tmx>") == [ParallelLine(1, "uno", "one")]


def test_one_segment_is_not_a_pair_of_two_codes(read):
    content = TMX.replace('"es-ES"', '"es-MX"').replace('"EN"', '"es"')
    assert read(content, source_key="es", target_key="es-MX") == [
        ParallelLine(1, "The dog sleeps.", "El perro duerme."),
        *(InvalidLine(number, NOT_A_PAIR) for number in (2, 3, 4)),
    ]


def test_other_xml_is_an_error(read):
    with pytest.raises(ValueError, match=r"a\.tmx must be TMX, got XML without the element <tmx>"):
        read("<html><body>x</body></html>")


def test_segments_without_a_language(read):
    with pytest.raises(ValueError, match=r"must be languages of .*a\.tmx, none, got 'es' and 'en'"):
        read("<tmx><body><tu><tuv><seg>uno</seg></tuv></tu></body></tmx>")


def test_very_long_segments_and_deep_mark_up(read):
    long = "palabra " * 125_000
    deep = "<hi>" * 10_000 + "x" + "</hi>" * 10_000
    lines = read(f"{HEADER}{PAIR.format(long)}{PAIR.format(deep)}</body></tmx>")
    assert lines == [ParallelLine(1, "uno", long.strip()), ParallelLine(2, "uno", "x")]


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "a.tmx"
    with path.open("w") as file:
        file.write(HEADER + PAIR.format("one " * 50) * 10_000 + "</body></tmx>")
    assert path.stat().st_size > 40 * CHUNK_BYTES
    tracemalloc.start()
    try:
        assert sum(1 for _ in ParallelText(path, **KEYS).lines()) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * CHUNK_BYTES


class DeferringParser:
    """A parser that parses at the end of the document."""

    def __init__(self, parser):
        vars(self).update(parser=parser, content=b"")

    def __setattr__(self, name, handler):
        setattr(self.parser, name, handler)

    def Parse(self, data, is_final=False):  # noqa: N802 (the name in expat)
        vars(self)["content"] += data
        if is_final:
            self.parser.Parse(self.content, True)


@pytest.mark.parametrize("is_simulated", [False, True])
def test_units_after_a_long_comment(is_simulated, read, monkeypatch):
    """Expat 2.6 defers what follows a token of several chunks."""

    @contextmanager
    def deferring_parser(name):
        with xml_parser(name) as parser:
            yield DeferringParser(parser)

    if is_simulated:
        monkeypatch.setattr(tmx, "xml_parser", deferring_parser)
    comment = "x" * (2 * CHUNK_BYTES + CHUNK_BYTES // 2)
    assert len(read(f"{HEADER}{PAIR}<!--{comment}-->{PAIR * 3}</body></tmx>")) == 4

"""XLIFF: only segments without a translation change, and inline elements keep their place."""

from xml.dom import minidom

import pytest

from modeling_random_transformer.extras.documents import html_translation, translate_xliff, xliff
from modeling_random_transformer.inference.candidates import Candidate
from modeling_random_transformer.inference.translation import BatchTranslator

NAMESPACE_1 = "urn:oasis:names:tc:xliff:document:1.2"
NAMESPACE_2 = "urn:oasis:names:tc:xliff:document:2.0"
XLIFF_1 = f"""<?xml version="1.0" encoding="ISO-8859-1"?>
<!-- a comment --><?tool data?>
<xliff version="1.2" xmlns="{NAMESPACE_1}" xmlns:my="urn:my">
  <file original="a.txt" source-language="en" target-language="es" datatype="plaintext" my:key="&lt;1&gt;">
    <header><note>not translated: the dog</note></header>
    <body>
      <trans-unit id="1">
        <source>the <g id="1" ctype="bold">red</g> cat<x id="2"/> &amp; <ph id="3">&lt;br&gt;</ph>5 &lt; 6 “é”</source>
        <alt-trans><source>no</source><target>nein</target></alt-trans>
      </trans-unit>
      <trans-unit id="2" my:note="kept"><source>a dog</source><target state="new" my:a="b">a dog</target></trans-unit>
      <trans-unit id="3"><source>done</source><target state="translated">hecho</target></trans-unit>
      <trans-unit id="4" translate="no"><source>a name</source></trans-unit>
      <group translate="no"><trans-unit id="5"><source>a name</source></trans-unit>
        <trans-unit id="6" translate="yes"><source>a bird</source><target/></trans-unit></group>
      <trans-unit id="7"><source> <x id="1"/> </source></trans-unit>
      <trans-unit id="8"><source>done</source><target><x id="1"/></target></trans-unit>
      <trans-unit id="9"><source><![CDATA[a <b>]]> <mrk mtype="protected">Name</mrk>
        <mrk mtype="x-its-translate-no">x</mrk></source></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = f"""<x:xliff version="2.1" srcLang="en" trgLang="es" xmlns:x="{NAMESPACE_2}">
 <x:file id="f"><x:unit id="u"><x:originalData><x:data id="d">%s</x:data></x:originalData>
  <x:segment id="s1">
   <x:source>a <x:pc id="1">small <x:pc id="2">red</x:pc></x:pc> cat<x:ph id="3"/></x:source>
  </x:segment>
  <x:ignorable><x:source> </x:source></x:ignorable>
  <x:segment id="s2" state="final"><x:source>done</x:source><x:target>hecho</x:target></x:segment>
 </x:unit></x:file>
</x:xliff>
"""


@pytest.fixture
def upper_case(monkeypatch):
    """A translation that only puts texts in upper case, of which the tags stay."""

    def upper(fragments, *_, **__):
        trees = [minidom.parseString(fragment) for fragment in fragments]
        for tree in trees:
            for element in [tree.documentElement, *tree.getElementsByTagName("span")]:
                for node in element.childNodes:
                    if isinstance(node, minidom.Text):
                        node.data = node.data.upper()
        return [tree.documentElement.toxml() for tree in trees]

    monkeypatch.setattr(xliff, "translate_html", upper)


def targets(document, unit, namespace):
    """The content of each target of a unit, by the unit's id."""
    contents = {}
    for element in minidom.parseString(document).getElementsByTagNameNS(namespace, unit):
        for node in element.childNodes:
            if node.localName == "target":
                contents[element.getAttribute("id")] = "".join(part.toxml() for part in node.childNodes)
    return contents


@pytest.mark.usefixtures("upper_case")
def test_version_1():
    translated = translate_xliff(XLIFF_1, None, None)
    assert targets(translated, "trans-unit", NAMESPACE_1) == {
        "1": 'THE <g id="1" ctype="bold">RED</g> CAT<x id="2"/> &amp; <ph id="3">&lt;br&gt;</ph>5 &lt; 6 “É”',
        "2": "A DOG",
        "3": "hecho",
        "6": "A BIRD",
        "8": '<x id="1"/>',
        "9": 'A &lt;b&gt; <mrk mtype="protected">Name</mrk>\n        <mrk mtype="x-its-translate-no">x</mrk>',
    }
    assert translated.count('state="needs-review-translation"') == translated.count('"leveraged-mt"') == 4
    assert '<target state="translated">hecho' in translated
    assert '<target state="needs-review-translation" my:a="b" ' in translated
    assert translate_xliff(translated, None, None) == translated


@pytest.mark.usefixtures("upper_case")
def test_all_but_targets_stays():
    translated = minidom.parseString(translate_xliff(XLIFF_1, None, None))
    original = minidom.parseString(XLIFF_1.replace(' encoding="ISO-8859-1"', ""))
    for tree in (original, translated):
        for target in tree.getElementsByTagName("target"):
            if target.parentNode.tagName == "trans-unit" and target.getAttribute("state") != "translated":
                target.parentNode.removeChild(target)
    lines = [[line.strip() for line in tree.toxml().splitlines() if line.strip()] for tree in (original, translated)]
    assert "".join(lines[0]) == "".join(lines[1])


def test_references_to_white_space_stay(monkeypatch):
    monkeypatch.setattr(xliff, "translate_html", lambda fragments, *_, **__: fragments)
    source = "<source>one&#13;&#10;two&#xD;</source>"
    document = XLIFF_1.replace('original="a.txt"', 'original="a&#9;b&#xA;c"').replace("<source>a bird</source>", source)
    translated = translate_xliff(document, None, None)
    assert 'original="a&#9;b&#10;c"' in translated
    assert "<source>one&#13;\ntwo&#13;</source><target" in translated
    assert ">one&#13;\ntwo&#13;</target>" in translated


@pytest.mark.usefixtures("upper_case")
def test_new_targets_are_not_approved():
    translated = translate_xliff(XLIFF_1.replace('id="2"', 'id="2" approved="yes"'), None, None)
    assert '<trans-unit id="2" approved="no" my:note="kept">' in translated


@pytest.mark.usefixtures("upper_case")
def test_tags_and_entities_in_texts_are_copied():
    text = 'one &lt;a href="x"&gt;two&lt;/a&gt; &amp;nbsp; &lt;!-- three --&gt; &lt; 4 &amp; five'
    translated = translate_xliff(XLIFF_1.replace("a bird", text), None, None)
    target = targets(translated, "trans-unit", NAMESPACE_1)["6"].replace("&quot;", '"')  # Python 3.13 escapes no quotes
    assert target == 'ONE &lt;a href="x"&gt;TWO&lt;/a&gt; &amp;nbsp; &lt;!-- three --&gt; &lt; 4 &amp; FIVE'


@pytest.mark.usefixtures("upper_case")
def test_version_2_with_prefixes():
    translated = translate_xliff(XLIFF_2, None, None)
    assert targets(translated, "segment", NAMESPACE_2) == {
        "s1": 'A <x:pc id="1">SMALL <x:pc id="2">RED</x:pc></x:pc> CAT<x:ph id="3"/>',
        "s2": "hecho",
    }
    assert '<x:segment id="s1" state="translated">' in translated
    assert '<x:segment id="s2" state="final">' in translated
    assert "</x:source>\n   <x:target>A " in translated


@pytest.mark.parametrize(
    ("fragment", "content"),
    [
        ('<span id="0">b</span> a <span id="0">c</span><img id="1"/>', "<g id='1'>b</g> a c<x id='2'/>"),
        ("a", "a<g id='1'/><x id='2'/>"),
        ('<img id="1"/><span id="0"><span id="0">a</span></span>', "<x id='2'/><g id='1'>a</g>"),
    ],
    ids=["repeated", "missing", "moved and nested"],
)
def test_each_inline_element_is_there_once(fragment, content, monkeypatch):
    document = f'<xliff version="1.2"><trans-unit><source>{content}</source></trans-unit></xliff>'
    document = document.replace(content, '<g id="1">red</g> cat<x id="2"/>')
    monkeypatch.setattr(xliff, "translate_html", lambda *_, **__: [f"<pre>{fragment}</pre>"])
    target = minidom.parseString(translate_xliff(document, None, None)).getElementsByTagName("target")[0]
    assert "".join(node.toxml() for node in target.childNodes).replace('"', "'") == content


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ('<bpt id="1">&lt;b&gt;</bpt>', '<ept id="1">&lt;/b&gt;</ept>'),
        ('<bpt id="1" rid="7"/>', '<ept id="2" rid="7"/>'),
        ('<bx id="1"/>', '<ex id="1"/>'),
        ('<sc id="1"/>', '<ec startRef="1"/>'),
    ],
)
@pytest.mark.parametrize("is_reversed", [True, False])
def test_a_code_begins_before_it_ends(is_reversed, begin, end, monkeypatch):
    places = '<span id="1"><img id="2"/> a</span> b<img id="0"/>'
    if not is_reversed:
        places = '<span id="1"><img id="0"/> a</span> b<img id="2"/>'
    monkeypatch.setattr(xliff, "translate_html", lambda *_, **__: [f"<pre>{places}</pre>"])
    source = f'{begin}<g id="9">red</g>{end}'
    document = f'<xliff version="1.2"><trans-unit><source>{source}</source></trans-unit></xliff>'
    target = minidom.parseString(translate_xliff(document, None, None)).getElementsByTagName("target")[0]
    assert "".join(node.toxml() for node in target.childNodes) == f'<g id="9">{begin} a</g> b{end}'


def test_codes_stay_around_a_word_in_another_order(translator, tokenizer, monkeypatch):
    monkeypatch.setattr(BatchTranslator, "__call__", lambda _, rows, *__: [[Candidate("el coche rojo")] for _ in rows])
    monkeypatch.setattr(html_translation, "align_units", lambda *_: [[(0, 0), (2, 1), (1, 2)]])
    source = 'the <bpt id="1">[</bpt>red<ept id="1">]</ept> car'
    document = f'<xliff version="1.2"><trans-unit><source>{source}</source></trans-unit></xliff>'
    translated = translate_xliff(document, translator, tokenizer, repair=False)
    assert 'el coche <bpt id="1">[</bpt>rojo<ept id="1">]</ept></target>' in translated


@pytest.mark.usefixtures("upper_case")
@pytest.mark.parametrize(
    "target",
    ["", "<target/>", '<target>\n<mrk mtype="seg" mid="0"/> <mrk mtype="seg" mid="1"></mrk></target>'],
    ids=["none", "empty", "empty segments"],
)
def test_targets_have_the_segments_of_their_sources(target):
    segments = '<mrk mtype="seg" mid="0">One dog.</mrk> <mrk mtype="seg" mid="1">Two <g id="1">dogs</g>.</mrk>'
    unit = f"<source>One dog. Two dogs.</source><seg-source>{segments}</seg-source>{target}"
    document = f'<xliff version="1.2"><trans-unit id="1">{unit}<note/></trans-unit></xliff>'
    translated = translate_xliff(document, None, None)
    expected = segments.replace("One dog", "ONE DOG").replace("Two", "TWO").replace("dogs", "DOGS")
    assert targets(translated, "trans-unit", "*") == {"1": expected}
    assert "</seg-source><target " in translated
    assert translate_xliff(translated, None, None) == translated


def test_characters_that_xml_does_not_allow_are_left_out(monkeypatch):
    monkeypatch.setattr(xliff, "translate_html", lambda *_, **__: ["<pre>a\x0b\x00\uffff\ud800b\U0001f600</pre>"])
    document = '<xliff version="1.2"><trans-unit><source>a</source></trans-unit></xliff>'
    assert ">ab\U0001f600</target>" in translate_xliff(document, None, None)


def test_model_keeps_inline_elements_and_lines(translator, tokenizer):
    document = XLIFF_1.replace("5 &lt; 6", "\nthe dog")
    translated = translate_xliff(document, translator, tokenizer)
    target = targets(translated, "trans-unit", NAMESPACE_1)["1"]
    for element in ('<g id="1" ctype="bold"', '<x id="2"/>', '<ph id="3">&lt;br&gt;</ph>'):
        assert target.count(element) == 1
    assert target.count("\n") == 1


ENTITIES = '<!DOCTYPE xliff [<!ENTITY a "b">]><xliff version="1.2"><trans-unit/></xliff>'


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("the boy", "must be well-formed XML"),
        ("", "must be well-formed XML"),
        ("<xliff version='1.2'><trans-unit>", "must be well-formed XML"),
        ("<html version='1'/>", "must be XLIFF 1 or 2, got <html> of version '1'"),
        ("<xliff/>", "must be XLIFF 1 or 2, got <xliff> of version ''"),
        ("<xliff version='2.0'/>", "must have the attribute trgLang"),
        (f"<xliff version='1.2'>{'<g>' * 2000}{'</g>' * 2000}</xliff>", "must have elements in at most 100 levels"),
        (ENTITIES, "must be XML without entities of its own"),
    ],
)
def test_other_documents_are_errors(document, message):
    with pytest.raises(ValueError, match=f"the document {message}"):
        translate_xliff(document, None, None)


def test_document_without_segments(translator, tokenizer):
    document = "\ufeff<xliff version='1.2'><file/></xliff>"
    assert (
        translate_xliff(document, translator, tokenizer)
        == '<?xml version="1.0" ?><xliff version="1.2"><file/></xliff>\n'
    )

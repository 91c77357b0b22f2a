"""Monolingual text: which lines are selected, and pairs as aligned text."""

import pytest

from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from modeling_random_transformer.stages.monolingual import select_lines, write_pairs


def test_pairs_are_lines_of_two_files(tmp_path):
    files = [tmp_path / "new" / "a", tmp_path / "new" / "b"]
    assert write_pairs([("one\ntwo", "eins"), ("three", "drei")], files) == 2
    assert [path.read_text() for path in files] == ["one two\nthree\n", "eins\ndrei\n"]


def test_blank_and_long_lines_are_skipped(translator, tokenizer, tmp_path):
    pipe = Seq2SeqPipeline(translator, tokenizer)
    selected = tmp_path / "folder" / "selected"
    lines = ["the boy", "", "the boy sees\nthe girl", "the " * 40]
    report = select_lines(lines, selected, pipe, None, "mono", max_line_tokens=20)
    assert selected.read_text() == "the boy\nthe boy sees the girl\n"
    assert (report.lines, report.valid) == (4, 2)
    assert report.counts == {"blank": 1, "of more than 20 tokens": 1}


@pytest.mark.parametrize("prefix", ["", "the girl "])
def test_lines_are_measured_as_they_are_translated(prefix, translator, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(translator.config, "prefix", prefix, raising=False)
    limit = len(tokenizer.encode_texts(f"{prefix}sees the boy").input_ids)
    lines = ["   sees   the boy", "sees the boy sees"]
    report = select_lines(lines, tmp_path / "selected", Seq2SeqPipeline(translator, tokenizer), None, "mono", limit)
    assert report.counts == {f"of more than {limit} tokens": 1}
    assert report.first == {f"of more than {limit} tokens": [2]}


def test_a_file_is_replaced_only_if_a_line_can_be_translated(translator, tokenizer, tmp_path):
    selected = tmp_path / "selected"
    selected.write_text("earlier")
    with pytest.raises(ValueError, match="mono must have a line that can be translated, got mono: 2 of 2 lines"):
        select_lines(["", " "], selected, Seq2SeqPipeline(translator, tokenizer), None, "mono", None)
    assert selected.read_text() == "earlier"

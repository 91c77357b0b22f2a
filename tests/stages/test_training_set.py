"""The training set of a student: the teacher's translations, chosen by references, and original pairs."""

import io
import json

import pytest

from modeling_random_transformer.inference import one_line, translate_n_best
from modeling_random_transformer.stages import DistillationArguments
from modeling_random_transformer.stages.training_set import (
    SyntheticReport,
    TrainingSet,
    targets_by_source,
    write_nearest,
)
from tests.helpers.corpora import read_pairs, write_pairs
from tests.helpers.translation import some_texts


def test_interpolation_chooses_the_translations_nearest_to_the_references(translator, tokenizer, tmp_path, monkeypatch):
    """Texts without a reference have the best translation. Other references do not repeat the translation."""
    texts = some_texts(8)
    (tmp_path / "mono.tsv").write_text("".join(f"7\t{text}\n" for text in texts[:3]))
    n_best = [
        [one_line(candidate.translation) for candidate in candidates]
        for candidates in translate_n_best(texts, translator, tokenizer, n_best=3, num_beams=3, progress=False)
    ]
    sources = [str(tmp_path / "mono.tsv"), "-"]
    options = DistillationArguments(["x"], sources, text_key="2", teacher_num_beams=3, interpolate=True)
    for count in (5, 3):
        references = [candidates[-1] for candidates in n_best[:count]]
        original = write_pairs(tmp_path, "aligned", [*zip(texts, references, strict=False)])
        corpus = TrainingSet(tmp_path / "work", options, [original], False)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts[3:]).encode())))
        report = corpus.make(translator, tokenizer, 256)
        expected = [*references, *(candidates[0] for candidates in n_best[count:])]
        assert corpus.translated.read_text().split("\n")[:-1] == expected
        assert (report.interpolated, report.original) == (count, count)
        assert len(read_pairs(*corpus.files)) == report.synthetic + count
    record = json.loads((tmp_path / "work" / "job.json").read_text())
    assert [*record] == ["translation", "interpolation", "training set"]


def test_references_of_repeated_sources(tmp_path):
    """All distinct targets of a source are references; line breaks and invisible characters do not matter."""
    references = targets_by_source([("a\nb ", "x"), ("a b", "y"), ("a b", "x")])
    assert references == targets_by_source([("a\u00a0b\u200b", "x"), ("a b", "y")]) == {"a b": ["x", "y"]}
    (tmp_path / "texts").write_text("a b\u00ad\nc\na b\n", encoding="utf-8")
    records = [{"index": index, "translation": text} for index in range(3) for text in ("z", "y")]
    (tmp_path / "candidates").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    write_nearest(tmp_path / "texts", tmp_path / "candidates", tmp_path / "output", references)
    assert (tmp_path / "output").read_text() == "y\nz\ny\n"


def test_the_report_counts_texts_and_pairs():
    report = SyntheticReport(selected=10, skipped=2, empty=1, original=3, interpolated=4)
    assert report.synthetic == 9
    assert str(report) == (
        "9 synthetic and 3 original pairs (75% synthetic); skipped 2 blank or too long texts and 1 with an empty "
        "translation; chose the translations of 4 of 10 texts by references"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher": []}, "teacher must name at least one folder, got none"),
        ({"source_text": []}, "source_text must name at least one file, got none"),
        ({"text_key": "en"}, "text_key must be unset without a file with columns, got 'en'"),
        ({"source_text": ["nowhere"]}, "source_text must be a file, got 'nowhere'"),
        ({"teacher_dtype": "float8"}, "teacher_dtype must be one of float32, bfloat16, int8, got 'float8'"),
        ({"interpolate": True, "teacher_num_beams": 1}, "teacher_num_beams must be at least 2 with interpolate, got 1"),
    ],
)
def test_invalid_arguments_of_the_teacher(options, message):
    with pytest.raises(ValueError, match=message):
        DistillationArguments(**{"teacher": ["x"], "source_text": ["-"], **options})

"""Distillation on a tiny corpus: training set, student, comparison, resuming, invalid arguments, the command."""

import io
import json
import re
import shutil

import pytest
from accelerate import PartialState
from sacrebleu.metrics import CHRF
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer import cli
from modeling_random_transformer.augmentation import (
    DistillationArguments,
    StudentDataArguments,
    distill,
    distillation,
    training_set,
)
from modeling_random_transformer.augmentation.training_set import (
    TrainingSet,
    nearest,
    targets_by_source,
    write_nearest,
)
from modeling_random_transformer.conversion.marian import convert_marian
from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.data.mixing import CorpusSpec
from modeling_random_transformer.inference import one_line, translate, translate_n_best
from modeling_random_transformer.inference import translation_files as files
from modeling_random_transformer.training import ModelArguments, TranslationTrainingArguments
from tests.helpers.marian import opus_folder
from tests.helpers.training import arguments, run, write_corpus
from tests.helpers.translation import SENTENCES, random_tokenizer, random_translator, some_texts

KINDS = (DistillationArguments, StudentDataArguments, ModelArguments, TranslationTrainingArguments)
SIDES = {"source": "a", "target": "b"}
STUDENT = "d_model=8,d_ff=16,encoder_layers=1,decoder_layers=1,num_heads=1,max_position_embeddings=16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus and a teacher."""
    folder = tmp_path_factory.mktemp("distillation")
    write_corpus(folder)
    run(folder, "teacher", num_beams=1)
    PartialState._reset_state()
    return folder


def student_arguments(folder, output="student", **options):
    original = ("source_file", "target_file", "vocab_size")
    given = {name: value for name, value in arguments(folder, output).items() if name not in original}
    return {
        **given,
        "teacher": [str(folder / "teacher")],
        "source_text": [str(folder / "train.a")],
        "teacher_num_beams": 1,
        "num_beams": 1,
        "max_steps": 4,
        "max_tokens_per_batch": 4000,  # the teacher's translations are long
        "config_overrides": STUDENT,
        **options,
    }


def distilled(folder, output="student", **options):
    given = student_arguments(folder, output, **options)
    fields = [{name: given[name] for name in given if name in kind.__dataclass_fields__} for kind in KINDS]
    return distill(*(kind(**values) for kind, values in zip(KINDS, fields, strict=True)))


@pytest.fixture(scope="module")
def result(folder):
    result = distilled(folder, source_file=str(folder / "test.a"), target_file=str(folder / "test.b"))
    PartialState._reset_state()
    return result


class TestResult:
    def test_training_set_is_the_teachers_translations_then_the_original_pairs(self, folder, result):
        sources, targets = (
            (result.run.folder / "distillation" / f"train.{side}").read_text().split("\n")[:-1] for side in SIDES
        )
        teacher = AutoModelForSeq2SeqLM.from_pretrained(folder / "teacher")
        texts = (folder / "train.a").read_text().split("\n")[:-1]
        tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
        expected = translate(texts, teacher, tokenizer, num_beams=1, progress=False)
        pairs = [pair for pair in zip(texts, expected, strict=True) if pair[1].strip()]
        assert list(zip(sources, targets, strict=True))[:-12] == pairs
        assert sources[-12:] == (folder / "test.a").read_text().split("\n")[:-1]
        assert (result.corpus.selected, result.corpus.original) == (120, 12)
        assert result.corpus.synthetic == len(pairs)
        assert result.run.pairs == len(pairs) + 12

    def test_student_has_the_teachers_tokenizer_and_its_own_size(self, folder, result):
        student = AutoModelForSeq2SeqLM.from_pretrained(result.run.folder)
        assert student.config.d_model == 8
        tokenizers = [AutoTokenizer.from_pretrained(path) for path in (folder / "teacher", result.run.folder)]
        assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()

    def test_compares_teacher_and_student_in_each_dtype(self, result):
        rows = {(row.model, row.dtype): row for row in result.rows}
        for dtype in ("float32", "int8"):
            teacher, student = rows["teacher", dtype], rows["student", dtype]
            assert 0 < student.megabytes < teacher.megabytes
            assert min(teacher.sentences_per_second, student.sentences_per_second) > 0
        assert rows["student", "int8"].megabytes < rows["student", "float32"].megabytes
        assert rows["student", "float32"].bleu == pytest.approx(result.run.scores["test"]["bleu"]["score"])
        assert rows["student", "float32"].chrf == pytest.approx(result.run.scores["test"]["chrf"]["score"])

    def test_record_and_model_card(self, folder, result):
        record = json.loads((result.run.folder / "distillation" / "job.json").read_text())
        assert [*record] == ["translation", "training set", "int8", "comparison"]
        assert all(stage["is_finished"] for stage in record.values())
        assert record["training set"]["facts"]["original"] == 12
        assert len(record["comparison"]["facts"]["rows"]) == len(result.rows)
        card = (result.run.folder / "README.md").read_text()
        assert card.count("## Distillation") == 1
        assert "`teacher` (1 model, 1 beams)" in card
        assert str(folder) not in card
        assert "% synthetic)" in card
        assert "| student | int8 |" in card

    def test_int8_folder_translates(self, result):
        model = AutoModelForSeq2SeqLM.from_pretrained(result.run.folder / "int8")
        tokenizer = AutoTokenizer.from_pretrained(result.run.folder / "int8")
        assert model.is_quantized
        assert len(translate(["abc"], model, tokenizer, progress=False)) == 1

    def test_finished_distillation_is_not_repeated(self, folder, result, monkeypatch):
        for module, name in ((distillation.TestSet, "compare"), (distillation, "new_folder"), (TrainingSet, "best")):
            monkeypatch.setattr(module, name, None)
        monkeypatch.setattr("modeling_random_transformer.inference.translation_files.translate_chunk", None)
        again = distilled(folder, source_file=str(folder / "test.a"), target_file=str(folder / "test.b"))
        assert again.rows == result.rows
        assert again.corpus == result.corpus


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_comparison_translates_sentences_above_the_limit_of_the_tokenizer(tmp_path, positions):
    """Training evaluates complete test sets, so the comparison must not reject a sentence after it."""
    model, tokenizer = random_translator(position_embedding=positions, max_position_embeddings=16), random_tokenizer()
    tokenizer.model_max_length = 16
    model.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    long = "the boy reads a book in the garden " * 3
    (tmp_path / "test.en").write_text(f"a book\n{long}\n")
    test = CorpusSpec(ParallelText(tmp_path / "test.en", tmp_path / "test.en"))
    args = TranslationTrainingArguments(output_dir=str(tmp_path / "student"), num_beams=1, use_cpu=True)
    test_set = distillation.test_set_of(test, args)
    translations = test_set.translation("teacher", [tmp_path / "teacher"], "float32", args.device)()
    limits = {"max_source_tokens": 16} if positions == "learned" else {}
    tokenizer.model_max_length = 10**6
    assert translations == translate(["a book", long], model, tokenizer, num_beams=1, progress=False, **limits)


def test_ensemble_as_teacher(folder):
    teacher = [str(folder / "teacher")] * 2
    result = distilled(folder, "ensemble", teacher=teacher, max_steps=1, save_steps=1, average_last=1, drop_worst=0.1)
    rows = {(row.model, row.dtype): row for row in result.rows}
    single = sum(path.stat().st_size for path in (folder / "teacher").glob("*.safetensors")) / 1e6
    assert rows["teacher", "float32"].megabytes == pytest.approx(2 * single, rel=0.01)
    assert "(2 models, 1 beams)" in (result.run.folder / "README.md").read_text()


@pytest.mark.usefixtures("_reset_accelerate")
def test_teacher_with_language_tags(tmp_path):
    write_corpus(tmp_path)
    languages = {"source_lang": ["a"], "target_lang": ["b"]}
    run(tmp_path, "teacher", num_beams=1, max_steps=1, average_last=1, **languages)
    result = distilled(tmp_path, max_steps=1, save_steps=1, average_last=1, drop_worst=0.1, **languages)
    assert result.corpus.dropped > 0
    tokenizer = AutoTokenizer.from_pretrained(result.run.folder)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("a", "b")
    files = {f"{side}_file": [str(tmp_path / "test.a"), str(tmp_path / "test.b")] for side in ("source", "target")}
    with pytest.raises(ValueError, match="must be one language each in a distillation"):
        distilled(tmp_path, **files, source_lang=["a", "b"], target_lang=["b", "a"])


@pytest.fixture
def _no_comparison(monkeypatch):
    monkeypatch.setattr(distillation, "compare", lambda *_: [])


@pytest.mark.slow
def test_resumes_after_interruptions(folder, tmp_path, monkeypatch):
    """No stage is repeated."""
    translate_file = "modeling_random_transformer.inference.translation_files.translate_chunk"
    for stage, later in (("train_translation", translate_file), ("compare", None)):
        with monkeypatch.context() as patch:
            patch.setattr(distillation, stage, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                distilled(folder, output_dir=str(tmp_path / "student"))
        monkeypatch.setattr(*((later,) if later else (TrainingSet, "best")), None)
    assert len(distilled(folder, output_dir=str(tmp_path / "student")).rows) >= 4


@pytest.mark.usefixtures("_no_comparison")
def test_student_of_a_converted_marian_model(tmp_path):
    """Its tokenizer has no start token: the student's targets start with the padding token, like the teacher's."""
    opus_folder(tmp_path / "opus")
    convert_marian(tmp_path / "opus", tmp_path / "teacher")
    for name, sentences in (("a", SENTENCES[:3]), ("b", SENTENCES[3:])):
        for split in ("train", "test"):
            (tmp_path / f"{split}.{name}").write_text("".join(f"{sentence}\n" for sentence in sentences))
    result = distilled(tmp_path, max_steps=1, config_overrides=STUDENT.replace("=16", "=128"))
    student, teacher = (AutoConfig.from_pretrained(path) for path in (result.run.folder, tmp_path / "teacher"))
    assert student.decoder_start_token_id == teacher.decoder_start_token_id == teacher.pad_token_id
    assert student.vocab_size == teacher.vocab_size


class TestSelection:
    def test_drops_the_lowest_scores_per_token(self, tmp_path):
        corpus = TrainingSet(tmp_path, DistillationArguments(["x"], ["-"]))
        corpus.scores.write_text("-9.0\t9\n-4.0\t2\n-1.0\t4\n-6.0\t2\n")
        assert corpus.best(0) is None
        assert corpus.best(0.25) == {0, 1, 2}
        assert corpus.best(0.5) == {0, 2}

    def test_filters_by_the_teachers_score(self, tmp_path):
        text = tmp_path / "mono.en"
        text.write_text("".join(f"{line}\n" for line in some_texts(20)))
        options = DistillationArguments(["x"], [str(text)], teacher_num_beams=1, drop_worst=0.25)
        corpus = TrainingSet(tmp_path / "work", options)
        report = corpus.make(random_translator(), random_tokenizer(), 256)
        assert report.dropped == int(0.25 * (report.selected - report.empty)) > 0
        lines = [path.read_text().count("\n") for path in corpus.sides("train")]
        assert lines == [report.synthetic, report.synthetic]


class TestInterpolation:
    def test_nearest_translation_by_chrf(self):
        candidates = ["a cat sleeps", "the dog is running", "the dogs run"]
        assert nearest(candidates, ["the dog runs"], CHRF()) == "the dogs run"
        assert nearest(candidates, ["the dog runs", "the dog is running"], CHRF()) == "the dog is running"
        assert nearest(candidates, [], CHRF()) == "a cat sleeps"

    def test_training_set_has_the_translations_nearest_to_the_references(self, tmp_path):
        """Texts without a reference have the best translation."""
        teacher, tokenizer = random_translator(), random_tokenizer()
        texts = some_texts(8)
        (tmp_path / "mono").write_text("".join(f"{text}\n" for text in texts))
        n_best = [
            [candidate.translation for candidate in candidates]
            for candidates in translate_n_best(texts, teacher, tokenizer, n_best=3, num_beams=3, progress=False)
        ]
        references = [candidates[-1] for candidates in n_best[:5]]
        for name, lines in (("source", texts), ("target", references)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines[:5]))
        original = [CorpusSpec(ParallelText(tmp_path / "source", tmp_path / "target"))]
        options = DistillationArguments(["x"], [str(tmp_path / "mono")], teacher_num_beams=3, interpolate=True)
        corpus = TrainingSet(tmp_path / "work", options, original)
        report = corpus.make(teacher, tokenizer, 256)
        expected = [*references, *(candidates[0] for candidates in n_best[5:])]
        assert corpus.translated.read_text().split("\n")[:-1] == [one_line(text) for text in expected]
        assert (report.interpolated, report.original) == (5, 5)
        assert str(report).endswith("; chose the translations of 5 of 8 texts by references")

    def test_references_of_repeated_sources(self, tmp_path, monkeypatch):
        """Each source is scored once, with its distinct targets; line breaks do not matter."""
        references = targets_by_source([("a\nb ", "x"), ("a b", "y"), ("a b", "x")])
        assert references == {"a b": ["x", "y"]}
        (tmp_path / "texts").write_text("a b\n" * 50 + "c\n")
        records = [{"index": index, "translation": text} for index in range(51) for text in ("z", "y")]
        (tmp_path / "candidates").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        calls = []
        score = CHRF.sentence_score
        monkeypatch.setattr(CHRF, "sentence_score", lambda *args: calls.append(args) or score(*args))
        write_nearest(tmp_path / "texts", tmp_path / "candidates", tmp_path / "output", references)
        assert (tmp_path / "output").read_text() == "y\n" * 50 + "z\n"
        assert len(calls) == 2

    def test_other_references_after_an_interruption(self, folder, tmp_path, monkeypatch):
        """The candidates are not translated again; translations and scores are made anew."""

        def files(number):
            for name in "ab":
                lines = (folder / f"train.{name}").read_text().splitlines(keepends=True)
                (tmp_path / f"{number}.{name}").write_text("".join(lines[:number]))
            return {f"{side}_file": str(tmp_path / f"{number}.{name}") for side, name in SIDES.items()}

        options = {"output_dir": str(tmp_path / "student"), "interpolate": True, "teacher_num_beams": 2}
        work = tmp_path / "student" / "distillation"
        texts = []
        for number, function in ((120, "score_file"), (60, "score_file"), (60, "train_translation")):
            module = distillation if function == "train_translation" else training_set
            with monkeypatch.context() as patch:
                patch.setattr(module, function, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    distilled(folder, **options, **files(number), drop_worst=0.1)
            texts.append((work / "interpolated.target").read_text())
            monkeypatch.setattr("modeling_random_transformer.inference.translation_files.translate_chunk", None)
        assert texts[0] != texts[1] == texts[2]
        assert json.loads((work / "job.json").read_text())["training set"]["facts"]["dropped"] > 0

    @pytest.mark.usefixtures("_no_comparison")
    def test_student(self, folder, monkeypatch):
        options = {
            "output": "interpolated",
            "interpolate": True,
            "teacher_num_beams": 2,
            "source_file": str(folder / "train.a"),
            "target_file": str(folder / "train.b"),
        }
        result = distilled(folder, **options)
        assert result.corpus.interpolated == result.corpus.original == 120
        assert "sequence-level interpolation" in (result.run.folder / "README.md").read_text()
        monkeypatch.setattr(training_set, "write_nearest", None)
        assert distilled(folder, **options).corpus == result.corpus
        more = {f"{side}_file": [str(folder / f"train.{x}"), str(folder / f"test.{x}")] for side, x in SIDES.items()}
        with pytest.raises(ValueError, match=r"original was .*: use another output"):
            distilled(folder, **options | more)
        with pytest.raises(ValueError, match=r"num_return_sequences was 2, now None\): use another output"):
            distilled(folder, **options | {"interpolate": False})

    def test_texts_without_a_reference(self, folder, tmp_path):
        (tmp_path / "mono").write_text("other text\n")
        files = {"source_file": str(folder / "train.a"), "target_file": str(folder / "train.b")}
        options = {"source_text": [str(tmp_path / "mono")], "interpolate": True, "teacher_num_beams": 2}
        with pytest.raises(ValueError, match="source_text must contain sources of the original pairs"):
            distilled(folder, output_dir=str(tmp_path / "out"), **files, **options)


def test_texts_in_a_column_and_on_standard_input(tmp_path, monkeypatch):
    texts = some_texts(6)
    (tmp_path / "mono.tsv").write_text("".join(f"7\t{text}\n" for text in texts[:3]))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts[3:]).encode())))
    sources = [str(tmp_path / "mono.tsv"), "-"]
    options = DistillationArguments(["x"], sources, text_key="2", teacher_num_beams=1)
    corpus = TrainingSet(tmp_path / "work", options)
    corpus.make(random_translator(), random_tokenizer(), 256)
    assert corpus.selected.read_text().splitlines() == texts


def test_restart_discards_the_translations_of_another_teacher_beam(folder, tmp_path, monkeypatch):
    options = {"output_dir": str(tmp_path / "student")}
    with monkeypatch.context() as patch:
        patch.setattr(files, "translate_chunk", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            distilled(folder, **options)
        options["teacher_num_beams"] = 2
        with pytest.raises(ValueError, match=r"num_beams was 1, now 2.* or discard the earlier work with restart"):
            distilled(folder, **options)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder, **options, restart=True)
        with pytest.raises(KeyboardInterrupt):  # resumes
            distilled(folder, **options)
    (tmp_path / "student" / distillation.MANIFEST).touch()
    with pytest.raises(ValueError, match="restart must be False after the training of the student has begun"):
        distilled(folder, **options, restart=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher": []}, "teacher must name at least one folder, got none."),
        ({"source_text": ["missing"]}, "source_text must be a file, got 'missing'."),
        ({"interpolate": True}, "teacher_num_beams must be at least 2 with interpolate, got 1."),
        (
            {"interpolate": True, "teacher_num_beams": 2},
            "train_file or dataset_name must be given with interpolate, got no pairs.",
        ),
        ({"drop_worst": 1.0}, "drop_worst must be at least 0 and below 1, got 1.0."),
        ({"teacher_dtype": "int4"}, "teacher_dtype must be one of float32, bfloat16, int8, got 'int4'."),
        ({"teacher_num_beams": 0}, "teacher_num_beams must be at least 1, got 0."),
        ({"teacher": ["missing"]}, "teacher must be folders with a saved model and its tokenizer, got 'missing'."),
        ({"output": "teacher"}, "output_dir must differ from teacher"),
        ({"test_source_file": None, "test_target_file": None}, "or test_file, must be one test set, got 0."),
        ({"train_temperature": 5.0}, "train_temperature must be unset in a distillation, got 5.0."),
        ({"config_overrides": "num_heads=3"}, "num_heads"),
        (
            {"config_overrides": f"{STUDENT.replace('embeddings=16', 'embeddings=5')},position_embedding=learned"},
            "max_position_embeddings must be at least 7, the tokens of the longest text of",
        ),
        ({"eval_strategy": "steps"}, "eval_strategy must be 'no' without a validation set, got 'steps'."),
        ({"model_name_or_path": "teacher", "lora_rank": 2, "config_overrides": ""}, "lora_rank must be unset in a"),
        (
            {"source_lang": ["en"], "target_lang": ["de"]},
            "source_lang and target_lang must be languages of the tokenizer",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_invalid_argument(folder, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        distilled(folder, **{"output": "invalid", **options})
    assert not (folder / "invalid" / "distillation").exists()


def test_training_set_of_a_student_is_kept(folder, tmp_path, monkeypatch):
    """Scores are not computed again, and other options do not replace the training set."""
    options = {"output_dir": str(tmp_path / "student"), "drop_worst": 0.2}
    with monkeypatch.context() as patch:
        patch.setattr(distillation, "train_translation", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            distilled(folder, **options)
        patch.setattr(training_set, "score_file", None)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder, **options)
    files = [path for path in (tmp_path / "student" / "distillation").iterdir() if path.name != "selected.source"]
    contents = [path.read_bytes() for path in files]
    (tmp_path / "student" / distillation.MANIFEST).write_text("{}")  # the training has begun
    for other, message in (
        ({"drop_worst": 0.3}, "drop_worst was 0.2, now 0.3.*: use another output"),
        (
            {"source_file": str(folder / "test.a"), "target_file": str(folder / "test.b")},
            "original was .*: use another output",
        ),
        ({"teacher_num_beams": 2}, "num_beams was 1, now 2.*: use another output"),
    ):
        with pytest.raises(ValueError, match=message):
            distilled(folder, **options | other)
    assert [path.read_bytes() for path in files] == contents


def test_another_run_is_not_overwritten(folder, tmp_path):
    shutil.copytree(folder / "teacher", tmp_path / "other")
    with pytest.raises(ValueError, match="output_dir must be new or contain an earlier distillation"):
        distilled(folder, output_dir=str(tmp_path / "other"))


@pytest.mark.usefixtures("_reset_accelerate")
def test_command(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["random-transformer"])
    given = student_arguments(folder, "command", max_steps=2)
    flags = [f"--{name}={value[0] if isinstance(value, list) else value}" for name, value in given.items()]
    assert cli.main(["distill", *flags]) == 0
    output = capsys.readouterr().out
    assert "| teacher | float32 |" in output
    assert "Saved the student to " in output
    assert cli.main(["distill", *flags, "--drop_worst=2"]) == 2
    [line] = capsys.readouterr().err.splitlines()[-1:]
    assert line == "random-transformer distill: error: drop_worst must be at least 0 and below 1, got 2.0."

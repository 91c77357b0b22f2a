"""Distillation on a tiny corpus: training set, student, comparison, resuming, invalid arguments, the command."""

import json
import re
from types import SimpleNamespace

import pytest
from accelerate import PartialState
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer import cli
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference import translation_files as files
from modeling_random_transformer.inputs_random_transformer import Languages
from modeling_random_transformer.stages import (
    DistillationArguments,
    StudentDataArguments,
    distill,
    distillation,
    training_set,
)
from modeling_random_transformer.stages.training_set import TrainingSet
from modeling_random_transformer.training import ModelArguments, TranslationTrainingArguments
from modeling_random_transformer.training import run as training_run
from tests.helpers.corpora import read_pairs
from tests.helpers.marian import opus_folder
from tests.helpers.training import arguments, run, write_corpus
from tests.helpers.translation import SENTENCES, random_tokenizer, random_translator

KINDS = (DistillationArguments, StudentDataArguments, ModelArguments, TranslationTrainingArguments)
ORIGINAL = {"source_file": "train.a", "target_file": "train.b"}
TEST = {"source_file": "test.a", "target_file": "test.b"}  # as the training set
STUDENT = "d_model=8,d_ff=16,encoder_layers=1,decoder_layers=1,num_heads=1,max_position_embeddings=16"
NO_TEST = dict.fromkeys(("test_source_file", "test_target_file"))
QUICK = {"max_steps": 1, "save_steps": 1, "average_last": 1}


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a corpus and a teacher, which is the current one."""
    folder = tmp_path_factory.mktemp("distillation")
    write_corpus(folder)
    run(folder, "teacher", **NO_TEST)
    PartialState._reset_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def student_arguments(folder, output="student", **options):
    common = {name: value for name, value in arguments(folder, output).items() if name not in (*ORIGINAL, "vocab_size")}
    return {
        **common,
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
    student_values = student_arguments(folder, output, **options)
    fields = [
        {name: student_values[name] for name in student_values if name in kind.__dataclass_fields__} for kind in KINDS
    ]
    return distill(*(kind(**values) for kind, values in zip(KINDS, fields, strict=True)))


@pytest.fixture(scope="module")
def result(folder):
    result = distilled(folder, **TEST)
    PartialState._reset_state()
    return result


@pytest.fixture
def _no_comparison(monkeypatch):
    monkeypatch.setattr(distillation, "compare_saved", lambda *_: [])


def test_training_set_is_the_teachers_translations_then_the_original_pairs(folder, result):
    work = result.run.folder / "distillation"
    teacher = AutoModelForSeq2SeqLM.from_pretrained(folder / "teacher")
    texts = (folder / "train.a").read_text().split("\n")[:-1]
    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    expected = translate(texts, teacher, tokenizer, num_beams=1, progress=False)
    pairs = [pair for pair in zip(texts, expected, strict=True) if pair[1].strip()]
    assert read_pairs(work / "train.source", work / "train.target") == pairs + read_pairs("test.a", "test.b")
    assert (result.corpus.selected, result.corpus.original) == (120, 12)
    assert result.corpus.synthetic == len(pairs)
    assert result.run.pairs == len(pairs) + 12


def test_student_and_its_comparison_with_the_teacher(folder, result):
    student = AutoModelForSeq2SeqLM.from_pretrained(result.run.folder)
    assert student.config.d_model == 8
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (folder / "teacher", result.run.folder)]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
    assert AutoModelForSeq2SeqLM.from_pretrained(result.run.folder / "int8").is_quantized
    rows = {(row.model, row.dtype): row for row in result.rows}
    assert [*rows] == [("teacher", "float32"), ("student", "float32"), ("student", "int8")]
    assert min(row.sentences_per_second for row in result.rows) > 0
    saved = (result.run.folder / "model.safetensors").stat().st_size / 1e6
    assert rows["student", "float32"].megabytes == pytest.approx(saved, rel=0.01)
    assert rows["student", "int8"].megabytes < rows["student", "float32"].megabytes
    scores = [result.run.scores["test"][name]["score"] for name in ("bleu", "chrf")]
    assert [rows["student", "float32"].bleu, rows["student", "float32"].chrf] == pytest.approx(scores)


def test_record_and_model_card_of_a_distillation_that_is_not_repeated(folder, result, monkeypatch):
    for module, name in ((distillation, "compare_saved"), (distillation, "save_atomically"), (TrainingSet, "assemble")):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(files, "candidate_lines", None)
    again = distilled(folder, **TEST)
    assert (again.rows, again.corpus) == (result.rows, result.corpus)
    record = json.loads((result.run.folder / "distillation" / "job.json").read_text())
    assert [*record] == ["translation", "training set", "int8", "comparison"]
    assert all(stage["is_finished"] for stage in record.values())
    assert record["training set"]["facts"]["original"] == 12
    card = (result.run.folder / "README.md").read_text()
    assert card.count("## Distillation") == 1
    assert "`teacher` (1 beams)" in card
    assert str(folder) not in card
    assert "| student | int8 |" in card


def test_comparison_translates_sentences_above_the_limit_of_the_tokenizer(tmp_path):
    """Training evaluates complete test sets, so the comparison must not reject a sentence after it."""
    model, tokenizer = random_translator(position_embedding="learned", max_position_embeddings=16), random_tokenizer()
    texts = ["a book", "the boy reads a book in the garden " * 3]
    references = translate(texts, model, tokenizer, num_beams=1, progress=False, max_source_tokens=16)
    tokenizer.model_max_length = 16
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    pairs, models = list(zip(texts, references, strict=True)), [("teacher", "float32", [tmp_path])]
    [row] = distillation.compare_saved(models, pairs, Languages(), model.device, {"num_beams": 1}, None)
    assert row.chrf == pytest.approx(100)


@pytest.mark.parametrize(("target", "bleu_tokenize"), [("zh", None), (None, "zh")])
def test_the_comparison_has_the_tokenizer_of_bleu_of_the_target_language(target, bleu_tokenize, tmp_path):
    for part in (random_translator(), random_tokenizer()):
        part.save_pretrained(tmp_path)
    pairs, languages = [("the boy", "男孩读书")], Languages(target and "en", target)
    models = [("teacher", "float32", [tmp_path])]
    [row] = distillation.compare_saved(models, pairs, languages, "cpu", {"num_beams": 1}, bleu_tokenize)
    assert "tok:zh" in row.signature


@pytest.mark.usefixtures("_reset_accelerate")
def test_teacher_with_language_tags(tmp_path):
    write_corpus(tmp_path)
    languages = {"source_lang": ["a"], "target_lang": ["b"]}
    run(tmp_path, "teacher", **QUICK, **NO_TEST, **languages)
    result = distilled(tmp_path, **QUICK, **languages)
    assert len(result.rows) == 3
    tokenizer = AutoTokenizer.from_pretrained(result.run.folder)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("a", "b")


def test_stages_are_not_repeated_after_interruptions(folder, tmp_path, monkeypatch):
    """With other selections, the later ones are, until the student is trained."""
    options = {"output_dir": str(tmp_path / "student"), **QUICK}
    work = tmp_path / "student" / "distillation"

    def interrupted(stage, module=distillation, **more):
        with monkeypatch.context() as patch:
            patch.setattr(module, stage, interrupt)
            with pytest.raises(KeyboardInterrupt):
                distilled(folder, **options | more)

    interrupted("finish", files.Parts)
    with pytest.raises(ValueError, match=r"num_beams was 1, now 2.* or discard the earlier work with restart"):
        distilled(folder, **options, teacher_num_beams=2)
    interrupted("candidate_lines", files, teacher_num_beams=2, restart=True)
    interrupted("train_translation", restart=True)
    monkeypatch.setattr(files, "candidate_lines", None)
    interrupted("write_pairs", training_set, **TEST)
    interrupted("train_translation", **TEST)
    interrupted("train_translation", **ORIGINAL)
    facts = json.loads((work / "job.json").read_text())["training set"]["facts"]
    assert facts["original"] == 120
    options |= ORIGINAL
    interrupted("compare_saved")
    contents = [path.read_bytes() for path in sorted(work.iterdir()) if path.name != "selected.source"]
    for changed_options, message in (
        (TEST, "original was .*: use another output"),
        ({"teacher_num_beams": 2}, "num_beams was 1, now 2.*: use another output"),
        ({"restart": True}, "restart must be False after the training of the student has begun"),
    ):
        with pytest.raises(ValueError, match=message):
            distilled(folder, **options | changed_options)
    assert [path.read_bytes() for path in sorted(work.iterdir()) if path.name != "selected.source"] == contents
    monkeypatch.setattr(TrainingSet, "assemble", None)
    monkeypatch.setattr(distillation, "save_atomically", None)
    monkeypatch.setattr(distillation, "compare_saved", lambda *_: [])
    assert vars(distilled(folder, **options).corpus) == {"interpolated": 0, **facts}


@pytest.mark.usefixtures("_no_comparison")
def test_student_of_a_converted_marian_model(tmp_path):
    """Its tokenizer has no start token: the student's targets start with the padding token, like the teacher's."""
    marian = pytest.importorskip("modeling_random_transformer.extras.conversion.marian")
    opus_folder(tmp_path / "opus")
    marian.convert_marian(tmp_path / "opus", tmp_path / "teacher")
    for name, sentences in (("a", SENTENCES[:3]), ("b", SENTENCES[3:])):
        for split in ("train", "test"):
            (tmp_path / f"{split}.{name}").write_text("".join(f"{sentence}\n" for sentence in sentences))
    result = distilled(tmp_path, max_steps=1, config_overrides=STUDENT.replace("=16", "=128"))
    student, teacher = (AutoConfig.from_pretrained(path) for path in (result.run.folder, tmp_path / "teacher"))
    assert student.decoder_start_token_id == teacher.decoder_start_token_id == teacher.pad_token_id
    assert student.vocab_size == teacher.vocab_size


@pytest.mark.usefixtures("_no_comparison")
def test_student_of_interpolated_translations(folder, tmp_path):
    options = {**ORIGINAL, "interpolate": True, "teacher_num_beams": 2, **QUICK}
    result = distilled(folder, "interpolated", **options)
    assert result.corpus.interpolated == result.corpus.original == 120
    assert "sequence-level interpolation" in (result.run.folder / "README.md").read_text()
    with pytest.raises(ValueError, match=r"num_return_sequences was 2, now None.*: use another output"):
        distilled(folder, "interpolated", **options | {"interpolate": False})
    (tmp_path / "mono").write_text("other text\n")
    output = tmp_path / "out"
    with pytest.raises(ValueError, match="source_text must contain sources of the original pairs"):
        distilled(folder, output_dir=str(output), **options | {"source_text": [str(tmp_path / "mono")]})
    assert not [*output.rglob("candidates*")]  # the teacher has not begun to translate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher": []}, "teacher must name at least one folder, got none."),
        ({"source_text": ["missing"]}, "source_text must be a file, got 'missing'."),
        ({"interpolate": True}, "teacher_num_beams must be at least 2 with interpolate, got 1."),
        ({"interpolate": True, "teacher_num_beams": 2}, "or train_file, must be given with interpolate, got no pairs."),
        ({"teacher_dtype": "int4"}, "teacher_dtype must be one of float32, bfloat16, int8, got 'int4'."),
        ({"teacher": ["missing"]}, "teacher must be folders with a saved model and its tokenizer, got 'missing'."),
        ({"output": "teacher"}, "output_dir must be new or contain an earlier distillation"),
        (NO_TEST, "or test_file, must be one test set, or without one, there must be one validation set, got 0 sets."),
        (
            NO_TEST | {f"validation_{side}_file": ["test.a", "test.b"] for side in ("source", "target")},
            "or test_file, must be one test set, or without one, there must be one validation set, got 2 sets.",
        ),
        ({**ORIGINAL, "source_lang": "a", "target_lang": "b", "test_source_lang": "b", "test_target_lang": "a"},
         "source_lang and target_lang must be those of the test set in a distillation, got"),
        ({"model_name_or_path": "teacher", "lora_rank": 2, "config_overrides": ""}, "lora_rank must be unset in a"),
    ],
)  # fmt: skip
def test_invalid_argument(folder, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        distilled(folder, **{"output": "invalid", **options})
    assert not (folder / "invalid" / "distillation").exists()


def test_files_of_other_programs_in_the_folder_of_the_int8_model_remain(folder, tmp_path, monkeypatch):
    notes = tmp_path / "int8" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("notes")
    with pytest.raises(ValueError, match="output_dir must be new or contain an earlier distillation"):
        distilled(folder, output_dir=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(distillation, "load_translator", lambda *_: (random_translator(), random_tokenizer()))
    for _ in range(2):
        distillation.export_int8(tmp_path)
        assert notes.read_text() == "notes"
        assert (notes.parent / "model.safetensors").is_file()


@pytest.mark.usefixtures("_reset_accelerate")
def test_the_comparison_has_the_chosen_length_penalty(folder, monkeypatch):
    searches = []
    monkeypatch.setattr(distillation, "compare_saved", lambda *arguments: searches.append(arguments[-2]) or [])
    facts = {"length_penalty": 1.5, "patience": 2, "searches": [], "description": "chosen"}
    choice = SimpleNamespace(choose_search=lambda _trainer: facts)
    monkeypatch.setattr(training_run, "load_extra", lambda _name: choice)
    sets = {f"validation_{name}": str(folder / path) for name, path in TEST.items()}
    distilled(folder, "chosen", **sets, **NO_TEST, **QUICK, num_beams=2, length_penalty="auto")
    assert searches == [{"num_beams": 2, "length_penalty": 1.5, "early_stopping": True, "patience": 2}]


@pytest.mark.usefixtures("_reset_accelerate", "_no_comparison")
def test_command_distills(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["random-transformer"])
    arguments = student_arguments(folder, "command", **QUICK)
    flags = [f"--{name}={value[0] if isinstance(value, list) else value}" for name, value in arguments.items()]
    row = distillation.ModelScores("student", "float32", 1.0, 2.0, 3.0, 4.0, "signature")
    monkeypatch.setattr(distillation, "compare_saved", lambda *_: [row])
    assert cli.main(["distill", *flags]) == 0
    output = capsys.readouterr().out
    assert "| student | float32 | 1.00 | 2.00 | 3.0 | 4.0 |" in output
    assert "Saved the student to " in output
